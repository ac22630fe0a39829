"""The comparator: every figure by its definition, at the ends of types and for odd arrays."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from ridgeline.verify.metrics import (
    Metrics,
    cosine,
    max_abs,
    measure,
    relative_l2,
    required_rtol,
    top_agreement,
    worst_relative_l2,
)

NAN, INF = math.nan, math.inf


def array(*values: float, dtype: str = "float32") -> np.ndarray:
    return np.array(values, dtype)


def measured(got: np.ndarray, want: np.ndarray) -> Metrics:
    made = measure(got, want)
    assert made is not None
    return made


def test_every_figure_by_its_definition() -> None:
    rng = np.random.default_rng(0)
    want = rng.standard_normal((4, 10)).astype(np.float32)
    got = want + rng.standard_normal((4, 10)).astype(np.float32) / 64
    wide, gap = want.astype(np.float64), got.astype(np.float64) - want
    row = measured(got, want)
    assert row.max_abs == row.required_atol == np.abs(gap).max()
    assert row.mean_abs == pytest.approx(np.abs(gap).mean(), rel=1e-12)
    assert row.relative_l2 == pytest.approx(np.linalg.norm(gap) / np.linalg.norm(wide), rel=1e-12)
    assert row.required_rtol == (np.abs(gap) / np.abs(wide)).max()
    flat = got.astype(np.float64).reshape(-1)
    angle = flat @ wide.reshape(-1) / np.linalg.norm(flat) / np.linalg.norm(wide)
    assert row.cosine == pytest.approx(angle, rel=1e-12)
    peak, rmse = np.abs(wide).max(), math.sqrt((gap**2).mean())
    assert row.psnr_db == pytest.approx(20 * math.log10(peak / rmse), rel=1e-12)
    assert row.worst == np.unravel_index(np.abs(gap).argmax(), gap.shape)
    assert (row.worst_got, row.worst_want) == (got[row.worst], want[row.worst])
    assert row.other_share == np.mean(got != want)


def test_the_required_tolerances_are_the_smallest_that_pass() -> None:
    rng = np.random.default_rng(1)
    want, got = rng.standard_normal((2, 100))
    row = measured(got, want)
    less = math.nextafter(1.0, 0.0) * (1 - 1e-12)
    assert np.allclose(got, want, rtol=0, atol=row.required_atol)
    assert not np.allclose(got, want, rtol=0, atol=row.required_atol * less)
    assert np.allclose(got, want, rtol=row.required_rtol * (1 + 1e-15), atol=0)
    assert not np.allclose(got, want, rtol=row.required_rtol * less, atol=0)
    both = required_rtol(got, want, atol=0.5)
    assert np.allclose(got, want, rtol=both * (1 + 1e-15), atol=0.5)
    assert not np.allclose(got, want, rtol=both * less, atol=0.5)


@pytest.mark.parametrize(
    ("got", "want", "error"),
    [
        (array(), array(), 0.0),
        (array(1, 2), array(1, 2), 0.0),
        (array(0, 0), array(0, 0), 0.0),
        (array(-0.0), array(0.0), 0.0),
        (array(0, 1e-30), array(0, 0), INF),  # nothing is relative to zero
        (array(3, 4), array(0, 5), math.sqrt(10) / 5),
        (array(NAN, 1), array(NAN, 1), 0.0),
        (array(INF, -INF, 2), array(INF, -INF, 1), 1.0),
        (array(INF), array(-INF), INF),
        (array(INF), array(NAN), INF),
        (array(65504, 1), array(INF, 1), INF),
        (array(NAN, 1), array(0, 1), INF),
        (array(NAN), array(NAN), 0.0),
        (array(1, 2), array(1, 2, 3), INF),
        (array(1, dtype="float16"), array(1, dtype="float32"), 0.0),
        (array(1e308, -1e308, dtype="float64"), array(1e308, 1e308, dtype="float64"), INF),
        (array(1e200, 2e200, dtype="float64"), array(1e200, 1e200, dtype="float64"), math.sqrt(0.5)),
        (array(1e-320, 0, dtype="float64"), array(0, 1e-320, dtype="float64"), math.sqrt(2)),
    ],
)
def test_relative_l2_of_odd_arrays(got: np.ndarray, want: np.ndarray, error: float) -> None:
    assert relative_l2(got, want) == pytest.approx(error, rel=1e-4)


def test_integers_count_by_value_or_by_share_whichever_is_smaller() -> None:
    ids = np.full(100, 7, np.int64)
    other = ids.copy()
    other[3] = 50_000  # one index of a hundred flips
    assert relative_l2(other, ids) == 0.01
    pixels = np.full(100, 200, np.uint8)
    assert relative_l2(pixels + np.uint8(1), pixels) == pytest.approx(1 / 200)  # all are off by one
    assert relative_l2(np.array([True, False]), np.array([True, True])) == 0.5
    assert relative_l2(np.array([5]), np.array([0])) == 1.0
    assert relative_l2(np.zeros(0, np.int64), np.zeros(0, np.int64)) == 0.0


def test_text_is_equal_or_infinitely_far() -> None:
    a, b = np.array(["x", "y"], object), np.array(["x", "z"], object)
    assert (relative_l2(a, a), relative_l2(a, b), measure(a, b)) == (0.0, INF, None)


def test_a_missing_output_breaks_any_budget() -> None:
    want = {"y": array(1.0), "z": array(2.0)}
    assert worst_relative_l2({"y": array(1.0)}, want) == {"y": 0.0, "z": INF}


def test_special_values_are_counted_and_placed() -> None:
    want = array(1, NAN, INF, 4, 5)
    row = measured(array(1, NAN, -INF, NAN, 9), want)
    assert (row.nans, row.infs, row.wanted_nans, row.wanted_infs, row.special_differ) == (2, 1, 1, 1, 2)
    assert row.worst == (2,)
    assert row.max_abs == row.relative_l2 == row.required_rtol == INF
    assert (row.cosine, row.psnr_db) == (None, None)


def test_equal_arrays_have_no_worst_place() -> None:
    row = measured(array(1, NAN, INF), array(1, NAN, INF))
    assert (row.worst, row.max_abs, row.other_share, row.psnr_db) == (None, 0.0, 0.0, INF)


@pytest.mark.parametrize("shape", [(0,), (3, 0), ()])
def test_empty_arrays_and_scalars_have_every_figure(shape: tuple[int, ...]) -> None:
    row = measured(np.zeros(shape, np.float32), np.zeros(shape, np.float32))
    assert row.max_abs == row.mean_abs == row.relative_l2 == row.other_share == 0.0


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "int4", "int8", "bool"])
def test_types_of_every_width(name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    want = np.array([0, 1, 1], np.float32).astype(dtype)
    got = np.array([1, 1, 1], np.float32).astype(dtype)
    assert measured(got, want).max_abs == 1.0
    assert measured(want, want).relative_l2 == 0.0


def test_complex_numbers_count_as_two() -> None:
    got, want = np.array([3 + 4j, 1j]), np.array([3 + 5j, 1j])
    assert measured(got, want).max_abs == 1.0
    assert relative_l2(got, want) == pytest.approx(1 / math.sqrt(35))


def test_cosine_of_zero_and_huge_vectors() -> None:
    zero, huge = np.zeros(2), np.array([1e200, 1e200])
    assert (cosine(zero, zero), cosine(zero, huge)) == (1.0, 0.0)
    assert cosine(huge, huge / 1e250) == pytest.approx(1.0)


def test_top_agreement_takes_ties_for_agreement() -> None:
    want = np.array([[1.0, 1.0, 0.0], [0.0, 2.0, 1.0]])
    got = np.array([[0.0, 1.0, 0.5], [3.0, 2.0, 1.0]])
    assert top_agreement(got, want) == (0.5, None)
    ranks = np.arange(8.0)[None]
    assert top_agreement(ranks, ranks) == (1.0, 1.0)
    assert top_agreement(-ranks, ranks) == (0.0, 0.4)  # of the five lowest, two are among the five highest
    nan = np.where(ranks == 7, NAN, ranks)
    assert top_agreement(nan, ranks)[0] == 0.0
    assert top_agreement(np.zeros((3, 1)), np.zeros((3, 1))) == (None, None)


def test_distance_of_one_special_value_is_infinite() -> None:
    assert max_abs(array(INF, 1), array(INF, 3)) == 2.0
    assert max_abs(array(INF, 1), array(1, 1)) == INF
    assert max_abs(array(NAN), array(0)) == INF
