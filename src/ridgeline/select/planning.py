"""From a selection to the frozen plan: steps with their provenance, what lost, what was not fused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ridgeline.base.choices import Refusal
from ridgeline.base.spec import TensorSpec
from ridgeline.frontend.from_onnx import Loaded
from ridgeline.frontend.ports import ports
from ridgeline.frontend.types import half_type
from ridgeline.ir.sites import merge
from ridgeline.plan.make import candidates, reason, region_note, step_of
from ridgeline.plan.plan import Plan, RegionNote, Step
from ridgeline.runtime.executable import Executable
from ridgeline.runtime.memory_report import planned_memory
from ridgeline.runtime.profiles import Variant
from ridgeline.select.context import Selection, SelectionContext
from ridgeline.select.shapes import Shapes

# the types of the model decide; fp32 is what is left of the option
HALVES = {"float16": "fp16", "bfloat16": "bf16"}


def plan_variant(
    loaded: Loaded,
    context: SelectionContext,
    shapes: Shapes,
    selection: Selection,
    refusals: Sequence[Refusal],
) -> Variant:
    """The plan of one profile, with its memory, and the executable that memory was found with."""
    executable = executable_of(context, planned_steps(context, selection), shapes.opt)
    memory, steps = planned_memory(executable)
    ranked = candidates(selection.alternatives) if selection.alternatives is not None else ()
    hosts = [n for r in context.program.regions if context.inferred.is_host(r) for n in r.outputs]
    plan = Plan(
        model=loaded.name,
        target=context.target,
        precision=HALVES.get(half_type(loaded.original), context.options.precision),
        inputs=shapes.inputs,
        outputs=ports(loaded.model.graph.outputs, what="output"),
        guards=shapes.guards,
        profile=dict(shapes.profile.shapes),
        value_profile=dict(shapes.profile.values),
        planned_shapes=dict(shapes.opt),
        steps=steps,
        memory=memory,
        slow_ops=slow_ops(steps),
        regions=region_notes(context, selection),
        host_values=tuple(hosts),
        refusals=tuple(refusals),
        alternatives=ranked,
        waits=context.options.deterministic or context.options.new_shapes == "wait",
        pads=context.options.pad,
        bodies=executable.islands.plans,
        why=reason(ranked) if len(ranked) > 1 else "the only plan there is",
    )
    return Variant(plan, executable)


def executable_of(
    context: SelectionContext, steps: Sequence[Step], planned_shapes: Mapping[str, TensorSpec]
) -> Executable:
    """Steps over the model that they were chosen for."""
    return Executable(context.fused, steps, planned_shapes, context.islands)


def slow_ops(steps: Sequence[Step]) -> tuple[str, ...]:
    """What launches noted: ops that run slowly."""
    return tuple(dict.fromkeys(note for step in steps for note in step.notes))


def planned_steps(context: SelectionContext, selection: Selection) -> tuple[Step, ...]:
    return tuple(
        step_of(
            merge(context.program, choice.regions),
            choice.regions,
            tactic=choice.tactic,
            config=choice.config,
            site=choice.site,
            entry=choice.entry,
            kernels=[k.digest for k in context.kernels(choice.site, choice.tactic, choice.config)],
        )
        for choice in selection.steps
    )


def region_notes(context: SelectionContext, selection: Selection) -> tuple[RegionNote, ...]:
    return tuple(
        region_note(region, selection.sites[region.name], selection.entries.get(region.name))
        for region in context.program.regions
        if region.name in selection.sites
    )
