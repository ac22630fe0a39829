"""Measures this machine: its rates, and how long regions of calibration networks take. Minutes, once.

Networks are built and profiled as any model is, so that a point is a step in its place: neighbours, caches
and launches that overlap are in it. `ridge calibrate` keeps the result as a target file.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from itertools import pairwise
from statistics import median
from typing import Protocol

from ridgeline.analyze.calibration_ahead import Ahead
from ridgeline.analyze.calibration_pace import Clock, OutOfTime, Pace
from ridgeline.analyze.calibration_sets import NetworkSet, dtype_of, sets_of
from ridgeline.analyze.ceiling_rates import copy_curve, launch_us, product_rates
from ridgeline.base.ceilings import Ceilings, Point
from ridgeline.base.spec import Target
from ridgeline.builder import build
from ridgeline.errors import TargetError
from ridgeline.plan.trace import Trace
from ridgeline.runtime.device import current_device, is_here
from ridgeline.runtime.engine import Engine
from ridgeline.tactics.cache import cpu_name
from ridgeline.tactics.cost_features import features_of
from ridgeline.tactics.cost_model import CostModel
from ridgeline.targets import TacticOptions, machine_of
from ridgeline.targets.ceilings import stated_ceilings

TIME_LIMIT_S = 170.0  # three minutes, less what may be going on when it has passed
NO_LIMIT_S = 3600.0  # of one build: a calibration keeps its own time
LARGEST_FALL = 10  # of a rate, from one size of a copy to one four times as large


class Tell(Protocol):
    """Hears of progress, as `Options.progress` does."""

    def __call__(self, stage: str, done: int, total: int, detail: str = "") -> None: ...


def _silent(stage: str, done: int, total: int, detail: str = "") -> None:
    pass


def calibrate(
    target: Target,
    *,
    limit_s: float = TIME_LIMIT_S,
    tell: Tell = _silent,
    clock: Clock = time.monotonic,
) -> Ceilings:
    """The ceilings of the machine that this target is, which must be here: rates, and then as many sets of
    networks as `limit_s` allows. What was not measured is in the result, with the reason."""
    if not is_here(target):
        raise TargetError(f"{target} is not this machine", help="calibrate on the machine itself")
    pace = Pace(limit_s, clock)
    ahead = Ahead(target)
    try:
        rated = measure_rates(target, tell=tell)
        return measure_sets(rated, target, pace, ahead, tell=tell)
    finally:
        ahead.close()


def measure_sets(
    rated: Ceilings, target: Target, pace: Pace, ahead: Ahead, *, tell: Tell = _silent
) -> Ceilings:
    """The machine with the points of every set that there is time for, in the order of what they are worth.

    One that takes longer than it should is stopped: what goes beyond the limit is at most one step of a
    build, which is what it does between two messages of its progress, or one profile.
    """
    points: list[Point] = []
    left_out: dict[str, str] = {}
    for each in sets_of(target):
        if why := pace.why_not(each):
            left_out[each.name] = why
            # it compiles what will not be measured; what comes after this set compiles for itself
            ahead.close()
            continue
        expected_s, began = pace.expected_s(each), pace.clock()
        try:
            points += measure_set(each, rated, target, pace, ahead, tell=tell)
        except OutOfTime:
            left_out[each.name] = f"stopped when the time was over, {expected_s:.0f} s expected"
        pace.learn(each, pace.clock() - began)
    return replace(rated, points=tuple(points), left_out=left_out)


def measure_set(
    each: NetworkSet, rated: Ceilings, target: Target, pace: Pace, ahead: Ahead, *, tell: Tell
) -> list[Point]:
    """The points of one set; `OutOfTime` once the limit has passed."""

    def tell_stage(stage: str, done: int, total: int, detail: str = "") -> None:
        pace.require_time()
        tell(each.name, done, total, f"{stage} {detail}")

    tell(each.name, 0, 1, "compile")
    ahead.wait_for(each.name, pace.left_s)
    pace.require_time()
    # what runs many regions as one step leaves none of them a time of its own
    tactics = machine_of(target).tactics(TacticOptions({}))
    spans = tuple(tactic.name for tactic in tactics if tactic.takes_spans)
    engine = build(
        each.model(dtype_of(target)), target=target.kind, threads=target.threads, verify="off",
        without=spans, progress=tell_stage, time_limit=NO_LIMIT_S,
    )  # fmt: skip
    pace.require_time()
    trace = engine.profile(engine.example_inputs())
    return list(points_of(engine, trace, CostModel(rated)))


def measure_rates(target: Target, *, tell: Tell = _silent) -> Ceilings:
    """Copies, products and a launch alone: seconds."""
    tell("rates", 0, 3)
    machine_of(target).prepare()  # as many threads as the result says
    copy = tuple(copy_curve(target))
    tell("rates", 1, 3)
    flops = product_rates(target)
    tell("rates", 2, 3)
    launch = launch_us(target)
    tell("rates", 3, 3)
    base = stated_ceilings(target)
    here = current_device().name if target.traits.is_gpu else f"{cpu_name()}, {_threads(target)}"
    return replace(
        base,
        threads=target.threads,
        measured=f"{date.today()} on {here}",
        copy=copy,
        flops=flops,
        launch_us=launch,
    )


def doubt(found: Ceilings) -> str:
    """Why these rates may not be the machine's own, or nothing.

    A copy leaves one cache for the next at a loss of a few times at most; threads that wait for each other
    on a busy machine lose a hundred times.
    """
    for (_, before), (nbytes, rate) in pairwise(found.copy):
        if rate < before / LARGEST_FALL:
            return (
                f"a copy of {nbytes:,.0f} bytes ran at {rate / 1e3:.3g} GB/s, a smaller one at"
                f" {before / 1e3:.3g}: the machine was busy; calibrate again when it is quiet"
            )
    return ""


def _threads(target: Target) -> str:
    return "1 thread" if target.threads == 1 else f"{target.threads} threads"


def points_of(engine: Engine, trace: Trace, cost: CostModel) -> Iterator[Point]:
    """What each step took of the run beside what the cost model says; the same region once."""
    sites = {step.name: site for step, site in engine.planned_sites()}
    tactics = tuple(engine.fused.tactics.values())
    seen: dict[str, list[float]] = {}
    for step in trace.steps:
        site = sites.get(step.name)
        if site is not None and site.is_inferred:
            seen.setdefault(site.key, []).append(step.net_us)
    for key, times in seen.items():
        site = next(site for site in sites.values() if site.key == key)
        modelled = cost.modelled_us(site, tactics)
        found = features_of(site)
        measured = median(times)
        if modelled and measured > 0:
            yield Point(found.family, found.values, measured, modelled)
