"""The bodies of control flow, planned as the main graph is: fused, timed, each a plan of its own."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.base.spec import Body, Port, TensorSpec
from ridgeline.errors import RidgelineError
from ridgeline.ir.body import Region
from ridgeline.plan.plan import Memory, Plan
from ridgeline.plan.report import Report
from ridgeline.runtime.engine import Engine
from ridgeline.runtime.inference import Inference
from ridgeline.runtime.islands import BodyEngine, Islands, entry_specs, fused_body, subgraphs
from ridgeline.select.context import Selection, SelectionContext
from ridgeline.select.loop import select
from ridgeline.select.planning import planned_steps, region_notes
from ridgeline.tactics.cpu.ort import inside_bodies


def with_bodies(context: SelectionContext) -> SelectionContext:
    """The context with every body planned whose shapes on its first run follow from the inputs'."""
    engines: dict[str, BodyEngine] = {}
    keys: list[str] = []
    for region in context.program.regions:
        for key, body in subgraphs(region):
            specs = entry_specs(region, body, context.inferred)
            if specs is None:
                continue
            try:
                inner, selection, engine = _plan_body(context, region, key, body, specs)
            except RidgelineError:  # what cannot be planned runs op by op, as any island does
                continue
            engines[key] = engine
            keys += [*inner.body_keys, *selection.keys]
    return replace(context, islands=Islands(context.program, engines), body_keys=keys)


def _plan_body(
    context: SelectionContext, region: Region, key: str, body: Body, specs: dict[str, TensorSpec]
) -> tuple[SelectionContext, Selection, Engine]:
    model, given = fused_body(body, specs, context.inference.weights, context.program, context.target)
    inference = Inference.of(model, context.options.limits)
    inner = with_bodies(
        replace(
            context,
            inference=inference,
            inferred=inference.at(given),
            inputs=given,
            weights=inference.weights,
            profile_corners=(),
            tactics=inside_bodies(context.tactics),
            offers={},
        )
    )
    selection = select(inner)
    plan = Plan(
        model=key,
        target=context.target,
        precision=context.options.precision,
        inputs=tuple(Port(name, spec.dtype, None) for name, spec in given.items()),
        outputs=(),
        profile={},
        planned_shapes=specs,
        steps=planned_steps(inner, selection),
        memory=Memory(0, 0, 0, 0, 0, 0),
        regions=region_notes(inner, selection),
        bodies=inner.islands.plans if inner.islands is not None else {},
        waits=True,
    )
    engine = Engine(plan, Report(), model, inference, inner.tactics, islands=inner.islands)
    return inner, selection, engine
