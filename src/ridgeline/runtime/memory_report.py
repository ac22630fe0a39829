"""The memory of a plan: from its bound steps, or foreseen for a machine that is not here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from ridgeline.ir.views import views_of
from ridgeline.plan.memory import StepIO, account
from ridgeline.plan.plan import Memory, Step
from ridgeline.plan.streams import Schedule, on_streams
from ridgeline.runtime.device import is_here
from ridgeline.runtime.executable import Executable
from ridgeline.runtime.instance import lay_out_steps, step_io
from ridgeline.runtime.profiles import Variant
from ridgeline.tactics.base import Footprint, Offer
from ridgeline.tactics.offer import read_offer
from ridgeline.tactics.shared_copies import held_bytes


def planned_memory(executable: Executable) -> tuple[Memory, tuple[Step, ...]]:
    """Memory at the planned shapes, and the steps with what their launches note."""
    steps = executable.steps
    if not is_here(executable.fused.target):
        return _memory(executable, *_foreseen(executable)), steps
    bound = executable.instance(executable.planned_shapes).steps
    notes = {step.index: step.launch.note for step in bound if step.launch is not None and step.launch.note}
    noted = (replace(step, notes=(notes[i],)) if i in notes else step for i, step in enumerate(steps))
    ios = {step.index: step.io for step in bound}
    return _memory(executable, ios, executable.packed_bytes), tuple(noted)


def variant_on(variant: Variant, schedule: Schedule) -> Variant:
    """The variant with its steps on these streams, whatever selection chose: to test and to measure."""
    old = variant.executable
    steps = on_streams(variant.plan.steps, schedule)
    executable = Executable(old.fused, steps, old.planned_shapes, old.islands)
    memory, steps = planned_memory(executable)
    return replace(variant, plan=replace(variant.plan, steps=steps, memory=memory), executable=executable)


def _foreseen(executable: Executable) -> tuple[dict[int, StepIO], int]:
    """What the tactics foresee of every step, by its place, and the bytes they pack: nothing is bound."""
    fused = executable.fused
    inferred = fused.inference.at(executable.planned_shapes)
    ios, packed_bytes = {}, 0
    for index, region, site in executable.sites(inferred):
        step = executable.steps[index]
        launch = None
        if not views_of(site):
            launch = Footprint(writes_out=False)  # unless it says otherwise, a library allocates
            offer = read_offer(fused.tactics[step.tactic], site)
            if isinstance(offer, Offer) and offer.footprint is not None:
                launch = offer.footprint(step.config)
            packed_bytes += launch.packed_bytes
        ios[index] = step_io(region, site, inferred, launch)
    return ios, packed_bytes


def _memory(executable: Executable, by_place: Mapping[int, StepIO], packed_bytes: int) -> Memory:
    fused, ios = executable.fused, list(by_place.values())
    inferred = fused.inference.at(executable.planned_shapes)
    return account(
        lay_out_steps(fused.program, ios, inferred, executable.schedule, list(by_place)),
        ios,
        inferred.specs,
        io_bytes=sum(spec.nbytes for spec in executable.planned_shapes.values()),
        weight_bytes=sum(t.nbytes for t in fused.weights.values()),
        packed_bytes=packed_bytes,
    )


def held_memory(variants: Sequence[Variant]) -> dict[str, int]:
    """Bytes that an engine of these variants holds, by kind: counted on a GPU, else as planned."""
    first = variants[0]
    launches = chain.from_iterable(variant.executable.launches.values() for variant in variants)
    if first.executable.fused.is_gpu:
        return first.executable.gpu_memory(launches)
    planned = first.plan.memory
    parts = {
        "weights": planned.weight_bytes,
        "packed": held_bytes(launches),
        "arena": planned.arena_bytes,
        "inputs": planned.io_bytes,
        "libraries": planned.library_bytes,
    }
    return {**parts, "total": sum(parts.values())}
