"""Shape tensors among a model's inputs: short lists of whole numbers that say how large something will be."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ridgeline.base.spec import Op, Port
from ridgeline.ir.body import Program
from ridgeline.ir.op_row import Trait
from ridgeline.ir.ops import has, row_of

MAX_NUMEL = 64


def shape_inputs(program: Program, inputs: Sequence[Port]) -> dict[str, Op]:
    """The inputs whose values decide shapes, each with the first op that reads it so."""
    ops, _ = program.flat_ops(program.regions)
    found = {}
    for port in inputs:
        if not port.dtype.startswith(("int", "uint")) or port.dims is None or len(port.dims) > 1:
            continue
        if math.prod(dim for dim in port.dims if isinstance(dim, int)) <= MAX_NUMEL:
            reader = _reader(port.name, ops)
            if reader is not None:
                found[port.name] = reader
    return found


def _reader(name: str, ops: Sequence[Op]) -> Op | None:
    carried = {name}
    for op in ops:
        if any(i < len(op.inputs) and op.inputs[i] in carried for i in row_of(op).shape_operands):
            return op
        if has(op, Trait.SHAPE_ARITHMETIC) and any(n in carried for n in op.inputs):
            carried.update(n for n in op.outputs if n)
    return None
