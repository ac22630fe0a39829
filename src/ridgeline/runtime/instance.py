"""An instance: one engine at one set of input shapes, with its memory, its bound steps and its views.

Everything that can be decided before work starts is decided in here; `execute` only calls.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

from ridgeline.passes.body import Program, Region
from ridgeline.passes.layout import assign_layouts
from ridgeline.passes.settle import Settled, settle
from ridgeline.passes.sites import make_site
from ridgeline.passes.views import joins_of, views_of
from ridgeline.plan.memory import Layout, StepIO, lay_out
from ridgeline.spec import Site, Target, TensorSpec
from ridgeline.tactics.base import Launch
from ridgeline.tactics.fallback import TORCH_DTYPES, to_torch

# torch types that numpy knows only through ml_dtypes
BITS_ONLY = {torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2}
POOLED_BYTES, POOLED_ARRAYS = 1 << 20, 3
HELD_BY_POOL = 3  # the pool, the loop's name for it, and the argument of getrefcount
Bind = Callable[[int, Site], Launch]


@dataclass(frozen=True)
class BoundStep:
    """One step at these shapes."""

    index: int  # in the plan
    region: Region
    site: Site
    launch: Launch | None  # None: only a view
    io: StepIO


def settle_program(
    program: Program, inputs: Mapping[str, TensorSpec], weights: Mapping[str, Tensor]
) -> Settled:
    """Every shape and layout of the program at these inputs."""
    specs = {n: TensorSpec(str(t.dtype).removeprefix("torch."), tuple(t.shape)) for n, t in weights.items()}
    known = {n: t.numpy() for n, t in weights.items() if t.numel() <= 64 and t.dtype != torch.bfloat16}
    settled = settle(program, inputs, specs, known)
    assign_layouts(program, settled)
    return settled


class Instance:
    """Bound steps over one arena."""

    def __init__(
        self,
        program: Program,
        regions: Sequence[Region],
        inputs: Mapping[str, TensorSpec],
        weights: Mapping[str, Tensor],
        target: Target,
        bind: Bind,
        prepare: Callable[[Sequence[tuple[int, Site]]], None] | None = None,  # before the first bind
    ) -> None:
        self.program = program
        self.settled = settle_program(program, inputs, weights)
        sites = [
            (index, region, make_site(program, region, self.settled, target))
            for index, region in enumerate(regions)
            if not self.settled.is_host(region)
        ]
        if prepare is not None:
            prepare([(index, site) for index, _, site in sites])
        self.steps = self._bind_steps(sites, bind)
        borders = {*program.inputs, *program.weights, *self.settled.values}
        ios = [step.io for step in self.steps]
        self.layout: Layout = lay_out(ios, self.settled.specs, borders=borders, outputs=program.outputs)
        with torch.inference_mode(False):  # memory that may be written to in any mode
            self.arena = torch.empty(self.layout.arena_bytes, dtype=torch.uint8)
            self.inputs = {name: empty(spec) for name, spec in inputs.items()}
        self.tensors: dict[str, Tensor] = {**weights, **self.inputs}
        for name, array in self.settled.values.items():
            if name not in self.tensors and array.dtype.kind not in "OUS":
                self.tensors[name] = to_torch(array)
        self._make_tensors()
        self.calls = self._make_calls()
        self._given: dict[str, list[np.ndarray]] = {}
        self.calls_torch = any(s.launch is not None and s.launch.calls_torch for s in self.steps) or bool(
            self.moving_names
        )
        self.input_arrays = [as_numpy(tensor) for tensor in self.inputs.values()]
        self.output_arrays = {n: as_numpy(self.tensors[n]) for n in program.outputs if n in self.tensors}

    def _bind_steps(self, sites: Sequence[tuple[int, Region, Site]], bind: Bind) -> list[BoundStep]:
        steps = []
        for index, region, site in sites:
            views = tuple((region.outer(v), region.outer(s), first) for v, s, first in views_of(site))
            launch = None if views else bind(index, site)
            loose = any(name not in self.settled.specs for name in region.outputs)
            io = StepIO(
                inputs=region.inputs,
                outputs=region.outputs,
                writes_out=launch is not None and launch.writes_out and not loose,
                in_place=launch is not None and launch.in_place,
                views=views,
                joins=tuple((region.outer(name), first) for name, first in joins_of(site)),
            )
            steps.append(BoundStep(index, region, site, launch, io))
        return steps

    def _make_tensors(self) -> None:
        """A tensor for every value that has a fixed place: arena values, then what looks at them."""
        specs = self.settled.specs
        for name, offset in self.layout.offsets.items():
            self.tensors[name] = place(self.arena, offset, specs[name])
        for name in self.layout.aliases:
            root, first = self.layout.root(name)
            if root in self.tensors and name in specs:
                self.tensors[name] = look(self.tensors[root], first, specs[name])

    def _make_calls(self) -> list[Callable[[], object]]:
        """The steps as calls without arguments. Values that libraries allocate move: those go by a table."""
        moving: dict[str, Any] = {}
        movers = {n for step in self.steps for n in step.io.outputs if n not in self.tensors}
        kept = set(self.program.outputs)
        last_use = {n: i for i, step in enumerate(self.steps) for n in step.io.inputs}
        calls: list[Callable[[], object]] = []
        self.call_steps: list[int] = []  # for each call, its step in the plan
        for i, step in enumerate(self.steps):
            io = step.io
            dead = [n for n in dict.fromkeys(io.inputs) if last_use[n] == i and n in movers - kept]
            if step.launch is None:
                movers_here = [view for view in io.views if view[0] not in self.tensors]
                made = [self._moving_views(moving, movers_here, dead)] if movers_here else []
            elif io.outputs[0] in self.layout.joined:
                continue
            elif io.writes_out and all(not n or n in self.tensors for n in io.inputs):
                ins = [self.tensors[n] if n else None for n in io.inputs]
                made = [step.launch.frozen(ins, [self.tensors[n] for n in io.outputs])]
            else:
                made = [self._moving_call(moving, step.launch, io, dead)]
            calls += made
            self.call_steps += [step.index] * len(made)
        self.moving = moving
        self.moving_names = movers
        return calls

    def _moving_call(
        self, moving: dict[str, Any], launch: Launch, io: StepIO, dead: Sequence[str]
    ) -> Callable[[], object]:
        tensors, call, names = self.tensors, launch.call, io.outputs
        outs = [tensors[n] for n in names] if io.writes_out else []
        reads = [(n, tensors.get(n)) for n in io.inputs]

        def step() -> None:
            made = call([fixed if fixed is not None or not n else moving[n] for n, fixed in reads], outs)
            if made is not None:
                moving.update(zip(names, made, strict=True))
            for name in dead:
                moving[name] = None

        return step

    def _moving_views(
        self, moving: dict[str, Any], views: Sequence[tuple[str, str, int]], dead: Sequence[str]
    ) -> Callable[[], object]:
        specs = [self.settled.specs[value] for value, _, _ in views]
        looks = [(v, s, n, n + spec.numel, spec.shape) for (v, s, n), spec in zip(views, specs, strict=True)]

        def step() -> None:
            for value, source, begin, end, shape in looks:
                moving[value] = moving[source].reshape(-1)[begin:end].view(shape)
            for name in dead:
                moving[name] = None

        return step

    def execute(self) -> None:
        for call in self.calls:
            call()

    def copied_output(self, name: str) -> np.ndarray:
        """An output in memory of its own. Large memory that callers let go of is used again: fresh pages cost
        more than the copy."""
        source = self.output_arrays[name]
        if source.nbytes < POOLED_BYTES:
            return source.copy()
        pool = self._given.setdefault(name, [])
        for array in pool:
            if sys.getrefcount(array) == HELD_BY_POOL:
                np.copyto(array, source)
                return array
        array = source.copy()
        if len(pool) < POOLED_ARRAYS:
            pool.append(array)
        return array

    def result(self, name: str) -> tuple[Tensor, bool]:
        """An output, and whether its memory will be written again by the next run."""
        fixed = self.tensors.get(name)
        return (fixed, True) if fixed is not None else (self.moving[name], False)


def as_numpy(tensor: Tensor) -> np.ndarray:
    """numpy's view of the same memory; bfloat16 and float8 by their ml_dtypes names."""
    if tensor.dtype not in BITS_ONLY:
        return tensor.numpy()
    bits = tensor.view(torch.int16 if tensor.element_size() == 2 else torch.uint8).numpy()
    return bits.view(np.dtype(getattr(ml_dtypes, str(tensor.dtype).removeprefix("torch."))))


def empty(spec: TensorSpec) -> Tensor:
    return torch.empty_strided(spec.shape, spec.strides, dtype=TORCH_DTYPES[spec.dtype])


def place(arena: Tensor, offset: int, spec: TensorSpec) -> Tensor:
    """A tensor over arena bytes."""
    flat = arena[offset : offset + spec.nbytes].view(TORCH_DTYPES[spec.dtype])
    return flat.as_strided(spec.shape, spec.strides)


def look(root: Tensor, first: int, spec: TensorSpec) -> Tensor:
    """Another shape over the memory of a tensor, from element `first` on."""
    return root.as_strided(spec.shape, spec.strides, root.storage_offset() + first)
