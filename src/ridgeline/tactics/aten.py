"""The floor: any region, op by op, through PyTorch, on the CPU or a GPU. Also the home of control flow.

Nothing a floor op exists for is unsupported; every other tactic is measured against this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ridgeline.base.spec import Body, Config, Op, Site, TensorSpec
from ridgeline.ir.op_row import Kind, Trait
from ridgeline.ir.ops import has, is_a, row_of
from ridgeline.kernels.elements import BIT_WIDTHS, cloned, to_torch
from ridgeline.kernels.floor import FLOOR
from ridgeline.kernels.values import taken_in
from ridgeline.options import DEFAULT_LIMITS, Limits
from ridgeline.tactics.base import Footprint, Launch, Offer, Tactic
from ridgeline.tactics.control import CONTROL_OPS
from ridgeline.tactics.fallback import RunOp, placed, runner, why_slow
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
            predict_us=lambda config: floor_us(site),
        )

    def _bind(self, site: Site, config: Config, weights: Mapping[str, Tensor]) -> Launch:
        device = site.target.traits.device
        run, notes = compile_body(
            site.body, site.specs, self.opset_imports, device, site.values,
            non_tensor=site.non_tensor, limits=self.limits,
        )  # fmt: skip
        formats = [_format(site.specs.get(name)) for name in site.body.outputs]
        may_alias = any(not is_a(op, COMPUTES) or has(op, Trait.MAY_RETURN_INPUT) for op in site.body.ops)

        def call(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> Sequence[Tensor]:
            made = [
                m if f is None or not isinstance(m, Tensor) else m.contiguous(memory_format=f)
                for m, f in zip(run(inputs), formats, strict=True)
            ]
            if device != "cpu":  # what is made of numbers alone, such as a range, was made on the host
                made = [m.to(device) if isinstance(m, Tensor) else m for m in made]
            return own_memory(made, inputs) if may_alias else made

        return Launch(call, note="; ".join(notes), wants_host_values=True)


def _op_with_out(site: Site) -> Op | None:
    """The single op of the region, if it has an `out=` form that writes straight into planned memory."""
    if len(site.body.ops) != 1 or len(site.body.outputs) != 1 or not site.is_inferred:
        return None
    op = site.body.ops[0]
    entry = FLOOR.get(op.key)
    if entry is None or entry.out is None or why_slow(op, site.specs) or len(op.outputs) != 1:
        return None
    kinds = {site.specs[n].dtype for n in (*op.inputs, *op.outputs) if n}
    # torch does not write these types, or seldom: another library may run such an op
    return None if kinds & (BIT_WIDTHS.keys() | FEW_KERNELS) else op


def _bind_out(site: Site, op: Op, config: Config, weights: Mapping[str, Tensor]) -> Launch:
    pick, fill, attrs = _picker(op, site), FLOOR[op.key].out, dict(op.attrs)
    assert fill is not None, "only an op with an out= form is bound here"

    def call(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> None:
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
    constants = placed_constants(body, site.target.traits.device, site.values)
    places: list[Any] = []
    for i, name in enumerate(op.inputs):
        fixed = constants.get((name, is_read_on_host(op, i)))
        places.append(body.inputs.index(name) if fixed is None and name in body.inputs else fixed)

    def pick(inputs: Sequence[Any]) -> list[Any]:
        return [inputs[p] if isinstance(p, int) else p for p in places]

    return pick


def placed_constants(
    body: Body, device: str, values: Mapping[str, np.ndarray]
) -> dict[tuple[str, bool], Any]:
    """What is known before the run, by name and by whether it is wanted on the host."""
    known = {name: taken_in(array) for name, array in body.constants.items()}
    if device != "cpu":
        known |= {n: to_torch(a) for n, a in values.items() if n in body.inputs and a.dtype.kind not in "OUS"}
    made = {(name, True): value for name, value in known.items()}
    return made | {(name, False): placed(value, device) for name, value in known.items()}


def is_read_on_host(op: Op, place: int) -> bool:
    """Inputs that an op reads as numbers: axes, sizes, bounds."""
    return place in row_of(op).host_inputs


def compile_body(
    body: Body,
    specs: Mapping[str, TensorSpec],
    opset_imports: Mapping[str, int],
    device: str = "cpu",
    values: Mapping[str, np.ndarray] | None = None,
    non_tensor: Mapping[str, str] | None = None,
    limits: Limits = DEFAULT_LIMITS,
    before: Callable[[Op, Sequence[Any]], None] | None = None,
) -> tuple[Callable[[Sequence[Any]], list[Any]], list[str]]:
    """A body as a function from its inputs to its outputs, with notes on what runs slowly.

    Values live in a list of slots; a slot is emptied after its last reader, so that memory goes back early.
    On a GPU what is known beforehand has a slot on either side, since some ops read numbers on the host.
    `before` is called with every op, also of subgraphs, and what it is about to be given.
    """
    slots = {name: i for i, name in enumerate(dict.fromkeys(body.inputs))}
    fixed: list[Any] = [None] * len(slots)
    constants: dict[tuple[str, bool], int] = {}
    for key, tensor in placed_constants(body, device, values or {}).items():
        constants[key] = len(fixed)
        fixed.append(tensor)
    slots |= {name: place for (name, on_host), place in constants.items() if on_host and name not in slots}
    compile_here = partial(
        compile_body, specs=specs, opset_imports=opset_imports, device=device, non_tensor=non_tensor,
        limits=limits, before=before,
    )  # fmt: skip
    steps: list[tuple[Callable[[list[Any]], Sequence[Any]], list[int], list[int | None], list[int]]] = []
    notes: list[str] = []
    for op in body.ops:
        reads = [
            constants.get((n, is_read_on_host(op, i)), slots[n]) if n else -1
            for i, n in enumerate(reads_of(op))
        ]
        run: Callable[[list[Any]], Sequence[Any]]
        if op.key in CONTROL_OPS:
            run, more = CONTROL_OPS[op.key](op, reads_of(op), compile_here, limits)
        else:
            run, note = runner(op, specs, opset_imports, device, non_tensor)
            run = run if before is None else _after(before, op, run)
            more = [note] if note else []
        notes += more
        writes: list[int | None] = []
        for name in op.outputs:
            if name:
                slots[name] = len(fixed)
                fixed.append(None)
            writes.append(slots[name] if name else None)
        steps.append((run, reads, writes, []))
    results = [constants.get((name, False), slots[name]) for name in body.outputs]
    _free_after_last_use(steps, keep={*results, *constants.values()})
    n_inputs = len(body.inputs)

    def run_body(inputs: Sequence[Any]) -> list[Any]:
        values = [*inputs, *fixed[n_inputs:], None]  # index -1: an absent input
        for run, reads, writes, frees in steps:
            made = run([values[r] for r in reads])
            for place, value in zip(writes, made, strict=True):
                if place is not None:
                    values[place] = value
            for place in frees:
                values[place] = None
        return [values[r] for r in results]

    if device == "cpu":
        return run_body, notes

    def run_there(inputs: Sequence[Any]) -> list[Any]:
        # ops that make tensors from nothing make them there; float32 convolutions stay float32
        with torch.device(device), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            return run_body(inputs)

    return run_there, notes


def _after(before: Callable[[Op, Sequence[Any]], None], op: Op, run: RunOp) -> RunOp:
    def checked(values: Sequence[Any]) -> Sequence[Any]:
        before(op, values)
        return run(values)

    return checked


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
