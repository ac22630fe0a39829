"""The floor: any region, op by op, through PyTorch. Also the home of control flow.

Nothing a floor op exists for is unsupported; every other tactic is measured against this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ridgeline.kernels.floor import FLOOR
from ridgeline.passes.op_kinds import POINTWISE, PRODUCTS, ROWS
from ridgeline.spec import Body, Config, Op, Site, TensorSpec
from ridgeline.tactics.base import Launch
from ridgeline.tactics.control import CONTROL_OPS
from ridgeline.tactics.fallback import constant_tensors, runner, why_slow

# ops that never hand back their input's memory
MAKES_NEW = (POINTWISE | PRODUCTS | ROWS) - {"Cast", "Identity", "Sum", "Mean", "Max", "Min", "Clip"}
MEMORY_FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


class Aten:
    """Every op of the region, one after the other, through PyTorch."""

    name = "aten"

    def __init__(self, opset_imports: Mapping[str, int]) -> None:
        self.opset_imports = opset_imports

    def why_not(self, site: Site) -> str | None:
        return None

    def configs(self, site: Site) -> Iterable[Config]:
        return ({},)

    def bind(self, site: Site, config: Config, weights: Mapping[str, Tensor]) -> Launch:
        out = self._single_out(site)
        if out is not None:
            return out
        run, notes = compile_body(site.body, site.specs, self.opset_imports)
        formats = [_format(site.specs.get(name)) for name in site.body.outputs]
        may_alias = any(op.op_type not in MAKES_NEW or op.domain for op in site.body.ops)

        def call(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> Sequence[Tensor]:
            made = [
                m if f is None else m.contiguous(memory_format=f)
                for m, f in zip(run(inputs), formats, strict=True)
            ]
            return _own_memory(made, inputs) if may_alias else made

        return Launch(call, note="; ".join(notes))

    def _single_out(self, site: Site) -> Launch | None:
        """A single op with an `out=` form writes straight into planned memory."""
        if len(site.body.ops) != 1 or len(site.body.outputs) != 1 or not is_settled(site):
            return None
        op = site.body.ops[0]
        entry = FLOOR.get(op.key)
        if entry is None or entry.out is None or why_slow(op, site.specs) or len(op.outputs) != 1:
            return None
        pick = _picker(op, site.body)
        fill, attrs = entry.out, dict(op.attrs)

        def call(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> None:
            fill(*pick(inputs), out=outputs, **attrs)

        return Launch(call, writes_out=True, in_place=op.op_type in POINTWISE)


def _own_memory(made: Sequence[Tensor], inputs: Sequence[Any]) -> list[Tensor]:
    """Copies of results that are only views of an input or of each other: that memory is used again."""
    taken = {i.untyped_storage().data_ptr() for i in inputs if isinstance(i, Tensor)}
    owned = []
    for tensor in made:
        place = tensor.untyped_storage().data_ptr()
        owned.append(tensor.clone() if place in taken else tensor)
        taken.add(place)
    return owned


def is_settled(site: Site) -> bool:
    """Every shape of the region is known before it runs."""
    names = [n for op in site.body.ops for n in (*op.inputs, *op.outputs) if n]
    return all(name in site.specs for name in names)


def _format(spec: TensorSpec | None) -> torch.memory_format | None:
    if spec is None or len(spec.shape) != 4:
        return None if spec is None else torch.contiguous_format
    return MEMORY_FORMATS[spec.layout]


def _picker(op: Op, body: Body) -> Callable[[Sequence[Any]], list[Any]]:
    constants = constant_tensors(body)
    places = [body.inputs.index(n) if n in body.inputs else constants.get(n) for n in op.inputs]

    def pick(inputs: Sequence[Any]) -> list[Any]:
        return [inputs[p] if isinstance(p, int) else p for p in places]

    return pick


def compile_body(
    body: Body, specs: Mapping[str, TensorSpec], opset_imports: Mapping[str, int]
) -> tuple[Callable[[Sequence[Any]], list[Any]], list[str]]:
    """A body as a function from its inputs to its outputs, with notes on what runs slowly.

    Values live in a list of slots; a slot is emptied after its last reader, so that memory goes back early.
    """
    slots = {name: i for i, name in enumerate(dict.fromkeys(body.inputs))}
    constants = constant_tensors(body)
    fixed: list[Any] = [None] * len(slots)
    for name, tensor in constants.items():
        slots[name] = len(fixed)
        fixed.append(tensor)
    steps: list[tuple[Callable[[list[Any]], Sequence[Any]], list[int], list[int | None], list[int]]] = []
    notes: list[str] = []
    for op in body.ops:
        reads = [slots[n] if n else -1 for n in _reads(op)]
        run: Callable[[list[Any]], Sequence[Any]]
        if op.key in CONTROL_OPS:
            run, more = CONTROL_OPS[op.key](op, _reads(op), specs, opset_imports, compile_body)
        else:
            run, note = runner(op, specs, opset_imports)
            more = [note] if note else []
        notes += more
        writes: list[int | None] = []
        for name in op.outputs:
            if name:
                slots[name] = len(fixed)
                fixed.append(None)
            writes.append(slots[name] if name else None)
        steps.append((run, reads, writes, []))
    results = [slots[name] for name in body.outputs]
    _free_after_last_use(steps, keep={*results, *(slots[n] for n in constants)})
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

    return run_body, notes


def _reads(op: Op) -> tuple[str, ...]:
    """An op's own inputs, then what its subgraphs capture."""
    captured = [n for attr in op.attrs.values() if isinstance(attr, Body) for n in attr.free_names()]
    return (*op.inputs, *dict.fromkeys(captured))


def _free_after_last_use(steps: Sequence[tuple[Any, list[int], Any, list[int]]], keep: set[int]) -> None:
    seen: set[int] = set(keep)
    for _, reads, _, frees in reversed(steps):
        last = [r for r in dict.fromkeys(reads) if r >= 0 and r not in seen]
        frees += last
        seen.update(last)
