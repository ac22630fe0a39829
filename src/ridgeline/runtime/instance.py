"""An instance: one engine at one set of input shapes, with its memory, its bound steps and its views.

Everything that can be decided before work starts is decided in here; `execute` only calls.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ridgeline.base.spec import Site, Target, TensorSpec
from ridgeline.base.timing import wall_times_in_turn
from ridgeline.errors import InputError, LimitError, PlanError
from ridgeline.ir.body import Program, Region
from ridgeline.ir.infer import Inferred
from ridgeline.ir.sites import make_site
from ridgeline.ir.views import joins_of, views_of
from ridgeline.kernels.elements import TORCH_DTYPES
from ridgeline.options import machine_bytes
from ridgeline.plan.memory import ArenaLayout, StepIO, lay_out
from ridgeline.plan.streams import Schedule
from ridgeline.runtime.given_values import GivenValues
from ridgeline.runtime.segments import CallValues
from ridgeline.tactics.base import Call, Footprint, Launch, Movable, Move

KEPT_PLACES = 8
Bind = Callable[[int, Site], Launch]
PlacedSite: TypeAlias = tuple[int, Region, Site]  # index in the plan


@dataclass(frozen=True)
class BoundStep:
    """One step at these shapes."""

    index: int  # in the plan
    region: Region
    site: Site
    launch: Launch | None  # None: only a view
    io: StepIO


class Instance:
    """Bound steps over one arena."""

    device = "cpu"
    _times_in_turn = staticmethod(wall_times_in_turn)
    is_streamed = False  # runs are on the streams of the plan
    # what ends every run, such as a copy of results to the inputs of the next; the calls do not depend on it
    ending: Callable[[], object] | None = None

    def __init__(
        self,
        program: Program,
        inferred: Inferred,
        sites: Sequence[PlacedSite],
        weights: Mapping[str, Tensor],
        bind: Bind,
        given: Mapping[str, Tensor] | None = None,  # memory of the inputs, if the caller has it
        schedule: Schedule | None = None,  # of all steps of the plan; None: one after the other
    ) -> None:
        """Parameters: what an executable knows of all its instances, then what is this one's own."""
        self.program, self.inferred, self.schedule = program, inferred, schedule
        require_made(program, [region for _, region, _ in sites], inferred)
        require_room(inferred)
        inputs = {name: inferred.specs[name] for name in program.inputs if name in inferred.specs}
        self.steps = self._bind_steps(sites, bind)
        ios, places = [step.io for step in self.steps], [step.index for step in self.steps]
        self.layout: ArenaLayout = lay_out_steps(program, ios, self.inferred, schedule, places)
        self._allocate({} if given else inputs)
        self.inputs: Mapping[str, Tensor] = given or self._own_inputs
        self.tensors: dict[str, Tensor] = dict(self.inputs)
        self._given = GivenValues(weights, self.inferred.values, self.device)
        self.tensors.update((n, self._given.get(n)) for n in program.outputs if n in self._given)
        self._make_tensors()
        self.calls = self._make_calls()
        self.calls_torch = any(s.launch is not None and s.launch.calls_torch for s in self.steps)

    def _allocate(self, inputs: Mapping[str, TensorSpec]) -> None:
        self._require_memory(inputs)
        with torch.inference_mode(False):  # memory that may be written to in any mode
            self.arena = torch.empty(self.layout.arena_bytes, dtype=torch.uint8, device=self.device)
            self._own_inputs = {name: empty(spec, self.device) for name, spec in inputs.items()}

    def _require_memory(self, inputs: Mapping[str, TensorSpec]) -> None:
        """Raise before more is allocated than there may be."""
        total = self.layout.arena_bytes + sum(spec.nbytes for spec in inputs.values())
        if total > self.program.limits.planned_bytes:
            raise LimitError(
                f"an engine at {', '.join(f'{n}: {spec}' for n, spec in inputs.items())} needs more memory "
                "than its limit",
                limit="planned_bytes", got=total, allowed=self.program.limits.planned_bytes,
            )  # fmt: skip

    def _bind_steps(self, sites: Sequence[PlacedSite], bind: Bind) -> list[BoundStep]:
        steps = []
        for index, region, site in sites:
            launch = None if views_of(site) else bind(index, site)
            steps.append(BoundStep(index, region, site, launch, step_io(region, site, self.inferred, launch)))
        return steps

    def _make_tensors(self) -> None:
        """A tensor for every value that has a fixed place: arena values, then what looks at them."""
        specs = self.inferred.specs
        for name, offset in self.layout.offsets.items():
            self.tensors[name] = place(self.arena, offset, specs[name])
        for name in self.layout.aliases:
            root, first = self.layout.root(name)
            if self._is_fixed(root) and name in specs:
                owner = self.tensors[root] if root in self.tensors else self._given.get(root)
                self.tensors[name] = look(owner, first, specs[name])

    def _is_fixed(self, name: str) -> bool:
        return not name or name in self.tensors or name in self._given

    def _fixed_inputs(self, launch: Launch, names: Sequence[str]) -> list[Tensor | None]:
        """A launch's inputs that stay where they are; None for those it never looks at, and for others."""
        made: list[Tensor | None] = []
        for slot, name in enumerate(names):
            is_read = launch.reads is None or slot in launch.reads
            if name in self.tensors:
                made.append(self.tensors[name])
            elif name in self._given and is_read:
                made.append(self._given.get(name, on_host=launch.wants_host_values))
            else:
                made.append(None)
        return made

    def _make_calls(self) -> list[Callable[[], object]]:
        """The steps as calls without arguments; values that libraries allocate are looked up at each call."""
        dynamic_values: dict[str, Any] = {}
        dynamic_names = {n for step in self.steps for n in step.io.outputs if n not in self.tensors}
        kept = {*self.program.outputs, *self._crossing()}
        last_use = {n: i for i, step in enumerate(self.steps) for n in step.io.inputs}
        calls: list[Callable[[], object]] = []
        self.call_steps: list[int] = []  # for each call, its step in the plan
        # every value that a call reads or writes where it lies; with a way to point the call elsewhere
        self.uses: list[tuple[str, Move | None]] = []
        # for each call, which values it reads and makes that have no place of their own
        self.call_values: list[CallValues] = []
        for i, step in enumerate(self.steps):
            io = step.io
            dead = [n for n in dict.fromkeys(io.inputs) if last_use[n] == i and n in dynamic_names - kept]
            if step.launch is None:
                dynamic_here = [view for view in io.views if view[0] not in self.tensors]
                made = [self._dynamic_views(dynamic_values, dynamic_here, dead)] if dynamic_here else []
            elif io.outputs[0] in self.layout.joined:
                continue
            elif io.writes_out and all(map(self._is_fixed, io.inputs)):
                ins = self._fixed_inputs(step.launch, io.inputs)
                made = [step.launch.frozen(ins, [self.tensors[n] for n in io.outputs])]
            else:
                outs = [self.tensors[n] for n in io.outputs] if io.writes_out else []
                ins = self._fixed_inputs(step.launch, io.inputs)
                moved = [(i, n) for i, n in enumerate(io.inputs) if not self._is_fixed(n)]
                call = step.launch.run if step.launch.extents else step.launch.call
                made = [_DynamicStep(dynamic_values, call, ins, moved, outs, io.outputs, dead)]
            calls += made
            self.uses += [use for call in made for use in uses_of(call, io)]
            self.call_steps += [step.index] * len(made)
            self.call_values += [self._call_values(step, dynamic_names)] * len(made)
        self.dynamic_values = dynamic_values
        self.dynamic_names = dynamic_names
        return calls

    def _crossing(self) -> set[str]:
        """Values that are used on another stream than where they are made.

        The allocator gives memory that a library let go of to the next one on the same stream, and knows
        nothing of the other streams: so these are kept until the next run.
        """
        if self.schedule is None:
            return set()
        streams: dict[str, set[int]] = {}
        for step in self.steps:
            for name in filter(None, (*step.io.inputs, *step.io.outputs)):
                streams.setdefault(self.layout.root(name)[0], set()).add(self.schedule.streams[step.index])
        names = (name for step in self.steps for name in step.io.outputs)
        return {name for name in names if len(streams[self.layout.root(name)[0]]) > 1}

    def _call_values(self, step: BoundStep, dynamic_names: set[str]) -> CallValues:
        """What segments need to know of a call of this step."""
        io = step.io
        writes = dynamic_names.intersection(io.outputs)
        return CallValues(
            reads=frozenset(name for name in io.inputs if not self._is_fixed(name)),
            writes=frozenset(writes),
            sized=frozenset(writes & self.inferred.specs.keys()),
            step=step.region.name,
            is_view=step.launch is None,
            why_eager="" if step.launch is None else step.launch.why_eager,
        )

    def _dynamic_views(
        self, dynamic_values: dict[str, Any], views: Sequence[tuple[str, str, int]], dead: Sequence[str]
    ) -> Callable[[], object]:
        specs = [self.inferred.specs[value] for value, _, _ in views]
        looks = [(v, s, n, n + spec.numel, spec) for (v, s, n), spec in zip(views, specs, strict=True)]
        last = {s for _, s, _ in views if self.inferred.specs[s].layout == "channels_last"}

        def step() -> None:
            for value, source, begin, end, spec in looks:
                seen = (
                    dynamic_values[source].permute(0, 2, 3, 1) if source in last else dynamic_values[source]
                )
                dynamic_values[value] = seen.reshape(-1)[begin:end].as_strided(spec.shape, spec.strides)
            for name in dead:
                dynamic_values[name] = None

        return step

    @property
    def nbytes(self) -> int:
        """Memory that this instance keeps between runs, besides what tactics share."""
        return self.arena.nbytes + sum(tensor.nbytes for tensor in self._own_inputs.values())

    def execute(self) -> None:
        for call in self.calls:
            call()
        if self.ending is not None:
            self.ending()

    def run_calls(self) -> None:
        """A run without its end."""
        for call in self.calls:
            call()

    def execute_once(self) -> None:
        """A run at shapes that may never come again: nothing is prepared for the next."""
        self.execute()

    def take_turns_with(self, other: Instance) -> None:
        """Say that this instance and the other never run side by side, and may share what takes memory."""

    def begin_turn(self) -> None:
        """Come after what is still under way in this instance, or in one that it takes turns with."""

    def step_times(self, rounds: int) -> dict[int, float]:
        """Median µs of each step that runs, by its index in the plan; on a GPU its time there."""
        with torch.inference_mode():
            self.execute()
            medians = self._times_in_turn(self.calls, rounds)
        totals: dict[int, float] = {}
        for index, us in zip(self.call_steps, medians, strict=True):
            totals[index] = totals.get(index, 0.0) + us
        return totals

    def value(self, name: str) -> Any:
        """What a step reads under this name, as it is now."""
        if name in self.tensors:
            return self.tensors[name]
        return self._given.get(name) if name in self._given else self.dynamic_values[name]

    def result(self, name: str) -> Any:
        """An output of the latest run, in the memory of this instance if it has a fixed place."""
        return self.tensors[name] if name in self.tensors else self.dynamic_values[name]

    def results(self) -> dict[str, Any]:
        return {name: self.result(name) for name in self.program.outputs}


