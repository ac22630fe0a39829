"""Rows that describe tensors, and how far two sets of them are apart. Rows only; nothing here prints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ridgeline.runtime.non_tensor import element_name, flattened


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
        if a is None or a.shape != b.shape or not (_is_numeric(a) and _is_numeric(b)):
            same = a is not None and bool(np.array_equal(a, b))
            rows.append(Difference(name, 0.0 if same else math.inf, 0.0))
            continue
        wide = b.astype(np.float64)
        rows.append(Difference(name, _max_difference(a.astype(np.float64), wide), _largest(wide)))
    return tuple(rows)


def _row(name: str, array: np.ndarray, file: str) -> TensorRow:
    dtype, shape = element_name(array), tuple(array.shape)
    numbers = array.astype(np.float64) if _is_numeric(array) else np.zeros(0)
    finite = numbers[np.isfinite(numbers)]
    nans = int(np.isnan(numbers).sum())
    infs = numbers.size - finite.size - nans
    low, mean, high = (float(take(finite)) if finite.size else None for take in (np.min, np.mean, np.max))
    return TensorRow(name, dtype, shape, low, mean, high, nans, infs, file)


def _is_numeric(array: np.ndarray) -> bool:
    # bfloat16 and the 8-bit floats come from ml_dtypes as kind V; they convert to float64 all the same
    return array.dtype.kind in "biuf" or array.dtype.name.startswith(("bfloat", "float", "int", "uint"))


def _max_difference(a: np.ndarray, b: np.ndarray) -> float:
    if not a.size:
        return 0.0
    if not bool(np.array_equal(np.isnan(a), np.isnan(b))):
        return math.inf
    with np.errstate(invalid="ignore"):
        gap = np.where((a == b) | np.isnan(a), 0.0, np.abs(a - b))
    return float(gap.max())


def _largest(array: np.ndarray) -> float:
    finite = array[np.isfinite(array)]
    return float(np.abs(finite).max()) if finite.size else 0.0
