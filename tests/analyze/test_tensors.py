from __future__ import annotations

import math

import ml_dtypes
import numpy as np

from ridgeline.analyze.tensors import describe, differences


def test_nans_and_infinities_are_counted_apart() -> None:
    (row,) = describe({"y": np.array([1.0, np.nan, np.inf, 3.0], np.float32)}, {})
    assert (row.min, row.mean, row.max, row.nans, row.infs) == (1.0, 2.0, 3.0, 1, 1)


def test_every_dtype_has_a_row() -> None:
    tensors = {
        "b": np.array([True, False]),
        "h": np.array([1.5], ml_dtypes.bfloat16),
        "e": np.zeros((0, 3), np.int64),
        "s": np.array(["a"], dtype=object),
    }
    rows = {row.name: row for row in describe(tensors, {"b": "b.npy"})}
    assert (rows["b"].mean, rows["b"].file) == (0.5, "b.npy")
    assert rows["h"].max == 1.5
    assert rows["e"].min is None
    assert rows["s"].min is None


def test_difference_is_the_greatest_one() -> None:
    (row,) = differences({"y": np.array([1.0, 2.5])}, {"y": np.array([1.0, -4.0])})
    assert (row.max_difference, row.scale) == (6.5, 4.0)


def test_equal_nans_and_infinities_agree() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1.0])
    assert differences({"y": values}, {"y": values.copy()})[0].max_difference == 0.0


def test_a_missing_output_another_shape_and_a_lone_nan_are_infinitely_far() -> None:
    want = {"y": np.ones(3)}
    for got in ({}, {"y": np.ones(4)}, {"y": np.array([1.0, np.nan, 1.0])}):
        assert differences(got, want)[0].max_difference == math.inf
