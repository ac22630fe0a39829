"""Rows that describe tensors, and how far two sets of them are apart. Rows only; nothing here prints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ridgeline.runtime.non_tensor import element_name, flattened
from ridgeline.verify.metrics import as_float64, is_numeric, max_abs


@dataclass(frozen=True)
class TensorRow:
    """Figures of one tensor; NaNs and infinities do not count in min, mean and max."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    min: float | None
    mean: float | None
    max: float | None
    nans: int
    infs: int
    file: str = ""


@dataclass(frozen=True)
class Difference:
    """How far one output is from the peer's."""

    output: str
    max_difference: float
    scale: float  # the largest magnitude in the peer's output


def describe(tensors: Mapping[str, np.ndarray], files: Mapping[str, str]) -> tuple[TensorRow, ...]:
    """One row per tensor, in the order given, with the file that it was written to."""
    return tuple(
        _row(name, np.asarray(array), files.get(name, "")) for name, array in flattened(tensors).items()
    )


def differences(got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray]) -> tuple[Difference, ...]:
    """By output. A missing output, another shape, or a NaN on one side only, is infinitely far away."""
    got, want = flattened(got), flattened(want)
    rows = []
    for name, expected in want.items():
        b = np.asarray(expected)
        a = np.asarray(got[name]) if name in got else None
        if a is None or a.shape != b.shape or not (is_numeric(a) and is_numeric(b)):
            same = a is not None and bool(np.array_equal(a, b))
            rows.append(Difference(name, 0.0 if same else math.inf, 0.0))
            continue
        rows.append(Difference(name, max_abs(a, b), _largest(as_float64(b))))
    return tuple(rows)


def _row(name: str, array: np.ndarray, file: str) -> TensorRow:
    dtype, shape = element_name(array), tuple(array.shape)
    numbers = as_float64(array) if is_numeric(array) else np.zeros(0)
    finite = numbers[np.isfinite(numbers)]
    nans = int(np.isnan(numbers).sum())
    infs = numbers.size - finite.size - nans
    low, mean, high = (float(take(finite)) if finite.size else None for take in (np.min, np.mean, np.max))
    return TensorRow(name, dtype, shape, low, mean, high, nans, infs, file)


def _largest(array: np.ndarray) -> float:
    finite = array[np.isfinite(array)]
    return float(np.abs(finite).max()) if finite.size else 0.0
