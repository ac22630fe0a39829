"""Calls timed against each other on the wall clock, and candidates in the order of their times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter, sleep

from ridgeline.base.choices import Candidate
from ridgeline.base.timing import interleave

# a later candidate must beat an earlier, simpler one by this much
MARGIN = 0.03
# thread pools of different libraries spin after their last call and steal a core from the next
PAUSE_S = 0.002
# a candidate this many times slower than the best at first sight stays behind
HOPELESS = 2.5
# from here on one run tells the time of a call, so that less of a lead is believed
SLOW_US = 1000.0
SLOW_HOPELESS = 1.75
# one run of a call this long is enough at first sight
ONE_GLANCE_US = 100_000.0
# of calls this long six samples are enough for a site; whole plans get their full time
LONG_US, LONG_ROUNDS = 5000.0, 2
# (p90 - p10) / median above which samples say more about the neighbours than about the call
UNSTEADY = 0.5


@dataclass(frozen=True)
class Effort:
    """What an optimisation level spends."""

    site_s: float  # per candidate of a site
    plan_s: float  # on each whole plan
    tie_s: float  # on each of those that come out alike
    long_rounds: int | None = LONG_ROUNDS  # on a site's long calls; None: as many as the time allows


EFFORTS = (
    Effort(0.0, 0.0, 0.0),
    Effort(0.004, 0.2, 0.2),
    Effort(0.008, 0.4, 0.8),
    Effort(0.015, 0.8, 2.0),
    Effort(0.05, 2.0, 5.0, None),
    Effort(0.2, 5.0, 10.0, None),
)


def race(
    calls: Sequence[Callable[[], object]], *, each_s: float, pause_s: float, long_rounds: int | None = None
) -> tuple[list[float], bool]:
    """Medians in µs, and whether the best was unsteady. Those far behind at first sight are left there."""
    first = _first_sight(calls, pause_s=pause_s)
    best_us = min(first)
    limit = best_us * (HOPELESS if best_us < SLOW_US else SLOW_HOPELESS)
    rivals = [i for i, us in enumerate(first) if us <= limit]
    rounds = long_rounds if best_us > LONG_US and pause_s else None
    timings = interleave(
        [calls[i] for i in rivals], budget_s=each_s * len(rivals), rounds=rounds, settle_s=pause_s
    )
    found = dict(zip(rivals, (t.median_us for t in timings), strict=True))
    best = min(timings, key=lambda t: t.median_us)
    return [round(found.get(i, us), 3) for i, us in enumerate(first)], best.spread > UNSTEADY


def _first_sight(calls: Sequence[Callable[[], object]], *, pause_s: float) -> list[float]:
    """A rough time of each, in µs. Slow calls speak for themselves; quick ones need a sample of many."""
    rough = [_glance_us(call, pause_s) for call in calls]
    quick = [i for i, us in enumerate(rough) if us < SLOW_US]
    timings = interleave([calls[i] for i in quick], rounds=1, min_sample_us=50, settle_s=pause_s)
    for i, timing in zip(quick, timings, strict=True):
        rough[i] = timing.min_us
    return rough


def _glance_us(call: Callable[[], object], pause_s: float) -> float:
    """The better of two runs, since the first may pay for waking threads and for another's cache.

    Of a call that takes long that is a small part, and it has run once before it is raced.
    """
    if pause_s:
        sleep(pause_s)
    times: list[float] = []
    while len(times) < 2 and sum(times) < ONE_GLANCE_US:
        start = perf_counter()
        call()
        times.append((perf_counter() - start) * 1e6)
    return min(times)


def ranked(timed: Sequence[Candidate], winner: int | None = None) -> list[Candidate]:
    """The winner, by default the earliest that nobody later beats by the margin, then the others by time."""
    times = [_time(candidate) for candidate in timed]
    best = fastest(times) if winner is None else winner
    return [timed[best], *sorted((m for i, m in enumerate(timed) if i != best), key=_time)]


def fastest(times: Sequence[float]) -> int:
    """The earliest time that no later one beats by the margin."""
    limit = min(times) * (1 + MARGIN)
    return next(i for i, us in enumerate(times) if us <= limit)


def _time(measured: Candidate) -> float:
    return measured.median_us if measured.median_us is not None else float("inf")
