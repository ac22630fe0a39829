"""Special values of every element type: zeros, infinities, NaN, denormals, extremes, ties."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from semantics_case import numpy_type

# where exp, sinh and cosh overflow or vanish in some type, ties of rounding, ends of activations
NUMBERS = (
    1.0, 0.5, 1.5, 2.5, 3.5, 0.1, 0.999, 3.0, 6.0, 10.5, 20.0, 41.0, 88.0, 88.9, 89.3, 104.5, 710.2, 1000.0,
    65504.0, 2.0**24 + 2, 1e10, 1e21,
)  # fmt: skip


def specials(name: str) -> np.ndarray:
    """All of a type's special values, in one axis."""
    dtype = numpy_type(name)
    if name == "bool":
        return np.array([False, True, True, False])
    if dtype.kind in "iu":
        ends = np.iinfo(dtype)
        middle = [n for n in (0, 1, 2, 3, 5, 7, 100, -1, -2, -3, -7) if ends.min <= n <= ends.max]
        near = [ends.min, ends.min + 1, ends.max - 1, ends.max, ends.max // 2, ends.max // 2 + 1, 2**53 + 1]
        return np.array([*middle, *(n for n in near if n <= ends.max)], dtype)
    ends = ml_dtypes.finfo(dtype)
    one_side = [
        0.0, *NUMBERS, float(ends.max), float(ends.tiny), float(ends.smallest_subnormal),
        3 * float(ends.smallest_subnormal), float(ends.max) / 2, np.inf,
    ]  # fmt: skip
    with np.errstate(all="ignore"):
        one = np.array(one_side, np.float64).astype(dtype)
    return np.concatenate([one, -one, np.array([np.nan], dtype)])


def few(name: str) -> np.ndarray:
    """A handful, to be met in pairs and rows."""
    dtype = numpy_type(name)
    if dtype.kind in "iub":
        return specials(name)
    ends = ml_dtypes.finfo(dtype)
    values = [
        0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -3.0, 7.25, -2.5, 1e-3, float(ends.max), -float(ends.max),
        float(ends.tiny), float(ends.smallest_subnormal), -float(ends.smallest_subnormal), np.inf, -np.inf,
        np.nan,
    ]  # fmt: skip
    return np.array(values, np.float64).astype(dtype)


def pairs(name: str) -> tuple[np.ndarray, np.ndarray]:
    values = few(name)
    return np.repeat(values, len(values)), np.tile(values, len(values))


def rows(name: str, size: int = 6) -> np.ndarray:
    """Rows for a reduction: each special among plain numbers, all of one kind, and mixtures."""
    dtype, values = numpy_type(name), few(name)
    plain = (np.arange(size) % 4 + 1).astype(dtype)
    made = []
    for value in values:
        row = plain.copy()
        row[2 % size] = value
        made += [row, np.full(size, value, dtype)]
    for first, second in zip(values, np.roll(values, 5), strict=True):
        row = plain.copy()
        row[0], row[-1] = first, second
        made.append(row)
    return np.array(made, dtype)


def plain(name: str, *shape: int, seed: int = 0) -> np.ndarray:
    """Ordinary numbers."""
    drawn = np.random.default_rng(seed).standard_normal(shape) * 2
    dtype = numpy_type(name)
    return (np.abs(drawn * 3) if dtype.kind == "u" else drawn * 3 if dtype.kind == "i" else drawn).astype(
        dtype
    )
