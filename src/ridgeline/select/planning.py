"""From a selection to the frozen plan: steps with their provenance, what lost, what was not fused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypedDict

from ridgeline.base.choices import Candidate, Refusal
from ridgeline.base.formats import SHORT_NAMES
from ridgeline.base.spec import TF32
from ridgeline.frontend.from_onnx import Loaded
from ridgeline.frontend.ports import ports
from ridgeline.ir.provenance import layers_of
from ridgeline.ir.sites import merge
from ridgeline.plan.make import candidates, reason, work_of
from ridgeline.plan.plan import Guess, Plan, RegionNote, Step
from ridgeline.plan.streams import on_streams
from ridgeline.runtime.executable import Executable
from ridgeline.runtime.memory_report import planned_memory
from ridgeline.runtime.profiles import Variant
from ridgeline.select.context import Selection, SelectionContext, StepChoice
from ridgeline.select.shapes import Shapes
from ridgeline.tactics.cache import Entry

# weights that are written for another process to plan with; a model of ONNX is not read beyond twice as many
MOST_BYTES = 1 << 30


class WholePlans(TypedDict):
    alternatives: tuple[Candidate, ...]
    why: str


def plan_variant(
    loaded: Loaded,
    context: SelectionContext,
    shapes: Shapes,
    selection: Selection,
    refusals: Sequence[Refusal],
) -> Variant:
    """The plan of one profile, with its memory, and the executable that memory was found with."""
    executable = Executable(context.fused, planned_steps(context, selection), shapes.opt, context.islands)
    memory, steps = planned_memory(executable)
    hosts = [n for r in context.fused.program.regions if context.inferred.is_host(r) for n in r.outputs]
    plan = Plan(
        model=loaded.name,
        target=context.fused.target,
        precision=computed_in(context),
        inputs=shapes.inputs,
        outputs=ports(loaded.model.graph.outputs, what="output"),
        guards=shapes.guards,
        profile=dict(shapes.profile.shapes),
        value_profile=dict(shapes.profile.values),
        part=dict(shapes.part),
        planned_shapes=dict(shapes.opt),
        steps=steps,
        memory=memory,
        slow_ops=slow_ops(steps),
        regions=region_notes(context, selection),
        host_values=tuple(hosts),
        refusals=(*refusals, *selection.refusals),
        waits=context.options.deterministic or context.options.new_shapes == "wait",
        pads=context.options.pad,
        layers=layers_of(loaded.original, (name for step in steps for name in step.sources)),
        bodies=executable.islands.plans,
        guess=guess_of(context, shapes, selection),
        **whole_plans(selection.alternatives),
    )
    return Variant(plan, executable, is_further=shapes.is_further)


def whole_plans(compared: Entry | None) -> WholePlans:
    """What a plan says of the whole plans that it was compared with."""
    ranked = candidates(compared) if compared is not None else ()
    return {"alternatives": ranked, "why": reason(ranked) if len(ranked) > 1 else "the only plan there is"}


def guess_of(context: SelectionContext, shapes: Shapes, selection: Selection) -> Guess | None:
    """How to choose again at real shapes, where these were guessed and times taken there would count."""
    options, target = context.options, context.fused.target
    has_choice = any(
        sum(candidate.refused is None for candidate in entry.candidates) > 1
        for entry in (*selection.entries.values(), selection.alternatives)
        if entry is not None
    )
    is_settled = options.lock is not None or options.deterministic or options.new_shapes == "wait"
    is_open = shapes.is_guess and not is_settled and not any(port.is_non_tensor for port in shapes.inputs)
    if not is_open or shapes.sized_by or not (context.timer.measures and options.level and has_choice):
        return None
    weight_bytes = sum(tensor.nbytes for tensor in context.fused.weights.values())
    if target.traits.is_gpu or weight_bytes > MOST_BYTES:
        return None
    return Guess(options.level, options.workspace_bytes, options.time_limit)


def computed_in(context: SelectionContext) -> str:
    """The float type that most ops make; or TF32, if products may round to it."""
    ops, _ = context.fused.program.flat_ops(context.fused.program.regions)
    if any(op.math == TF32 for op in ops):
        return TF32
    made = Counter(
        spec.dtype
        for op in ops
        for name in op.outputs
        if op.op_type != "Cast" and (spec := context.inferred.specs.get(name)) is not None and spec.is_float
    )
    return SHORT_NAMES.get(made.most_common(1)[0][0] if made else "", "fp32")


def slow_ops(steps: Sequence[Step]) -> tuple[str, ...]:
    """What launches noted: ops that run slowly."""
    return tuple(dict.fromkeys(note for step in steps for note in step.notes))


def planned_steps(context: SelectionContext, selection: Selection) -> tuple[Step, ...]:
    steps = tuple(_planned_step(context, choice) for choice in selection.steps)
    return steps if selection.schedule is None else on_streams(steps, selection.schedule)


def _planned_step(context: SelectionContext, choice: StepChoice) -> Step:
    region, ranked = merge(context.fused.program, choice.regions), candidates(choice.entry)
    kernels = context.kernels(choice.site, choice.tactic, choice.config)
    return Step(
        name=region.name,
        regions=tuple(part.name for part in choice.regions),
        op_types=region.op_types,
        sources=region.sources,
        inputs=region.inputs,
        outputs=region.outputs,
        tactic=choice.tactic,
        config=dict(choice.config),
        site=choice.site.key,
        work=work_of(choice.site),
        median_us=ranked[0].median_us,
        predicted_us=ranked[0].predicted_us,
        losers=ranked[1:],
        why=reason(ranked),
        kernels=tuple(kernel.digest for kernel in kernels),
    )


def region_notes(context: SelectionContext, selection: Selection) -> tuple[RegionNote, ...]:
    regions = [region for region in context.fused.program.regions if region.name in selection.sites]
    return tuple(
        RegionNote(
            name=region.name,
            function=region.function,
            op_types=region.op_types,
            sources=region.sources,
            site=selection.sites[region.name].key,
            work=work_of(selection.sites[region.name]),
            candidates=candidates(entry) if (entry := selection.entries.get(region.name)) else (),
        )
        for region in regions
    )
