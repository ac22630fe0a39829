"""Wall-clock timing of rival calls: interleaved rounds, rotated order, and the distribution that comes out.

Timings of different `interleave` runs do not compare: clocks, neighbours and caches differ between them.
GPU time is not measured here.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from math import ceil
from statistics import fmean, median
from time import perf_counter_ns, sleep

MIN_ROUNDS = 3
# a call faster than min_sample_us / MAX_INNER costs less than the loop around it
MAX_INNER = 100_000
MIN_BLOCK, MAX_BLOCK = 3, 32
# a call this long wakes its threads in a small part of its time: each run of it is a sample
LONG_NS = 20_000_000


@dataclass(frozen=True)
class Timing:
    """Samples of one call in the order they were taken; each is the mean of `inner` calls in a row."""

    samples_us: tuple[float, ...]
    inner: int = 1

    @cached_property
    def _ascending(self) -> tuple[float, ...]:
        return tuple(sorted(self.samples_us))

    @property
    def median_us(self) -> float:
        return median(self.samples_us)

    @property
    def min_us(self) -> float:
        return self._ascending[0]

    @property
    def mean_us(self) -> float:
        return fmean(self.samples_us)

    @property
    def p10_us(self) -> float:
        return self.percentile(10)

    @property
    def p90_us(self) -> float:
        return self.percentile(90)

    @property
    def spread(self) -> float:
        """(p90 - p10) / median: 0 is perfectly steady."""
        return (self.p90_us - self.p10_us) / self.median_us if self.median_us else 0.0

    def percentile(self, p: float) -> float:
        """As trtexec counts it: the largest sample once the top (100 - p) percent are set aside."""
        n = len(self.samples_us)
        return self._ascending[max(n - 1 - set_aside(p, n), 0)]


def set_aside(p: float, n: int) -> int:
    """How many of `n` samples lie above percentile `p`; with none, the percentile is the maximum."""
    # in float64 the product is just under 1 for p90 of ten and p99.9 of a thousand, which is no reason
    return int(round((100 - p) * n / 100, 9))


def paired_ratio(base: Timing, other: Timing) -> float:
    """Median of base / other, sample by sample of one `interleave` run; above 1 `other` is faster."""
    return median(b / o for b, o in zip(base.samples_us, other.samples_us, strict=True))


def interleave(
    calls: Sequence[Callable[[], object]],
    *,
    budget_s: float = 1.0,
    rounds: int | None = None,
    min_sample_us: float = 200,
    settle_s: float = 0.0,
    on_round: Callable[[int, int], None] | None = None,
) -> list[Timing]:
    """Time rival calls against each other; every call gets the same number of samples.

    Every call is warmed, then repeated within a sample until that lasts `min_sample_us`. Rounds go on until
    `budget_s` is spent (warm-up not counted, three rounds at least) or `rounds` are done. `on_round` hears
    the rounds done and the rounds expected.

    `settle_s` pauses before each call's turn and then takes a block of samples: thread pools spin for a while
    after their last call, and on a small machine that steals a core from a rival of another library.
    """
    if rounds is not None and rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    if not calls:
        return []
    sizes = [_calibrate(call, min_sample_us, settle_s) for call in calls]
    inners = [inner for inner, _ in sizes]
    block = _block_length(settle_s, max(sample_ns for _, sample_ns in sizes))
    samples: list[list[float]] = [[] for _ in calls]

    start = perf_counter_ns()
    done, expected = 0, MIN_ROUNDS
    while done < expected:
        with gc_paused():
            for turn in range(len(calls)):
                which = (turn + done) % len(calls)
                if settle_s:
                    sleep(settle_s)
                    if sizes[which][1] < LONG_NS:
                        # wakes the pool's threads; waking is no part of a steady call
                        _sample_ns(calls[which], inners[which])
                for _ in repeat(None, block):
                    elapsed = _sample_ns(calls[which], inners[which])
                    samples[which].append(elapsed / inners[which] / 1e3)
        done += 1
        round_s = max((perf_counter_ns() - start) / done / 1e9, 1e-9)
        affordable = max(MIN_ROUNDS, int(budget_s / round_s))
        expected = affordable if rounds is None else min(rounds, affordable)
        if on_round is not None:
            on_round(done, max(done, expected))
    return [Timing(tuple(taken), inner) for taken, inner in zip(samples, inners, strict=True)]


def wall_times_in_turn(calls: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Median time of each of these calls in µs, run in order: what one leaves the next may need."""
    samples: list[list[float]] = [[] for _ in calls]
    with gc_paused():
        for _ in repeat(None, rounds):
            for call, kept in zip(calls, samples, strict=True):
                kept.append(_sample_ns(call, 1) / 1e3)
    return [median(kept) for kept in samples]


