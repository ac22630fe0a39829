"""Islands: steps whose shapes or number of runs the data decides, between segments that are planned.

Subgraphs of control flow are engines of their own: canonicalised, fused and planned once, with an instance
for every set of shapes that comes back; a shape seen for the first time runs on the floor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from torch import Tensor

from ridgeline.base.spec import Body, Op, Site, TensorSpec
from ridgeline.errors import InputError, LimitError, PlanError
from ridgeline.ir.body import Region
from ridgeline.ir.infer import Inferred
from ridgeline.ir.op_row import Trait
from ridgeline.ir.ops import has
from ridgeline.kernels.elements import cloned, fill
from ridgeline.plan.plan import Plan
from ridgeline.runtime.fused_model import FusedModel
from ridgeline.runtime.instance import Instance
from ridgeline.tactics.aten import compile_body, own_memory, reads_of
from ridgeline.tactics.base import Launch
from ridgeline.tactics.control import CONTROL_OPS, RunBody
from ridgeline.tactics.fallback import Surroundings

# shapes of one body that keep an instance; a state that grows for longer runs on the floor from there on
KEPT_BODIES = 64


class BodyExecutable(Protocol):
    """What an island needs of the executable of a subgraph."""

    fused: FusedModel
    planned_shapes: dict[str, TensorSpec]

    def instance(self, inputs: Mapping[str, TensorSpec], *, compiles: bool = True) -> Instance: ...


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


class PlannedBody:
    """A body that was planned, as a function from its inputs to its outputs. Every thread has its own."""

    reuses_memory = True

    def __init__(self, executable: BodyExecutable, names: Sequence[str], n_own: int, floor: RunBody) -> None:
        self._executable, self._floor = executable, floor
        self._inputs, self._outputs = executable.fused.program.inputs, executable.fused.program.outputs
        self._places = [names.index(name) for name in self._inputs]
        self._captured = [place >= n_own for place in self._places]
        self._planned = tuple(executable.planned_shapes[name].shape for name in self._inputs)
        self._local = threading.local()

    def begin(self) -> None:
        """What is captured may be new from here on."""
        self._local.loaded = None

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        given = [values[place] for place in self._places]
        instance = self._instance(tuple(tuple(value.shape) for value in given))
        if instance is None:
            return self._floor(values)
        is_loaded = getattr(self._local, "loaded", None) is instance
        for target, value, is_captured in zip(instance.inputs.values(), given, self._captured, strict=True):
            if not (is_captured and is_loaded):
                fill(target, value)
        self._local.loaded = instance
        instance.execute()
        inputs = {tensor.data_ptr() for tensor in instance.inputs.values()}
        made = [instance.result(name) for name in self._outputs]
        # an output that is an input would be written over while the next trip is loaded
        return [cloned(m) if isinstance(m, Tensor) and m.data_ptr() in inputs else m for m in made]

    def _instance(self, key: tuple[tuple[int, ...], ...]) -> Instance | None:
        """The one for these shapes, from their first run on: the same input then gives the same bits again.

        None where there are too many, for as long as these are kept.
        """
        local = self._local
        if not hasattr(local, "instances"):
            local.instances = {}
        found: Instance | None = local.instances.get(key)
        if found is not None or len(local.instances) >= KEPT_BODIES:
            return found
        specs = self._executable.planned_shapes
        given = {n: TensorSpec(specs[n].dtype, shape) for n, shape in zip(self._inputs, key, strict=True)}
        try:
            # a state that grows has a shape for every trip: a compiler would never keep up with it
            made = self._executable.instance(given, compiles=key == self._planned)
        except (InputError, LimitError):  # the floor takes it, or says what is wrong
            return None
        local.instances[key] = made
        return made


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

    def bind(self, region: Region, site: Site) -> Launch | None:
        """A launch for control flow with a planned body; None for anything else."""
        op = control_op(region)
        planned = {id(body.graph): self.find(key, body) for key, _, body in subgraphs(region)}
        if op is None or not any(planned.values()):
            return None

        around = Surroundings(site.specs, self._opset_imports, limits=self._limits)

        def compile_planned(body: Body) -> tuple[RunBody, list[str]]:
            floor, notes = compile_body(body, around)
            n_own = len(body.graph.inputs)
            inner = planned.get(id(body.graph))
            return (floor if inner is None else PlannedBody(inner, body.inputs, n_own, floor)), notes

        reads = reads_of(op)
        run, notes = CONTROL_OPS[op.key](op, reads, compile_planned, self._limits)
        places = [site.body.inputs.index(name) if name else -1 for name in reads]

        def call(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> Sequence[Tensor]:
            given = [*inputs, None]
            made = run([given[place] for place in places])
            return own_memory([m.contiguous() if isinstance(m, Tensor) else m for m in made], inputs)

        return Launch(call, note="; ".join(notes), wants_host_values=True)


def island_reason(region: Region, inferred: Inferred) -> str | None:
    """Why a step cannot be planned; None for one that can."""
    op = control_op(region)
    if op is not None:
        decided = "which branch" if op.op_type == "If" else "how often the body"
        return f"{op.op_type}: data says {decided} runs"
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
