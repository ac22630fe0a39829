"""Nodes that stay in float32, and why: where a half type is known to break before anything is measured.

Norms, softmax and reductions keep float32 state inside, so it is what they read and make that is judged.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ridgeline.base.spec import Op
from ridgeline.ir.op_row import Kind
from ridgeline.ir.ops import is_a
from ridgeline.precision.emulate import Emulator, is_mask, node_key
from ridgeline.precision.ranges import HALVES, Range, Statistics

# data that is met later may be this many times larger than what was seen
MARGIN = 2.0
# rounding is uniform: a relative error of a third of a step; one of several steps comes from subnormals
SUBNORMAL_STEPS = 2.0
# operands so many times larger than their sum leave this few of a half type's digits
CANCELS = {"float16": 32.0, "bfloat16": 8.0}
_STEPS = Kind.POINTWISE | Kind.MOVEMENT
BY_KIND = {
    **dict.fromkeys(("CumSum", "CumProd"), "a running sum adds up the rounding of all its steps"),
    **dict.fromkeys(
        ("GridSample", "AffineGrid", "RoiAlign", "MaxRoiPool", "DeformConv"),
        "sampling coordinates: half types cannot tell neighbouring pixels apart",
    ),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), "the state of a recurrence adds up the rounding of all steps"),
    **dict.fromkeys(("DFT", "STFT", "Det", "NonMaxSuppression"), "no kernels in half types"),
    **dict.fromkeys(("Range", "EyeLike", "ConstantOfShape"), "made of numbers on the host"),
}  # fmt: skip


def guard(emulator: Emulator, seen: Statistics, half: str) -> dict[str, str]:
    """The nodes to keep, by `node_key`, each with its reason."""
    kept: dict[str, str] = {}
    counted = _counted(emulator, seen)
    for op in emulator.ops:
        key = node_key(op)
        if emulator.masks.issuperset(op.outputs):
            continue
        reason = (
            BY_KIND.get(op.op_type)
            or ("arithmetic on positions or counts" if key in counted else None)
            or _out_of_range(op, seen, half)
            or _vanishing(op, seen, half)
        )
        if reason is not None:
            kept[key] = reason
    for key, operands in _cancelling(emulator.ops, seen, half):
        reason = f"operands {seen.cancellation[key]:.3g} times as large as their difference"
        kept.setdefault(key, reason)
        for other in operands:
            kept.setdefault(other, f"an operand of {key}, where digits cancel")
    return kept


def _out_of_range(op: Op, seen: Statistics, half: str) -> str | None:
    largest = torch.finfo(HALVES[half]).max / MARGIN
    for name in (*op.inputs, *op.outputs):
        found = seen.ranges.get(name)
        if found is None or is_mask(op, name):
            continue
        if found.largest > largest:
            return f"{name} reaches {found.largest:.3g}, {half} ends at {largest * MARGIN:.3g}"
    return None


def _vanishing(op: Op, seen: Statistics, half: str) -> str | None:
    """A value that the type holds with fewer digits than it has, since it is so small."""
    limit = SUBNORMAL_STEPS * torch.finfo(HALVES[half]).eps
    for name in (*op.inputs, *op.outputs):
        found = seen.ranges.get(name)
        if found is not None and found.rounding[half] > limit and not is_mask(op, name):
            return f"{name} loses {_lost(found, half)} of its size: it is subnormal in {half}"
    return None


def _lost(found: Range, half: str) -> str:
    return f"{min(found.rounding[half], 1.0):.1%}"


def _counted(emulator: Emulator, seen: Statistics) -> set[str]:
    """Nodes whose floats all come from integers: positions, lengths, times a constant or through a sine."""
    made: set[str] = set()  # values
    nodes: set[str] = set()
    for op in emulator.ops:
        operands = [name for name in op.inputs if name and name not in emulator.given]
        if op.op_type == "Cast" and op.inputs[0] not in seen.ranges:  # only floats have ranges
            made.update(op.outputs)
        elif operands and made.issuperset(operands) and (is_a(op, _STEPS) or op.op_type == "MatMul"):
            made.update(op.outputs)
            nodes.add(node_key(op))
    return nodes


def _cancelling(ops: tuple[Op, ...], seen: Statistics, half: str) -> Iterator[tuple[str, list[str]]]:
    """Sums whose operands nearly cancel, with the nodes that made the operands."""
    by_output = {name: op for op in ops for name in op.outputs if name}
    for op in ops:
        key = node_key(op)
        if seen.cancellation.get(key, 0.0) > CANCELS[half]:
            yield key, [node_key(by_output[name]) for name in op.inputs if name in by_output]
