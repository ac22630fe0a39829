"""The memory of a plan: from its bound steps, or foreseen for a machine that is not here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ridgeline.ir.views import views_of
from ridgeline.plan.memory import account
from ridgeline.plan.plan import Memory, Step
from ridgeline.runtime.device import is_here
from ridgeline.runtime.executable import Executable
from ridgeline.runtime.instance import lay_out_steps, step_io
from ridgeline.runtime.profiles import Variant
from ridgeline.tactics.base import Footprint
from ridgeline.tactics.offer import Offer, read_offer


def planned_memory(executable: Executable) -> tuple[Memory, tuple[Step, ...]]:
    """Memory at the planned shapes, and the steps with what their launches note."""
    if is_here(executable.fused.target):
        return _bound_memory(executable)
    return _foreseen_memory(executable), executable.steps


def _bound_memory(executable: Executable) -> tuple[Memory, tuple[Step, ...]]:
    instance = executable.instance(executable.planned_shapes)
    memory = account(
        instance.layout,
        [step.io for step in instance.steps],
        instance.inferred.specs,
        io_bytes=sum(t.nbytes for t in instance.inputs.values()),
        weight_bytes=sum(t.nbytes for t in executable.fused.weights.values()),
        packed_bytes=executable.packed_bytes,
    )
    notes = {s.index: s.launch.note for s in instance.steps if s.launch is not None and s.launch.note}
    steps = enumerate(executable.steps)
    return memory, tuple(replace(step, notes=(notes[i],)) if i in notes else step for i, step in steps)


def _foreseen_memory(executable: Executable) -> Memory:
    """As its tactics foresee it; nothing is bound and no GPU is touched."""
    fused = executable.fused
    inferred = fused.inference.at(executable.planned_shapes)
    ios, packed_bytes = [], 0
    for index, region, site in executable.sites(inferred):
        step = executable.steps[index]
        launch = None
        if not views_of(site):
            launch = Footprint(writes_out=False)  # unless it says otherwise, a library allocates
            offer = read_offer(fused.tactics[step.tactic], site)
            if isinstance(offer, Offer) and offer.footprint is not None:
                launch = offer.footprint(step.config)
            packed_bytes += launch.packed_bytes
        ios.append(step_io(region, site, inferred, launch))
    return account(
        lay_out_steps(fused.program, ios, inferred),
        ios,
        inferred.specs,
        io_bytes=sum(spec.nbytes for spec in executable.planned_shapes.values()),
        weight_bytes=sum(t.nbytes for t in fused.weights.values()),
        packed_bytes=packed_bytes,
    )


def held_memory(variants: Sequence[Variant]) -> dict[str, int]:
    """Bytes that an engine of these variants holds, by kind: counted on a GPU, else as planned."""
    first = variants[0]
    if first.executable.fused.is_cuda:
        return first.executable.gpu_memory()
    planned = first.plan.memory
    parts = {
        "weights": planned.weight_bytes,
        "packed": sum(variant.executable.packed_bytes for variant in variants),
        "arena": planned.arena_bytes,
        "inputs": planned.io_bytes,
        "libraries": planned.library_bytes,
    }
    return {**parts, "total": sum(parts.values())}
