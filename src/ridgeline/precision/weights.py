"""Weights in a format: scales from the largest elements, or clipped where that brings the codes nearer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ridgeline.base.formats import Format
from ridgeline.base.scales import Encoded, Granularity, encode
from ridgeline.errors import InputError

# shares of the largest magnitude that the scale of a group may be made for
CLIPS = tuple(i / 20 for i in range(20, 9, -1))


def encode_weight(
    array: np.ndarray, fmt: Format, granularity: Granularity, *, where: str, clips: np.ndarray | None = None
) -> Encoded:
    """With few codes, every group gets the clip with the least squared error; of 8 bits, none pays."""
    if not np.isfinite(array).all():
        raise InputError(f"the weights of {where} have NaN or infinity", want="finite weights")
    if fmt.bits == 8 or not array.size:
        return encode(array, fmt, granularity)
    found = best_clips(array, fmt, granularity) if clips is None else clips
    return encode(array, fmt, granularity, clip=found)


def best_clips(
    array: np.ndarray,
    fmt: Format,
    granularity: Granularity,
    importance: np.ndarray | None = None,
    shares: Sequence[float] = CLIPS,
) -> np.ndarray:
    """The share for each group that has the least squared error, weighted by `importance` if given."""
    shape = granularity.scale_shape(array.shape)
    best = np.ones(shape)
    least = np.full(shape, np.inf)
    for clip in shares:
        made = encode(array, fmt, granularity, clip=clip).decoded()
        squares = np.square(made.astype(np.float64) - array)
        if importance is not None:
            squares = squares * importance
        error = _group_sums(squares, granularity)
        best = np.where(error < least, clip, best)
        least = np.minimum(error, least)
    return best


def _group_sums(squares: np.ndarray, granularity: Granularity) -> np.ndarray:
    if granularity.axis is None:
        return np.asarray(squares.sum())
    axis = granularity.axis % squares.ndim
    if not granularity.block:
        return np.asarray(squares.sum(axis=tuple(i for i in range(squares.ndim) if i != axis)))
    starts = np.arange(0, squares.shape[axis], granularity.block)
    return np.asarray(np.add.reduceat(squares, starts, axis=axis))