def sites_of(
    program: Program, regions: Sequence[Region], inferred: Inferred, target: Target
) -> list[PlacedSite]:
    """The steps that do work at these shapes."""
    return [
        (index, region, make_site(program, region, inferred, target))
        for index, region in enumerate(regions)
        if not inferred.is_host(region)
    ]


def require_made(program: Program, steps: Sequence[Region], inferred: Inferred) -> None:
    """Every value that is read was made before: else a step would read memory that nobody has written."""
    here = {*program.inputs, *program.weights, *inferred.values, ""}
    for region in steps:
        missing = [name for name in region.inputs if name not in here]
        if missing:
            raise PlanError(f"{region.name} reads {missing[0]!r}, which no step before it makes")
        here.update(region.outputs)
    missing = [name for name in program.outputs if name not in here]
    if missing:
        raise PlanError(f"no step makes the output {missing[0]!r} at these shapes")


def require_room(inferred: Inferred) -> None:
    """No single value is larger than the machine's memory."""
    room = machine_bytes()
    for name, spec in inferred.specs.items():
        if spec.nbytes > room:
            raise InputError(
                f"{name!r} would be {spec} at these shapes",
                got=f"{spec.nbytes:,} bytes",
                want=f"at most the {room:,} bytes of this machine",
            )


