"""A plan against the graph it came with: what cannot be true of both is refused before anything is bound.

A plan may come from a stranger's file. Types were checked when it was read; here are names, order and sizes.
Configs are compared with what their tactics offer when a step is bound, since only then its site is known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ridgeline.base.spec import ITEM_BITS, TRAITS, Port, TensorSpec
from ridgeline.errors import PlanError
from ridgeline.options import MAX_DIM, MAX_THREADS, DimRange, machine_bytes
from ridgeline.plan.plan import Plan
from ridgeline.plan.streams import schedule_problems

if TYPE_CHECKING:  # `ridge show` checks a plan without importing what reads graphs
    from ridgeline.ir.body import Program, Region


def check_steps(plan: Plan, program: Program, steps: Sequence[Region], tactics: Collection[str]) -> None:
    """Each region in one step, its inputs made before it; `steps` are the plan's own, merged.

    Regions in no step must be known on the host before work starts, which an instance checks at its shapes.
    """
    taken: set[str] = set()
    wrong = []
    for step in plan.steps:
        wrong += [f"{step.name}: region {name!r} is in two steps" for name in step.regions if name in taken]
        taken.update(step.regions)
        if step.tactic not in tactics:
            wrong.append(f"{step.name}: there is no tactic {step.tactic!r}")
    here = {*program.inputs, *program.weights, ""}
    here.update(n for region in program.regions if region.name not in taken for n in region.outputs)
    for step, region in zip(plan.steps, steps, strict=True):
        late = [name for name in region.inputs if name not in here]
        wrong += [f"{step.name}: reads {name!r}, which no step before it makes" for name in late]
        if (step.inputs, step.outputs) != (region.inputs, region.outputs):
            wrong.append(f"{step.name}: other inputs or outputs than its regions")
        here.update(region.outputs)
    wrong += [f"output {name!r} is made by no step" for name in program.outputs if name not in here]
    wrong += schedule_problems(plan.steps, may_fork=plan.target.traits.is_gpu)
    if wrong:
        raise PlanError(
            f"the steps of the plan for {plan.model!r} do not fit its graph",
            rows=wrong,
            help="the file was changed, or made by another version: ridge build MODEL.onnx",
        )


def check_ports(plan: Plan, program: Program) -> None:
    """Inputs, outputs and planned shapes as the graph has them."""
    _refuse(plan, _wrong_ports(plan, program))


def check_sizes(plan: Plan) -> None:
    """Sizes that can be, and no more bytes planned than the machine has. Needs no graph."""
    for profile in (plan, *plan.others):
        _refuse(plan, _wrong_parts(profile))
    for part in _every_plan(plan):
        wrong = (*_wrong_target(part), *_wrong_memory(part), *_wrong_shapes(part.planned_shapes))
        _refuse(plan, wrong)


def _refuse(plan: Plan, wrong: Iterable[str]) -> None:
    if rows := [*wrong]:
        raise PlanError(
            f"the plan for {plan.model!r} has sizes that cannot be",
            rows=rows,
            help="the file was changed: ridge build MODEL.onnx makes it again",
        )


def _every_plan(plan: Plan) -> Iterator[Plan]:
    yield plan
    for inner in (*plan.others, *plan.parts, *plan.bodies.values()):
        yield from _every_plan(inner)


def _wrong_parts(plan: Plan) -> Iterator[str]:
    """Parts are of one profile and lie inside it: it is the profile that callers are held to."""
    for part in (plan, *plan.parts):
        if part.profile != plan.profile:
            yield f"a part is of another profile: {_sizes(part.profile)}, want {_sizes(plan.profile)}"
        for name, ranges in part.part.items():
            whole = plan.profile.get(name, ())
            is_inside = len(ranges) == len(whole) and all(
                w.min <= r.min and r.max <= w.max for r, w in zip(ranges, whole, strict=True)
            )
            if not is_inside:
                yield f"a part takes {_sizes({name: ranges})}, the profile {_sizes({name: whole})}"


def _sizes(shapes: Mapping[str, Sequence[DimRange]]) -> str:
    return " ".join(f"{name}={'x'.join(map(str, ranges)) or 'no dims'}" for name, ranges in shapes.items())


def _wrong_ports(plan: Plan, program: Program) -> Iterator[str]:
    for part in plan.every_plan:
        for what, ports, names in (
            ("inputs", part.inputs, program.inputs),
            ("outputs", part.outputs, program.outputs),
        ):
            if tuple(port.name for port in ports) != names:
                yield f"{what}: {[port.name for port in ports]}, the graph has {list(names)}"
        ports_by_name = {port.name: port for port in part.inputs if not port.is_non_tensor}
        if part.planned_shapes.keys() != ports_by_name.keys():
            yield f"planned shapes are of {sorted(part.planned_shapes)}, want {sorted(ports_by_name)}"
            continue
        for name, spec in part.planned_shapes.items():
            yield from _wrong_input(ports_by_name[name], spec)
        for name, ranges in (*part.profile.items(), *part.part.items(), *part.value_profile.items()):
            if name not in ports_by_name:
                yield f"profile: there is no input {name!r}"
            elif name not in part.value_profile and len(ranges) != len(part.planned_shapes[name].shape):
                yield f"profile of {name!r}: {len(ranges)} dims, the planned shape has another number"


def _wrong_input(port: Port, spec: TensorSpec) -> Iterator[str]:
    dims = spec.shape if port.dims is None else port.dims
    if (
        port.dtype != spec.dtype
        or len(dims) != len(spec.shape)
        or any(isinstance(d, int) and d != size for d, size in zip(dims, spec.shape, strict=True))
    ):
        yield f"planned shape of {port.name!r}: {spec}, the input is {port}"


def _wrong_shapes(specs: dict[str, TensorSpec]) -> Iterator[str]:
    total = 0
    for name, spec in specs.items():
        if spec.dtype not in ITEM_BITS or spec.layout != "contiguous":
            yield f"planned shape of {name!r}: {spec}"
        elif not all(0 <= size <= MAX_DIM for size in spec.shape):
            yield f"planned shape of {name!r}: {spec}, want sizes from 0 to {MAX_DIM:,}"
        elif spec.value is not None and len(spec.value) != spec.numel:
            yield f"planned values of {name!r}: {len(spec.value)} of them, the shape holds {spec.numel}"
        else:
            total += spec.nbytes
    if total > machine_bytes():
        yield f"planned inputs take {total:,} bytes, this machine has {machine_bytes():,}"


def _wrong_target(plan: Plan) -> Iterator[str]:
    target = plan.target
    if not 1 <= target.threads <= MAX_THREADS:
        yield f"threads: {target.threads}, want 1 to {MAX_THREADS}"
    if target.kind not in TRAITS:
        yield f"target: {target}, want one of {', '.join(TRAITS)}"
    elif (known := target.traits.architectures) and target.arch not in known:
        yield f"target: {target}, want {', '.join(f'{target.kind}:{arch}' for arch in known)}"


def _wrong_memory(plan: Plan) -> Iterator[str]:
    memory = plan.memory
    for name in ("arena", "unshared", "io", "weight", "packed", "library"):
        if (size := getattr(memory, f"{name}_bytes")) < 0:
            yield f"memory: {name}_bytes is {size:,}"
    yield from (f"memory: live_bytes holds {size:,}" for size in memory.live_bytes if size < 0)
    for block in memory.blocks:
        if min(block.nbytes, block.offset, block.first, block.last) < 0:
            yield f"memory: block of {block.value!r} has a negative place or size"
