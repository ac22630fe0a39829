"""The smallest sufficient set: exactly the culprits, nothing to spare, few questions."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from ridgeline.precision.minimal import minimal_set

NAMES = [f"node_{i:03d}" for i in range(300)]


class Counted:
    """A question that counts how often it is asked."""

    def __init__(self, answer: Callable[[frozenset[str]], bool]) -> None:
        self.answer, self.asked = answer, []

    def __call__(self, kept: frozenset[str]) -> bool:
        assert kept not in self.asked
        self.asked.append(kept)
        return self.answer(kept)


def is_minimal(found: frozenset[str], answer: Callable[[frozenset[str]], bool]) -> bool:
    return answer(found) and not any(answer(found - {name}) for name in found)


def test_three_culprits_among_300_are_named_exactly() -> None:
    culprits = frozenset({"node_007", "node_150", "node_299"})
    question = Counted(lambda kept: culprits <= kept)
    order = sorted(NAMES, key=lambda name: (name not in culprits, name))
    assert minimal_set(NAMES, question, order) == culprits
    assert len(question.asked) <= 10


@pytest.mark.parametrize("seed", range(5))
def test_a_bad_order_costs_questions_and_changes_nothing(seed: int) -> None:
    culprits = frozenset({"node_007", "node_150", "node_299"})
    question = Counted(lambda kept: culprits <= kept)
    order = random.Random(seed).sample(NAMES, len(NAMES))
    assert minimal_set(NAMES, question, order) == culprits
    assert len(question.asked) < 80


def test_of_a_pair_that_does_harm_together_one_is_kept() -> None:
    pair = frozenset({"node_020", "node_201"})
    question = Counted(lambda kept: bool(pair & kept))
    found = minimal_set(NAMES, question, NAMES)
    assert found is not None
    assert len(found) == 1
    assert found <= pair


def test_nothing_is_kept_where_nothing_need_be() -> None:
    question = Counted(lambda kept: True)
    assert minimal_set(NAMES, question, NAMES) == frozenset()
    assert question.asked == [frozenset()]


@pytest.mark.parametrize("names", [NAMES, []])
def test_none_if_all_do_not_suffice(names: list[str]) -> None:
    assert minimal_set(names, lambda kept: False, names) is None


def test_names_that_the_order_lacks_are_candidates_too() -> None:
    assert minimal_set(["a", "b", "c"], lambda kept: "c" in kept, ["a", "unknown", "a"]) == {"c"}


@pytest.mark.parametrize("seed", range(20))
def test_nothing_can_be_removed_even_where_keeping_more_does_harm(seed: int) -> None:
    """Errors can cancel: a sufficient set need not stay so when more is kept."""
    rng = random.Random(seed)
    names = NAMES[:12]
    cache: dict[frozenset[str], bool] = {frozenset(names): True, frozenset(): False}

    def answer(kept: frozenset[str]) -> bool:
        return cache.setdefault(kept, rng.random() < 0.4)

    found = minimal_set(names, answer, names)
    assert found is not None
    assert is_minimal(found, answer)
