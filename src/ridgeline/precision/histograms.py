"""Counts of a tensor's values over fixed edges, and the ranges that calibration methods read from them.

Counts are integers, so that they do not depend on the order or the grouping of the samples. All bins of one
tensor are equally wide: `BINS` from zero to the largest magnitude, on either side of zero. Every method
returns a range inside the observed one; both ends are float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ridgeline.base.formats import Format, from_codes, to_codes
from ridgeline.base.scales import scales_for

BINS = 2048
PERCENTILE = 99.99
# ranges that the mean-squared-error search tries, as shares of the observed one
MSE_SHARES = [i / 100 for i in range(100, 1, -1)]


@dataclass(frozen=True)
class Range:
    """What a tensor's values lie between. Zero is always inside."""

    low: float
    high: float

    @property
    def amax(self) -> float:
        return max(-self.low, self.high)

    def clipped(self, amax: float) -> Range:
        return Range(max(self.low, -amax), min(self.high, amax))

    def joined(self, other: Range) -> Range:
        return Range(min(self.low, other.low), max(self.high, other.high))


class Extremes:
    """The least and the largest value of a tensor, and how many it had. The first pass over the data."""

    def __init__(self) -> None:
        self.low = self.high = 0.0
        self.count = self.non_finite = 0

    def add(self, tensor: Tensor) -> None:
        if not tensor.numel():
            return
        wide = tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
        low, high = (float(end) for end in torch.aminmax(wide))
        self.count += wide.numel()
        if not (np.isfinite(low) and np.isfinite(high)):
            self.non_finite += int((~torch.isfinite(wide)).sum())
            return
        self.low, self.high = min(self.low, low), max(self.high, high)

    @property
    def range(self) -> Range:
        return Range(self.low, self.high)


class Histogram:
    """Counts over the observed range. The second pass over the data."""

    def __init__(self, observed: Range) -> None:
        self.observed = observed
        self.counts = np.zeros(2 * BINS, np.int64)  # the middle is zero

    @property
    def width(self) -> float:
        return self.observed.amax / BINS

    @property
    def centres(self) -> np.ndarray:
        return (np.arange(2 * BINS) - BINS + 0.5) * self.width

    @property
    def magnitudes(self) -> np.ndarray:
        """Counts of |x| from zero on."""
        return self.counts[BINS:] + self.counts[:BINS][::-1]

    def add(self, tensor: Tensor) -> None:
        if not tensor.numel() or not self.observed.amax:
            self.counts[BINS] += tensor.numel()
            return
        index = (tensor.reshape(-1).double() * (BINS / self.observed.amax)).floor_().add_(BINS)
        index = index.clamp_(0, 2 * BINS - 1).to(torch.int32)
        self.counts += torch.bincount(index, minlength=2 * BINS).cpu().numpy()


def max_range(histogram: Histogram, fmt: Format, *, symmetric: bool) -> Range:
    """All that was observed."""
    return histogram.observed


def percentile_range(
    histogram: Histogram, fmt: Format, *, symmetric: bool, percent: float = PERCENTILE
) -> Range:
    """Leaves out (100 - percent) % of the values: the largest magnitudes, or half of it at either end."""
    left_out = 1 - percent / 100
    observed, total = histogram.observed, int(histogram.counts.sum())
    if symmetric or observed.low == 0 or observed.high == 0:
        kept = np.cumsum(histogram.magnitudes)
        edge = int(np.searchsorted(kept, total * (1 - left_out))) + 1
        return observed.clipped(min(edge, BINS) * histogram.width)
    ups, downs = np.cumsum(histogram.counts), np.cumsum(histogram.counts[::-1])
    first = int(np.searchsorted(ups, total * left_out / 2, side="right"))
    last = 2 * BINS - int(np.searchsorted(downs, total * left_out / 2, side="right"))
    low = max(observed.low, min(0.0, (first - BINS) * histogram.width))
    return Range(low, min(observed.high, max(0.0, (last - BINS) * histogram.width)))


def entropy_range(histogram: Histogram, fmt: Format, *, symmetric: bool) -> Range:
    """The clip whose quantised distribution of magnitudes has the least Kullback-Leibler divergence.

    The values at zero are taken as numerous as those beside them: a ReLU's zeros would decide alone.
    """
    counts = histogram.magnitudes.astype(np.float64)
    counts[0] = counts[1]
    observed = histogram.observed
    levels = _levels(observed, fmt, symmetric=symmetric)
    if not counts.any() or levels >= BINS:
        return observed
    divergences = [_divergence(counts, bins, levels) for bins in range(levels, BINS + 1)]
    # of equal ones the widest
    best = len(divergences) - 1 - int(np.argmin(divergences[::-1]))
    return observed.clipped((levels + best) * histogram.width)


def _levels(observed: Range, fmt: Format, *, symmetric: bool) -> int:
    """How many codes the magnitudes of one side share."""
    codes = 1 << fmt.bits
    return codes if not symmetric and (observed.low == 0 or observed.high == 0) else codes // 2


def _divergence(counts: np.ndarray, bins: int, levels: int) -> float:
    """Of the first `bins` with the rest added to the last one, from the same merged into `levels`."""
    wanted = counts[:bins].copy()
    wanted[-1] += counts[bins:].sum()
    is_seen = wanted > 0
    group = np.arange(bins) * levels // bins
    sums = np.bincount(group, counts[:bins], levels)
    seen = np.bincount(group, is_seen, levels)
    got = np.where(is_seen, (sums / np.maximum(seen, 1))[group], 0.0)
    if not got.sum():
        return math.inf
    p, q = wanted / wanted.sum(), got / got.sum()
    if (q[is_seen] == 0).any():  # the last bin may hold nothing but what was cut off
        return math.inf
    return float((p[is_seen] * np.log(p[is_seen] / q[is_seen])).sum())


def mse_range(histogram: Histogram, fmt: Format, *, symmetric: bool) -> Range:
    """The range whose codes lie nearest to the values, in the mean of squares."""
    observed = histogram.observed
    if not observed.amax:
        return observed
    held = histogram.counts > 0
    centres, counts = histogram.centres[held], histogram.counts[held].astype(np.float64)

    def error(found: Range) -> float:
        return float(counts @ np.square(_rounded(centres, found, fmt, symmetric=symmetric) - centres))

    if symmetric or observed.low == 0 or observed.high == 0:
        return min((observed.clipped(observed.amax * s) for s in MSE_SHARES), key=error)
    both = (Range(observed.low * s, observed.high * s) for s in MSE_SHARES)
    best = min(both, key=error)
    best = min((Range(observed.low * s, best.high) for s in MSE_SHARES), key=error)
    return min((Range(best.low, observed.high * s) for s in MSE_SHARES), key=error)


def _rounded(values: np.ndarray, found: Range, fmt: Format, *, symmetric: bool) -> np.ndarray:
    scale, zero = scales_for(np.asarray(found.low), np.asarray(found.high), fmt, symmetric=symmetric)
    step = scale.astype(np.float64)
    point = 0 if zero is None else zero.astype(np.int32)
    return from_codes(to_codes(values / step, fmt, point), fmt, point).astype(np.float64) * step


# the divergence of entropy counts equal steps, which float formats do not have
FLOAT_METHODS = ("max", "percentile", "mse")
METHODS: dict[str, Callable[..., Range]] = {
    "max": max_range,
    "percentile": percentile_range,
    "entropy": entropy_range,
    "mse": mse_range,
}
