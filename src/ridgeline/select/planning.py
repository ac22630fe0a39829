"""From a selection to the frozen plan: steps with their provenance, what lost, what was not fused."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.base.choices import Refusal
from ridgeline.frontend.from_onnx import Loaded
from ridgeline.frontend.ports import ports
from ridgeline.frontend.types import half_type
from ridgeline.ir.sites import merge
from ridgeline.plan.make import candidates, reason, region_note, step_of
from ridgeline.plan.plan import Memory, Plan, RegionNote, Step
from ridgeline.select.context import Selection, SelectionContext
from ridgeline.select.shapes import Shapes

# the types of the model decide; fp32 is what is left of the option
HALVES = {"float16": "fp16", "bfloat16": "bf16"}


def make_plan(
    loaded: Loaded,
    context: SelectionContext,
    shapes: Shapes,
    selection: Selection,
    refusals: Sequence[Refusal],
) -> Plan:
    ranked = candidates(selection.alternatives) if selection.alternatives is not None else ()
    hosts = [n for r in context.program.regions if context.inferred.is_host(r) for n in r.outputs]
    return Plan(
        model=loaded.name,
        target=context.target,
        precision=HALVES.get(half_type(loaded.original), context.options.precision),
        inputs=shapes.inputs,
        outputs=ports(loaded.model.graph.outputs, what="output"),
        guards=shapes.guards,
        profile=dict(shapes.profile.shapes),
        value_profile=dict(shapes.profile.values),
        planned_shapes=dict(shapes.opt),
        steps=planned_steps(context, selection),
        memory=Memory(0, 0, 0, 0, 0, 0),
        regions=region_notes(context, selection),
        host_values=tuple(hosts),
        refusals=tuple(refusals),
        alternatives=ranked,
        waits=context.options.deterministic or context.options.new_shapes == "wait",
        pads=context.options.pad,
        bodies=context.islands.plans if context.islands is not None else {},
        why=reason(ranked) if len(ranked) > 1 else "the only plan there is",
    )


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
