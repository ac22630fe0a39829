"""Whole plans on a GPU with independent steps side by side: raced against the same steps on one stream.

Only where an estimate says that there is something to gain, and once: the schedule of the best estimate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ridgeline.base.choices import Candidate
from ridgeline.base.devices import Device, device_of
from ridgeline.base.gpu_graph import CaptureError
from ridgeline.base.gpu_timing import interleave_graphs
from ridgeline.base.timing import Timing, paired_ratio
from ridgeline.errors import BuildError, failure
from ridgeline.ir.sites import merge
from ridgeline.ir.views import views_of
from ridgeline.kernels.triton.stage import waits_inside
from ridgeline.plan.make import work_of
from ridgeline.plan.stream_choice import Forecast, Task, best_schedule, critical_us
from ridgeline.plan.streams import ONE, SEVERAL, Schedule, needs_of
from ridgeline.runtime.cuda_instance import CudaInstance
from ridgeline.select.context import Selection, SelectionContext, StepChoice
from ridgeline.select.plan_times import run_once
from ridgeline.select.plans import instance_of, plan_key
from ridgeline.select.race import MARGIN
from ridgeline.tactics.base import Launch
from ridgeline.tactics.cache import Entry

# a race is run once more, for longer, before it is believed
CONFIRMING = 2
LEAST_DEMAND = 0.05  # of the device: a launch keeps something busy whatever it does


def compose_streams(context: SelectionContext, made: Selection, rounds: int) -> None:
    """Put independent steps side by side where that is measured to be faster; without rounds nowhere."""
    tasks = tasks_of(context, made.steps)
    if tasks is None or critical_us(tasks) >= (1 - MARGIN) * sum(task.us for task in tasks):
        return  # one step after the other: there is no choice
    forecast = best_schedule(tasks)
    if forecast.gain < MARGIN:
        made.alternatives = Entry("whole plan", (Candidate(ONE, {}), refused(forecast, _no_gain(forecast))))
        return
    key = _key(context, made, forecast.schedule)
    entry = context.find(key)
    if entry is None:
        if context.lock is not None or not rounds or context.deadline.is_over:
            return
        context.options.tell("compare streams", 0, 1)
        entry = race(context, made.steps, forecast, rounds)
        context.options.tell("compare streams", 1, 1)
        if entry is None:
            return
        made.timed += 1
        entry = replace(entry, is_partial=made.partial > 0)
    else:
        made.cached += 1
    made.alternatives = entry
    made.keys.append(key)
    context.store(key, entry)
    if entry.candidates[entry.chosen].tactic == SEVERAL:
        made.schedule = forecast.schedule


def tasks_of(context: SelectionContext, steps: Sequence[StepChoice]) -> list[Task] | None:
    """The steps as the estimate sees them; None where some have no time."""
    device = device_of(context.fused.target.arch)
    regions = [merge(context.fused.program, step.regions) for step in steps]
    tasks, stays = [], dict[str, bool]()
    for step, needs in zip(steps, needs_of(regions), strict=True):
        if views_of(step.site):
            tasks.append(Task(0.0, 0.0, needs))
        elif step.median_us is None:
            return None
        else:
            # equal sites have equal choices, and a tactic reads a site once
            if step.site.key not in stays:
                kernels = context.kernels(step.site, step.tactic, step.config)
                stays[step.site.key] = any(map(waits_inside, kernels))
            tasks.append(Task(step.median_us, _demand(step, device), needs, stays[step.site.key]))
    return tasks


def _demand(step: StepChoice, device: Device) -> float:
    """The share of the device that a step keeps busy: what its work takes at the least, of what it takes."""
    work, us = work_of(step.site), step.median_us or 0.0
    least_us = max(work.bytes / device.bytes, work.flops / device.flops)
    return min(1.0, max(LEAST_DEMAND, least_us / us if us else 1.0))


def _no_gain(forecast: Forecast) -> str:
    return (
        f"not timed: {forecast.us:.1f} µs are estimated, {forecast.in_order_us:.1f} one after the other, "
        f"and less than {MARGIN:.0%} is no gain"
    )


def refused(forecast: Forecast, reason: str) -> Candidate:
    return replace(candidate_of(forecast.schedule), refused=reason)


def candidate_of(schedule: Schedule, median_us: float | None = None) -> Candidate:
    return Candidate(SEVERAL, {"streams": schedule.n_streams, "waits": schedule.n_waits}, median_us)


def race(
    context: SelectionContext, steps: Sequence[StepChoice], forecast: Forecast, rounds: int
) -> Entry | None:
    """Both graphs replayed in turns; None where the run cannot be captured in one graph at all."""
    launches: dict[object, Launch] = {}
    try:
        plain = captured(context, steps, None, launches)
    except CaptureError:
        return None
    try:
        rival = captured(context, steps, forecast.schedule, launches)
        require_same(plain, rival)
    except Exception as error:  # what cannot run this way is left out with the reason
        return Entry("whole plan", (Candidate(ONE, {}), refused(forecast, failure(error))))
    old, new, is_faster = _compare(plain, rival, rounds)
    one = Candidate(ONE, {}, round(old.median_us, 3))
    several = candidate_of(forecast.schedule, round(new.median_us, 3))
    return Entry("whole plan", (one, several), chosen=int(is_faster))


def _compare(plain: CudaInstance, rival: CudaInstance, rounds: int) -> tuple[Timing, Timing, bool]:
    assert plain.graph is not None, "it was captured"
    assert rival.graph is not None, "it was captured"
    graphs = (plain.graph, rival.graph)
    old, new = interleave_graphs(graphs, rounds=rounds)
    if paired_ratio(old, new) <= 1 + MARGIN:
        return old, new, False
    old, new = interleave_graphs(graphs, rounds=CONFIRMING * rounds)
    return old, new, paired_ratio(old, new) > 1 + MARGIN


def require_same(plain: CudaInstance, rival: CudaInstance) -> None:
    """Raise where the two computed something else: a wait is missing, or a step draws at random."""
    other = rival.results()
    for name, want in plain.results().items():
        if isinstance(want, Tensor) and not _are_same(want, other[name]):
            raise BuildError(f"output {name!r} is not the same, bit by bit, as on one stream")


def _are_same(one: Tensor, other: Tensor) -> bool:
    bits = [each.contiguous().reshape(-1).view(torch.uint8) for each in (one, other)]
    return one.shape == other.shape and torch.equal(*bits)


def captured(
    context: SelectionContext,
    steps: Sequence[StepChoice],
    schedule: Schedule | None,
    launches: dict[object, Launch],
) -> CudaInstance:
    """The whole plan run once and captured, on these streams; `CaptureError` where no graph can hold it."""
    instance = run_once(instance_of(context, steps, CudaInstance, launches, schedule))
    if instance.graph is None:
        raise CaptureError(instance.why_eager)
    if instance.is_streamed != (schedule is not None):
        raise CaptureError("the run cannot be captured on several streams")
    return instance


def _key(context: SelectionContext, made: Selection, schedule: Schedule) -> str:
    """Of this schedule: another one, which other times would make, is another race."""
    text = f"{schedule.streams} {schedule.waits} " + " ".join(_choice_text(step) for step in made.steps)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return plan_key(context, made, [ONE, SEVERAL, digest])


def _choice_text(step: StepChoice) -> str:
    return f"{step.tactic} {sorted(step.config.items())}"
