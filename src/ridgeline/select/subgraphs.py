"""The bodies of control flow, planned as the main graph is: fused, timed, each a plan of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import onnx
import onnx_ir as ir

from ridgeline.base.spec import Body, Port, TensorSpec
from ridgeline.errors import RidgelineError
from ridgeline.ir.body import ir_version_for
from ridgeline.ir.infer import type_proto
from ridgeline.kernels.elements import as_numpy
from ridgeline.passes.clean import remove_unused
from ridgeline.passes.partition import partition
from ridgeline.passes.pipeline import canonicalise
from ridgeline.plan.plan import Memory, Plan
from ridgeline.runtime.executable import Executable
from ridgeline.runtime.fused_model import FusedModel
from ridgeline.runtime.inference import Inference
from ridgeline.runtime.islands import Islands, subgraphs
from ridgeline.runtime.profiles import Variant
from ridgeline.select.context import Selection, SelectionContext
from ridgeline.select.loop import select
from ridgeline.select.planning import computed_in, planned_steps, region_notes
from ridgeline.tactics.control import first_trip
from ridgeline.tactics.cpu.ort import inside_bodies

# a body's instances are made while it runs, one for each shape that its state takes: none is planned
NO_MEMORY = Memory(0, 0, 0, 0, 0, 0)


def with_bodies(context: SelectionContext) -> SelectionContext:
    """The context with every body planned whose shapes on its first run follow from the inputs'."""
    bodies: dict[str, Variant] = {}
    keys: list[str] = []
    made: list[Selection] = []
    for region in context.fused.program.regions:
        for key, op, body in subgraphs(region):
            specs = first_trip(op, body, context.inferred.specs)
            if specs is None:
                continue
            try:
                bodies[key], inner_keys, inner_made = _plan_body(context, key, body, specs)
            except RidgelineError:  # what cannot be planned runs op by op, as any island does
                continue
            keys += inner_keys
            made += inner_made
    plans = {key: variant.plan for key, variant in bodies.items()}
    islands = Islands(context.fused, plans, lambda body, plan, fused: bodies[plan.model].executable)
    return replace(context, islands=islands, body_keys=keys, body_selections=made)


def _plan_body(
    context: SelectionContext, key: str, body: Body, specs: dict[str, TensorSpec]
) -> tuple[Variant, list[str], list[Selection]]:
    """One body planned, the cache keys that planning it used, and what was chosen in it and inside it."""
    fused = fuse_body(key, body, specs, context.fused)
    given = {name: specs[name] for name in fused.program.inputs}
    inner = with_bodies(
        replace(
            context,
            fused=fused,
            inferred=fused.inference.at(given),
            inputs=given,
            profile_corners=(),
            offers={},
        )
    )
    selection = select(inner)
    executable = Executable(fused, planned_steps(inner, selection), specs, inner.islands)
    plan = Plan(
        model=key,
        target=context.fused.target,
        precision=computed_in(inner),
        inputs=tuple(Port(name, spec.dtype, None) for name, spec in given.items()),
        outputs=(),
        profile={},
        planned_shapes=specs,
        steps=executable.steps,
        memory=NO_MEMORY,
        regions=region_notes(inner, selection),
        bodies=executable.islands.plans,
        waits=True,
    )
    keys = [*inner.body_keys, *selection.keys]
    return Variant(plan, executable), keys, [*inner.body_selections, selection]


def fuse_body(key: str, body: Body, specs: Mapping[str, TensorSpec], outer: FusedModel) -> FusedModel:
    """A body as a fused model of its own, given these values. The same call gives the same model."""
    program, weights, free = outer.program, outer.weights, body.free_names()
    graph = ir.serde.serialize_graph(body.graph)
    declared = {value.name: value for value in graph.input}
    for name, spec in specs.items():
        value = declared.get(name) or graph.input.add(name=name)
        if not value.type.tensor_type.elem_type:
            value.type.CopyFrom(type_proto(spec))
            for dim in value.type.tensor_type.shape.dim:
                dim.ClearField("dim_value")  # a state may grow; only its rank is sure
    imports = {domain: version for domain, version in program.opset_imports.items() if domain != "ridgeline"}
    proto = onnx.ModelProto(ir_version=ir_version_for(imports), graph=graph)
    proto.opset_import.extend(onnx.OperatorSetIdProto(domain=d, version=v) for d, v in imports.items())
    model = ir.from_proto(proto)
    for value in [v for v in model.graph.inputs if v.name in free and v.name in weights]:
        value.const_value = ir.tensor(as_numpy(weights[str(value.name)]), name=value.name)
        value.shape = ir.Shape(weights[str(value.name)].shape)
        model.graph.inputs.remove(value)
        model.graph.register_initializer(value)
    canonicalise(model, target=outer.target, limits=program.limits)
    inner = {str(v.name): specs[str(v.name)] for v in model.graph.inputs}
    partition(model, Inference.of(model, program.limits).at(inner), target=outer.target)
    remove_unused(model)
    tactics = {tactic.name: tactic for tactic in inside_bodies(tuple(outer.tactics.values()))}
    return FusedModel(
        model,
        Inference.of(model, program.limits),
        tactics,
        outer.target,
        outer.kernels,
        outer.notes,
        name=f"{outer.name}/{key}" if outer.name else key,
        run_parts=outer.run_parts,
    )