def step_io(region: Region, site: Site, inferred: Inferred, launch: Launch | Footprint | None) -> StepIO:
    """What a step is to memory, from its launch or from what is foretold of it; None: it is only a view."""
    data_dependent = any(name not in inferred.specs for name in region.outputs)
    return StepIO(
        inputs=region.inputs,
        outputs=region.outputs,
        writes_out=launch is not None and launch.writes_out and not data_dependent,
        in_place=launch is not None and launch.in_place,
        views=tuple((region.outer(v), region.outer(s), first) for v, s, first in views_of(site)),
        joins=tuple((region.outer(name), first) for name, first in joins_of(site)),
    )


def lay_out_steps(
    program: Program,
    ios: Sequence[StepIO],
    inferred: Inferred,
    schedule: Schedule | None = None,
    places: Sequence[int] = (),
) -> ArenaLayout:
    """Where everything lies that these steps make; `places` are theirs in the plan, and in its schedule."""
    borders = {*program.inputs, *program.weights, *inferred.values}
    before = None if schedule is None else schedule.before_among(places)
    return lay_out(ios, inferred.specs, borders=borders, outputs=program.outputs, before=before)


@dataclass
class _DynamicStep:
    """A step that reads values which libraries allocate anew in every run; the others can be re-pointed."""

    dynamic_values: dict[str, Any]  # by name, as they are now
    call: Call
    fixed: list[Tensor | None]
    moved: Sequence[tuple[int, str]]
    outs: list[Tensor]
    names: Sequence[str]
    dead: Sequence[str]

    def __call__(self) -> None:
        dynamic_values = self.dynamic_values
        ins = list(self.fixed)
        for i, name in self.moved:
            ins[i] = dynamic_values[name]
        made = self.call(ins, self.outs)
        if made is not None:
            dynamic_values.update(zip(self.names, made, strict=True))
        for name in self.dead:
            dynamic_values[name] = None

    def mover(self, argument: int) -> Move | None:
        n = len(self.fixed)
        tensors: list[Any] = self.fixed if argument < n else self.outs
        place = argument if argument < n else argument - n
        home = tensors[place] if place < len(tensors) else None
        if home is None or not home.is_cpu:
            return None

        # results come back to the same few places
        known = {home.data_ptr(): home}

        def move(address: int) -> None:
            tensor = known.get(address)
            if tensor is None:
                while len(known) > KEPT_PLACES:
                    del known[next(reversed(known))]
                tensor = known[address] = tensor_at(address, home)
            tensors[place] = tensor

        return move


def tensor_at(address: int, like: Tensor) -> Tensor:
    """Memory that somebody else keeps alive, seen as a contiguous tensor."""
    items = (ctypes.c_byte * like.nbytes).from_address(address)
    return torch.frombuffer(items, dtype=like.dtype).view(like.shape)


def uses_of(call: Callable[[], object], io: StepIO) -> list[tuple[str, Move | None]]:
    mover = call.mover if isinstance(call, Movable) else lambda _: None
    return [(name, mover(i)) for i, name in enumerate((*io.inputs, *io.outputs)) if name]


def empty(spec: TensorSpec, device: str) -> Tensor:
    return torch.empty_strided(spec.shape, spec.strides, dtype=TORCH_DTYPES[spec.dtype], device=device)


def place(arena: Tensor, offset: int, spec: TensorSpec) -> Tensor:
    """A tensor over arena bytes."""
    flat = arena[offset : offset + spec.nbytes].view(TORCH_DTYPES[spec.dtype])
    return flat.as_strided(spec.shape, spec.strides)


def look(root: Tensor, first: int, spec: TensorSpec) -> Tensor:
    """Another shape over the memory of a tensor, from element `first` on."""
    return root.as_strided(spec.shape, spec.strides, root.storage_offset() + first)
