"""The time of one call of an engine, and how much of it is spent outside its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter
from typing import Any, TypeVar

from ridgeline.plan.plan import Plan
from ridgeline.runtime.context import Context

T = TypeVar("T")
OVERHEAD_S = 0.1
# the steps of a plan and a whole run, measured at different times, may be apart this much
APART, SLACK_US = 3.0, 50.0


def call_overhead(context: Context, feeds: Mapping[str, Any], run_s: float) -> tuple[float, float]:
    """What a run does besides its steps (checks, copies in and out), and all of it, in µs.

    Timed on their own: the difference of two whole runs is mostly a difference of neighbours. `run_s` is
    what the last run took: a slow one is not repeated.
    """
    whole = _samples(lambda: context.run(feeds), [run_s], at_most=300)
    with context.without_steps(feeds):
        around = _samples(lambda: context.run(feeds), [], at_most=50)
    return round(median(around) * 1e6, 2), round(median(whole) * 1e6, 2)


def busy_notes(plan: Plan, run_us: float) -> list[str]:
    """A note if the steps add up to far more than a run: then they were timed on a busy machine."""
    times = [step.median_us for step in plan.steps]
    steps_us = sum(us for us in times if us is not None)
    if steps_us <= APART * run_us + SLACK_US:
        return []
    return [
        f"the steps were timed at {steps_us:.0f} µs together, and a run takes {run_us:.0f} µs: the machine "
        "was busy when tactics were chosen; build again when it is quiet"
    ]


def _samples(call: Callable[[], object], made: list[float], *, at_most: int) -> list[float]:
    """Seconds of as many calls as fit into the time."""
    while len(made) < at_most and sum(made) < OVERHEAD_S:
        made.append(timed(call)[1])
    return made


def timed(call: Callable[[], T]) -> tuple[T, float]:
    """What a call returns, and the seconds that it took."""
    start = perf_counter()
    made = call()
    return made, perf_counter() - start
