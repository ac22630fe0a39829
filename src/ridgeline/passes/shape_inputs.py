"""Shape tensors among a model's inputs: short lists of whole numbers that say how large something will be."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ridgeline.base.spec import Op, Port
from ridgeline.ir.body import Program

# the operands that decide the shape of an op's result
SHAPE_OPERANDS: dict[str, tuple[int, ...]] = {
    "Reshape": (1,), "Expand": (1,), "Tile": (1,), "ConstantOfShape": (0,), "Slice": (1, 2, 3, 4),
    "Pad": (1, 3), "Resize": (3,), "Range": (0, 1, 2), "TopK": (1,), "Split": (1,), "Squeeze": (1,),
    "Unsqueeze": (1,), "OneHot": (1,), "CenterCropPad": (1,), "AffineGrid": (1,), "Col2Im": (1, 2),
}  # fmt: skip
# arithmetic that the host does: what it makes of a shape tensor is one again
CARRIES = frozenset({
    "Identity", "Cast", "Concat", "Gather", "Slice", "Squeeze", "Unsqueeze", "Reshape", "Add", "Sub", "Mul",
    "Div", "Mod", "Min", "Max", "Neg", "Abs", "Where", "Equal", "Less", "Greater", "ReduceProd", "ReduceSum",
    "Split",
})  # fmt: skip
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
        if op.domain:
            continue
        if any(i < len(op.inputs) and op.inputs[i] in carried for i in SHAPE_OPERANDS.get(op.op_type, ())):
            return op
        if op.op_type in CARRIES and any(n in carried for n in op.inputs):
            carried.update(n for n in op.outputs if n)
    return None