@dataclass(frozen=True)
class SteppedRuns:
    """Runs of calls in order, one time-stamp between each two, beside other calls in the same rounds."""

    steps: tuple[Timing, ...]  # of each call, the cost of a time-stamp taken off
    starts_us: tuple[float, ...]  # of each call from the start of its run, median
    others: tuple[Timing, ...]
    timer_us: float


def time_stepped(
    calls: Sequence[Callable[[], object]], others: Sequence[Callable[[], object]], rounds: int
) -> SteppedRuns:
    """In each round: every one of `others` as a whole, then all `calls` in order with time-stamps.

    What one call leaves the next may need, so the calls are never reordered. Their times and those of
    `others` come from the same rounds and may be compared.
    """
    count = len(calls)
    runs: list[list[int]] = []
    wholes: list[list[float]] = [[] for _ in others]
    timer_ns = _stamp_ns()
    with gc_paused():
        for _ in repeat(None, rounds):
            for call, kept in zip(others, wholes, strict=True):
                kept.append(_sample_ns(call, 1) / 1e3)
            runs.append(_stamps(calls))
    steps, starts = [], []
    for i in range(count):
        taken = [max(run[i + 1] - run[i] - timer_ns, 0) / 1e3 for run in runs]
        steps.append(Timing(tuple(taken)))
        starts.append(median(max(run[i] - run[0] - i * timer_ns, 0) / 1e3 for run in runs))
    others_timed = tuple(Timing(tuple(kept)) for kept in wholes)
    return SteppedRuns(tuple(steps), tuple(starts), others_timed, timer_ns / 1e3)


def _stamps(calls: Sequence[Callable[[], object]]) -> list[int]:
    """The clock before the first call and after each."""
    stamps = [perf_counter_ns()]
    for call in calls:
        call()
        stamps.append(perf_counter_ns())
    return stamps


def _stamp_ns(count: int = 200, rounds: int = 20) -> float:
    """What a time-stamp adds to a call: the least of some runs of empty calls, with and without."""
    calls = [int] * count
    costs = []
    for _ in repeat(None, rounds):
        stamps = _stamps(calls)
        start = perf_counter_ns()
        for call in calls:
            call()
        costs.append(stamps[-1] - stamps[0] - (perf_counter_ns() - start))
    return max(min(costs), 0) / count


def _calibrate(call: Callable[[], object], min_sample_us: float, settle_s: float) -> tuple[int, int]:
    """Calls per sample, and what such a sample takes in ns."""
    if settle_s:
        sleep(settle_s)
    with gc_paused():
        first = _sample_ns(call, 1)
        if first >= LONG_NS:
            return 1, first
        inner = 1
        while True:
            # the better of two, or one preemption leaves every later sample too short
            elapsed = max(min(_sample_ns(call, inner), _sample_ns(call, inner)), 1)
            short_by = min_sample_us * 1e3 / elapsed
            if short_by <= 1 or inner >= MAX_INNER:
                return inner, elapsed
            # a short sample predicts badly, so grow by steps
            inner = min(ceil(inner * min(short_by * 1.05, 10)), MAX_INNER)


def _block_length(settle_s: float, slowest_ns: int) -> int:
    """Samples per turn: enough to earn back the pause, no more."""
    if not settle_s or slowest_ns >= LONG_NS:
        return 1
    return min(max(int(settle_s * 1e9 / slowest_ns), MIN_BLOCK), MAX_BLOCK)


def _sample_ns(call: Callable[[], object], inner: int) -> int:
    start = perf_counter_ns()
    for _ in repeat(None, inner):
        call()
    return perf_counter_ns() - start


def wall_us(call: Callable[[], object]) -> float:
    """Time of one call."""
    return _sample_ns(call, 1) / 1e3


@contextmanager
def gc_paused() -> Iterator[None]:
    """Without the garbage collector."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
