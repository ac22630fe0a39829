"""Memory as the plan states it: from the bound engine, or foretold for a GPU that is not here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ridgeline.passes.views import views_of
from ridgeline.plan.memory import account
from ridgeline.plan.plan import Plan
from ridgeline.runtime.engine import Engine
from ridgeline.runtime.instance import lay_out_steps, settle_program, step_io
from ridgeline.spec import TensorSpec
from ridgeline.tactics.base import Footprint, Foretells


def with_memory(engine: Engine, inputs: Mapping[str, TensorSpec]) -> Plan:
    """The plan with what binding it at the planned shapes tells: memory, and ops that run slowly."""
    instance = engine.instance(dict(inputs))
    memory = account(
        instance.layout,
        [step.io for step in instance.steps],
        instance.settled.specs,
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
    settled = settle_program(engine.program, inputs, engine.weights)
    ios, packed_bytes = [], 0
    for index, region, site in engine.sites(settled):
        step = engine.plan.steps[index]
        tactic = tactics[step.tactic]
        launch = None
        if not views_of(site):
            launch = Footprint(writes_out=False)  # unless it says otherwise, a library allocates
            if isinstance(tactic, Foretells):
                launch = tactic.footprint(site, step.config)
            packed_bytes += launch.packed_bytes
        ios.append(step_io(region, site, settled, launch))
    memory = account(
        lay_out_steps(engine.program, ios, settled),
        ios,
        settled.specs,
        io_bytes=sum(spec.nbytes for spec in inputs.values()),
        weight_bytes=sum(t.nbytes for t in engine.weights.values()),
        packed_bytes=packed_bytes,
    )
    return replace(engine.plan, memory=memory)
