"""Memory as the plan states it: from the bound engine, or foretold for a GPU that is not here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from ridgeline.base.spec import TensorSpec
from ridgeline.errors import InputError
from ridgeline.ir.views import views_of
from ridgeline.plan.memory import account
from ridgeline.plan.plan import Plan
from ridgeline.plan.report import Island
from ridgeline.runtime.engine import Engine
from ridgeline.runtime.instance import lay_out_steps, step_io
from ridgeline.runtime.islands import island_reason, subgraphs
from ridgeline.tactics.base import Footprint
from ridgeline.tactics.offer import Offer, read_offer

# enough for a median, and quick where an island takes long
ISLAND_ROUNDS = 5


def with_memory(engine: Engine, inputs: Mapping[str, TensorSpec]) -> Plan:
    """The plan with what binding it at the planned shapes tells: memory, and ops that run slowly."""
    instance = engine.instance(dict(inputs))
    memory = account(
        instance.layout,
        [step.io for step in instance.steps],
        instance.inferred.specs,
        io_bytes=sum(t.nbytes for t in instance.inputs.values()),
        weight_bytes=sum(t.nbytes for t in engine.weights.values()),
        packed_bytes=engine.packed_bytes,
    )
    notes = {s.index: s.launch.note for s in instance.steps if s.launch is not None and s.launch.note}
    steps = tuple(
        replace(step, notes=(notes[i],)) if i in notes else step for i, step in enumerate(engine.plan.steps)
    )
    return replace(engine.plan, steps=steps, memory=memory, slow_ops=tuple(dict.fromkeys(notes.values())))


def with_foreseen_memory(engine: Engine, inputs: Mapping[str, TensorSpec]) -> Plan:
    """The plan with the memory that its tactics foretell; nothing is bound and no GPU is touched."""
    tactics = {tactic.name: tactic for tactic in engine.tactics}
    inferred = engine.inference.at(inputs)
    ios, packed_bytes = [], 0
    for index, region, site in engine.sites(inferred):
        step = engine.plan.steps[index]
        launch = None
        if not views_of(site):
            launch = Footprint(writes_out=False)  # unless it says otherwise, a library allocates
            offer = read_offer(tactics[step.tactic], site)
            if isinstance(offer, Offer) and offer.footprint is not None:
                launch = offer.footprint(step.config)
            packed_bytes += launch.packed_bytes
        ios.append(step_io(region, site, inferred, launch))
    memory = account(
        lay_out_steps(engine.program, ios, inferred),
        ios,
        inferred.specs,
        io_bytes=sum(spec.nbytes for spec in inputs.values()),
        weight_bytes=sum(t.nbytes for t in engine.weights.values()),
        packed_bytes=packed_bytes,
    )
    return replace(engine.plan, memory=memory)


def state_islands(engine: Engine, *, is_timed: bool) -> tuple[Island, ...]:
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
            times = dict(engine.profile(engine.example_inputs(0), rounds=ISLAND_ROUNDS))
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
        is_inside = step is not None and (len(step.regions) > 1 or step.tactic == "ort")
        inside = f"inside {step.tactic}: " if step is not None and is_inside else ""
        keys = () if is_inside else [key for key, _ in subgraphs(regions[name]) if key in engine.plan.bodies]
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
