"""Islands: steps whose shapes or number of runs the data decides, between segments that are planned.

Subgraphs of control flow are engines of their own: canonicalised, fused and planned once, with an instance
for every set of shapes that comes back; a shape seen for the first time runs on the floor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from torch import Tensor

from ridgeline.base.spec import Body, Op, Site
from ridgeline.errors import PlanError
from ridgeline.ir.body import Region
from ridgeline.ir.infer import Inferred
from ridgeline.ir.op_row import Trait
from ridgeline.ir.ops import has
from ridgeline.plan.plan import Plan
from ridgeline.runtime.fused_model import FusedModel
from ridgeline.runtime.planned_body import BodyExecutable, PlannedBody
from ridgeline.tactics.aten import compile_body, own_memory, reads_of
from ridgeline.tactics.base import Launch
from ridgeline.tactics.control import CONTROL_OPS, RunBody, cycle_of
from ridgeline.tactics.fallback import Surroundings, placed

BindBody: TypeAlias = Callable[[Body, Plan, FusedModel], BodyExecutable]


def control_op(region: Region) -> Op | None:
    """The op of a region that is control flow, and nothing else."""
    op = region.body.ops[0] if len(region.body.ops) == 1 else None
    return op if op is not None and op.key in CONTROL_OPS else None


def subgraphs(region: Region) -> Iterator[tuple[str, Op, Body]]:
    """The bodies of a control-flow region, each with the key of its plan and the op that runs it."""
    op = control_op(region)
    if op is None:
        return
    for name, attr in op.attrs.items():
        if isinstance(attr, Body) and attr.graph is not None:
            yield f"{region.name}.{name}", op, attr


class Islands:
    """The planned bodies of one executable, and the launches of the steps that run them."""

    def __init__(
        self, fused: FusedModel, plans: Mapping[str, Plan], bind_body: BindBody | None = None
    ) -> None:
        self._fused, self.plans, self._bind_body = fused, dict(plans), bind_body
        self._opset_imports, self._limits = fused.program.opset_imports, fused.program.limits
        self._found: dict[str, BodyExecutable | None] = {}

    def find(self, key: str, body: Body) -> BodyExecutable | None:
        """The executable of a body, bound when a step first runs it; None where it runs op by op."""
        if self._bind_body is not None and key in self.plans and key not in self._found:
            plan = self.plans[key]
            try:
                self._found[key] = self._bind_body(body, plan, self._fused)
            except (KeyError, PlanError):
                self._found[key] = None
                note = f"{plan.model}: fused otherwise by this version, so it runs op by op"
                self._fused.notes.append(note)
        return self._found.get(key)

    def found(self) -> list[tuple[str, BodyExecutable]]:
        """Every planned body with its key."""
        made = []
        for region in self._fused.program.regions if self.plans else ():
            for key, _, body in subgraphs(region):
                executable = self.find(key, body)
                if executable is not None:
                    made.append((key, executable))
        return made

    def bind(self, region: Region, site: Site) -> Launch | None:
        """A launch for control flow with a planned body; None for anything else."""
        op = control_op(region)
        planned = {id(body.graph): self.find(key, body) for key, _, body in subgraphs(region)}
        if op is None or not any(planned.values()):
            return None

        around = Surroundings.of(site, self._opset_imports, self._limits)
        cycle, tell = cycle_of(op), self._fused.tell

        def compile_planned(body: Body) -> tuple[RunBody, list[str]]:
            compiled, notes = compile_body(body, around)
            floor = compiled if around.is_host else _there(compiled, around.device)
            inner = planned.get(id(body.graph))
            if inner is None:
                return floor, notes
            return PlannedBody(inner, body.inputs, floor, cycle, tell), notes

        reads = reads_of(op)
        run, notes = CONTROL_OPS[op.key](op, reads, compile_planned, self._limits)
        places = [site.body.inputs.index(name) if name else -1 for name in reads]
        wanted = [op.outputs.index(name) for name in site.body.outputs]

        def call(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> Sequence[Tensor]:
            given = [*inputs, None]
            results = run([given[place] for place in places])
            made = [placed(results[place], around.device) for place in wanted]
            return own_memory([m.contiguous() if isinstance(m, Tensor) else m for m in made], inputs)

        return Launch(call, note="; ".join(notes), wants_host_values=True, why_eager=decided_by_data(op))


def _there(run: RunBody, device: str) -> RunBody:
    """A body that finds on the device what comes from the host, such as the count of trips."""
    return lambda values: run([placed(value, device) for value in values])


def decided_by_data(op: Op) -> str:
    """Why no plan and no graph holds the whole of a control-flow op."""
    said = {"If": "data says which branch runs", "Loop": "data says how often the body runs"}
    return f"{op.op_type}: {said.get(op.op_type, 'the body runs once for each slice or item')}"


def island_reason(region: Region, inferred: Inferred) -> str | None:
    """Why a step cannot be planned; None for one that can."""
    op = control_op(region)
    if op is not None:
        return decided_by_data(op)
    if not inferred.is_non_tensor(region):
        return None
    for name in (*region.inputs, *region.outputs):
        kind = inferred.non_tensor_kind(name)
        if kind is not None:
            return f"{name!r} is {kind}, for which no memory is planned"
    for inner in region.body.ops:
        if has(inner, Trait.SIZED_BY_DATA):
            return f"{inner.op_type}: the number of results depends on data"
    unknown = [name for name in region.inputs if name and name not in inferred.specs]
    if unknown:
        return f"the shape of {unknown[0]!r} depends on data"
    return f"{region.body.ops[0].op_type}: an operand decides the shape of the result"
