"""The scores of `bench/accuracy.py`, and that its data is what it says: real sentences, disjoint parts."""

from __future__ import annotations

import numpy as np
import pytest
from bench.accuracy_tasks import auc, decode, rank_correlation, ranks, sentences


def test_ranks_of_equal_values_are_shared() -> None:
    assert ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1.0, 3.5, 2.0]


def test_rank_correlation_is_spearman_s() -> None:
    values = np.random.default_rng(0).standard_normal(100)
    assert rank_correlation(values, np.exp(values)) == pytest.approx(1.0)
    assert rank_correlation(values, -values) == pytest.approx(-1.0)
    assert rank_correlation(np.array([1.0, 2, 3, 4]), np.array([1.0, 3, 2, 4])) == pytest.approx(0.8)


def test_auc_counts_pairs_in_the_right_order() -> None:
    truth = np.array([True, True, False, False])
    assert auc(np.array([4.0, 3, 2, 1]), truth) == 1.0
    assert auc(np.array([1.0, 2, 3, 4]), truth) == 0.0
    assert auc(np.array([4.0, 1, 3, 2]), truth) == 0.5
    assert auc(np.ones(4), truth) == 0.5


def test_ctc_joins_repeats_and_drops_blanks() -> None:
    classes = [0, 1, 1, 0, 1, 2, 2, 0]
    probabilities = np.eye(3)[classes][None]
    assert decode(probabilities, ["", "a", "b"]) == "aab"


def test_there_are_a_thousand_sentences() -> None:
    found = sentences()
    assert len(found) >= 1000
    assert len(set(found)) == len(found)
    assert all(line[-1] in ".!?" for line in found)
