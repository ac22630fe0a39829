"""The steps that data decides about, for the report of a build."""

from __future__ import annotations

from collections import Counter

from ridgeline.errors import InputError
from ridgeline.plan.plan import Plan
from ridgeline.plan.report import Island
from ridgeline.runtime.engine import Engine
from ridgeline.runtime.islands import island_reason, subgraphs

# enough for a median, and quick where an island takes long
ISLAND_ROUNDS = 5


def report_islands(engine: Engine, *, is_timed: bool) -> tuple[Island, ...]:
    """Every step that data decides about, with its time at the planned shapes where builds take times."""
    inferred = engine.inference.at(engine.plan.planned_shapes)
    reasons = {
        region.name: reason
        for region in engine.program.regions
        if not inferred.is_host(region) and (reason := island_reason(region, inferred)) is not None
    }
    if not reasons:
        return ()
    times: dict[str, float] = {}
    if is_timed:
        try:
            medians = engine.context(wait=True).instance(engine.example_inputs(0)).step_times(ISLAND_ROUNDS)
            times = {engine.plan.steps[index].name: us for index, us in medians.items()}
        except InputError:  # drawn values that the model does not take: the plan stands without times
            times = {}
    total = sum(times.values())
    step_of = {name: step for step in engine.plan.steps for name in step.regions}
    regions = {region.name: region for region in engine.program.regions}
    made = []
    for name, reason in reasons.items():
        step = step_of.get(name)
        us = times.get(step.name) if step is not None and len(step.regions) == 1 else None
        # a library that takes a step takes the bodies in it: those that lost are not told
        is_inside = step is not None and engine.fused.tactics[step.tactic].takes_spans
        inside = f"inside {step.tactic}: " if step is not None and is_inside else ""
        keys = () if is_inside else [key for key, *_ in subgraphs(regions[name]) if key in engine.plan.bodies]
        body = "; ".join(_body_text(engine.plan.bodies[key]) for key in keys)
        share = us / total if us is not None and total else None
        made.append(Island(name, regions[name].op_types, inside + reason, body, us, share))
    return tuple(made)


def _body_text(plan: Plan) -> str:
    """How a body was planned, in one line."""
    ops = sum(len(step.op_types) for step in plan.steps)
    tactics = Counter(step.tactic for step in plan.steps)
    listed = ", ".join(f"{tactic} ×{n}" if n > 1 else tactic for tactic, n in tactics.most_common())
    return f"{plan.model.rpartition('.')[2]}: {ops} ops in {len(plan.steps)} steps ({listed})"
