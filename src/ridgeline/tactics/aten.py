"""The floor: any region, op by op, through PyTorch, on the CPU or a GPU. Also the home of control flow.

Nothing a floor op exists for is unsupported; every other tactic is measured against this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ridgeline.base.library_math import library_math
from ridgeline.base.spec import Body, Config, Op, Site, TensorSpec
from ridgeline.ir.op_row import Kind, Trait
from ridgeline.ir.ops import has, is_a, row_of
from ridgeline.kernels.elements import BIT_WIDTHS, cloned, to_torch
from ridgeline.kernels.floor import FLOOR
from ridgeline.kernels.values import taken_in
from ridgeline.options import DEFAULT_LIMITS, Limits
from ridgeline.tactics.base import Footprint, Launch, Offer, Tactic
from ridgeline.tactics.control import CONTROL_OPS, RunBody
from ridgeline.tactics.fallback import RunOp, Surroundings, placed, runner, why_slow
from ridgeline.tactics.predict import floor_us

# PyTorch has these types, and kernels for few ops of them
FEW_KERNELS = frozenset({"uint16", "uint32", "uint64"})
COMPUTES = Kind.POINTWISE | Kind.PRODUCT | Kind.ROW
MEMORY_FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


class Aten(Tactic):
    """Every op of the region, one after the other, through PyTorch."""

    name = "aten"
    is_floor = True
    takes_open_shapes = True

    def __init__(self, opset_imports: Mapping[str, int], limits: Limits = DEFAULT_LIMITS) -> None:
        self.opset_imports, self.limits = opset_imports, limits

    def offer(self, site: Site) -> Offer:
        op = _op_with_out(site)
        footprint = Footprint(op is not None, in_place=op is not None and is_a(op, Kind.POINTWISE))
        return Offer(
            configs=({},),
            bind=partial(self._bind, site) if op is None else partial(_bind_out, site, op),
            footprint=lambda config: footprint,
            predict_us=lambda config, device: floor_us(site, device),
        )

    def _bind(self, site: Site, config: Config, weights: Mapping[str, Tensor]) -> Launch:
        around = Surroundings.of(site, self.opset_imports, self.limits)
        run, notes = compile_body(site.body, around, site.values)
        formats = [_format(site.specs.get(name)) for name in site.body.outputs]
        may_alias = any(not is_a(op, COMPUTES) or has(op, Trait.MAY_RETURN_INPUT) for op in site.body.ops)

        def call(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> Sequence[Tensor]:
            made = [
                m if f is None or not isinstance(m, Tensor) else m.contiguous(memory_format=f)
                for m, f in zip(run(inputs), formats, strict=True)
            ]
            if not around.is_host:  # what is made of numbers alone, such as a range, was made on the host
                made = [m.to(around.device) if isinstance(m, Tensor) else m for m in made]
            return own_memory(made, inputs) if may_alias else made

        sized = [op.op_type for op in site.body.ops if has(op, Trait.SIZED_BY_DATA)]
        why_eager = f"{sized[0]}: the number of results depends on data" if sized else ""
        return Launch(call, note="; ".join(notes), wants_host_values=True, why_eager=why_eager)


def _op_with_out(site: Site) -> Op | None:
    """The single op of the region, if it has an `out=` form that writes straight into planned memory."""
    if len(site.body.ops) != 1 or len(site.body.outputs) != 1 or not site.is_inferred:
        return None
    op = site.body.ops[0]
    entry = FLOOR.get(op.key)
    if entry is None or entry.out is None or len(op.outputs) != 1 or why_slow(op, Surroundings.of(site, {})):
        return None
    kinds = {site.specs[n].dtype for n in (*op.inputs, *op.outputs) if n}
    # torch does not write these types, or seldom: another library may run such an op
    return None if kinds & (BIT_WIDTHS.keys() | FEW_KERNELS) else op


def _bind_out(site: Site, op: Op, config: Config, weights: Mapping[str, Tensor]) -> Launch:
    pick, fill, attrs = _picker(op, site), FLOOR[op.key].out, dict(op.attrs)
    assert fill is not None, "only an op with an out= form is bound here"
    is_host = Surroundings.of(site, {}).is_host

    def call(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> None:
        with nullcontext() if is_host else library_math():
            fill(*pick(inputs), out=outputs, **attrs)

    return Launch(call, writes_out=True, in_place=is_a(op, Kind.POINTWISE), wants_host_values=True)


def own_memory(made: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """Copies of results that are only views of an input or of each other: that memory is used again."""
    taken = {i.untyped_storage().data_ptr() for i in inputs if isinstance(i, Tensor)}
    owned: list[Any] = []
    for tensor in made:
        if not isinstance(tensor, Tensor):  # strings and sequences have memory of their own
            owned.append(tensor)
            continue
        place = tensor.untyped_storage().data_ptr()
        owned.append(cloned(tensor) if place in taken else tensor)
        taken.add(place)
    return owned


def _format(spec: TensorSpec | None) -> torch.memory_format | None:
    if spec is None or len(spec.shape) != 4:
        return None if spec is None else torch.contiguous_format
    return MEMORY_FORMATS[spec.layout]


def _picker(op: Op, site: Site) -> Callable[[Sequence[Any]], list[Any]]:
    body = site.body
    constants = placed_constants(body, Surroundings.of(site, {}), site.values)
    places: list[Any] = []
    for i, name in enumerate(op.inputs):
        fixed = constants.get((name, is_read_on_host(op, i)))
        places.append(body.inputs.index(name) if fixed is None and name in body.inputs else fixed)

    def pick(inputs: Sequence[Any]) -> list[Any]:
        return [inputs[p] if isinstance(p, int) else p for p in places]

    return pick


def placed_constants(
    body: Body, around: Surroundings, values: Mapping[str, np.ndarray]
) -> dict[tuple[str, bool], Any]:
    """What is known before the run, by name and by whether it is wanted on the host."""
    known = {name: taken_in(array) for name, array in body.constants.items()}
    if not around.is_host:
        known |= {n: to_torch(a) for n, a in values.items() if n in body.inputs and a.dtype.kind not in "OUS"}
    made = {(name, True): value for name, value in known.items()}
    return made | {(name, False): placed(value, around.device) for name, value in known.items()}


def is_read_on_host(op: Op, place: int) -> bool:
    """Inputs that an op reads as numbers: axes, sizes, bounds."""
    return place in row_of(op).host_inputs


class _Slots:
    """Where the values of a body lie. What is known beforehand has a slot on the host and on the device."""

    def __init__(self, body: Body, around: Surroundings, values: Mapping[str, np.ndarray]) -> None:
        self.of = {name: i for i, name in enumerate(dict.fromkeys(body.inputs))}
        self.initial: list[Any] = [None] * len(self.of)  # what each slot holds before the run
        constants = placed_constants(body, around, values)
        self.constants = {key: self.new(tensor) for key, tensor in constants.items()}
        for (name, on_host), slot in self.constants.items():
            if on_host:
                self.of.setdefault(name, slot)

    def new(self, value: Any = None) -> int:
        self.initial.append(value)
        return len(self.initial) - 1

    def read(self, name: str, *, on_host: bool) -> int:
        """The slot of a value, and -1 for an absent one."""
        return self.constants.get((name, on_host), self.of[name]) if name else -1

    def write(self, name: str) -> int:
        """A new slot for a result, and -1 for one that nobody wants."""
        slot = self.of[name] = self.new() if name else -1
        return slot


def compile_body(
    body: Body, around: Surroundings, values: Mapping[str, np.ndarray] | None = None
) -> tuple[RunBody, list[str]]:
    """A body as a function from its inputs to its outputs, with notes on what runs slowly.

    A slot is emptied after its last reader, so that memory goes back early.
    """
    slots = _Slots(body, around, values or {})
    steps: list[tuple[RunOp, list[int], list[int], list[int]]] = []
    notes: list[str] = []
    for op in body.ops:
        names = reads_of(op)
        reads = [slots.read(name, on_host=is_read_on_host(op, i)) for i, name in enumerate(names)]
        if op.key in CONTROL_OPS:
            run, more = CONTROL_OPS[op.key](op, names, partial(compile_body, around=around), around.limits)
        else:
            run, more = runner(op, around)
        notes += more
        steps.append((run, reads, [slots.write(name) for name in op.outputs], []))
    results = [slots.read(name, on_host=False) for name in body.outputs]
    _free_after_last_use(steps, keep={*results, *slots.constants.values()})
    known = [*slots.initial[len(body.inputs) :], None]  # index -1: an absent value

    def run_body(inputs: Sequence[Any]) -> list[Any]:
        values = [*inputs, *known]
        for run, reads, writes, frees in steps:
            made = run([values[r] for r in reads])
            for slot, value in zip(writes, made, strict=True):
                if slot >= 0:
                    values[slot] = value
            for slot in frees:
                values[slot] = None
        return [values[r] for r in results]

    def run_there(inputs: Sequence[Any]) -> list[Any]:
        # ops that make tensors from nothing make them there; float32 products stay float32
        with torch.device(around.device), library_math():
            return run_body(inputs)

    return run_body if around.is_host else run_there, notes


def reads_of(op: Op) -> tuple[str, ...]:
    """An op's own inputs, then what its subgraphs capture."""
    captured = [n for attr in op.attrs.values() if isinstance(attr, Body) for n in attr.free_names()]
    return (*op.inputs, *dict.fromkeys(captured))


def _free_after_last_use(steps: Sequence[tuple[Any, list[int], Any, list[int]]], keep: set[int]) -> None:
    seen: set[int] = set(keep)
    for _, reads, _, frees in reversed(steps):
        last = [r for r in dict.fromkeys(reads) if r >= 0 and r not in seen]
        frees += last
        seen.update(last)
