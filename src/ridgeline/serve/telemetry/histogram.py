"""Counts of values by size, and of events by second: small, and cheap enough for every request."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate, pairwise
from math import inf

from ridgeline.base.exposition import Distribution

WINDOW_S = 10


class Histogram:
    """How many values are at most each bound, above the one before."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last of values beyond all bounds
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def quantile(self, share: float) -> float | None:
        """An estimate: values are taken to lie evenly in their bucket, and never beyond the last bound."""
        total = sum(self.counts)
        if not total:
            return None
        wanted, before = share * total, 0
        for low, high, count in zip((0.0, *self.bounds), (*self.bounds, inf), self.counts, strict=True):
            if count and before + count >= wanted:
                return low if high == inf else low + (high - low) * (wanted - before) / count
            before += count
        return self.bounds[-1]

    def distribution(self) -> Distribution:
        return Distribution(self.bounds, tuple(self.counts), self.sum)

    def coarse(self, bounds: tuple[float, ...], *, unit: float) -> Distribution:
        """The same values in another unit, of which `unit` of ours make one, and in fewer buckets.

        Every bound, in our unit, must be one of ours: otherwise the counts could not be told.
        """
        totals = dict(zip((*self.bounds, inf), accumulate(self.counts), strict=True))
        below = [0, *(totals[bound * unit] for bound in bounds), totals[inf]]
        counts = tuple(high - low for low, high in pairwise(below))
        return Distribution(bounds, counts, self.sum / unit)


class RecentRate:
    """Events per second over the last whole seconds. Time only moves forward."""

    __slots__ = ("_began", "_counts", "_seconds")

    def __init__(self, now: float) -> None:
        self._began = int(now)
        self._counts = [0] * (WINDOW_S + 1)  # the second that is not over yet is one more
        self._seconds = [-1] * (WINDOW_S + 1)

    def add(self, now: float, count: int) -> None:
        second = int(now)
        slot = second % (WINDOW_S + 1)
        if self._seconds[slot] != second:
            self._seconds[slot], self._counts[slot] = second, 0
        self._counts[slot] += count

    def per_second(self, now: float) -> float:
        """Over fewer seconds if there were not as many yet."""
        end = int(now)
        begin = max(end - WINDOW_S, self._began)
        if end <= begin:
            return 0.0
        pairs = zip(self._seconds, self._counts, strict=True)
        return sum(count for second, count in pairs if begin <= second < end) / (end - begin)
