"""Shapes of scales and zero points: of a whole tensor, of slices along one axis, of blocks along one axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ridgeline.ir.op_given import Given, MisfitError, Rule, Shape

SCALE, ZERO = 1, 2  # places of the operands of QuantizeLinear and DequantizeLinear


def misfit_of_scale(x: Shape, scale: Shape, *, axis: int, block_size: int) -> str:
    """What is wrong with a scale of this shape beside x; "" if it fits."""
    if block_size < 0:
        return f"block_size {block_size}, want 0 or more"
    if math.prod(scale) == 1 and len(scale) <= max(len(x), 1):
        return ""
    if not -len(x) <= axis < len(x):
        return f"axis {axis} of {len(x)} axes"
    size = x[axis]
    if not block_size:
        return "" if scale == (size,) else f"scale has shape {list(scale)}, want one number or [{size}]"
    place = axis % len(x)
    want = (*x[:place], -(-size // block_size), *x[place + 1 :])
    return "" if scale == want else f"scale has shape {list(scale)}, blocks of {block_size} want {list(want)}"


def _linear(given: Given) -> Sequence[Shape]:
    x, scale = given.shape(0), given.shape(SCALE)
    block = given.integer("block_size", 0)
    problem = misfit_of_scale(x, scale, axis=given.integer("axis", 1), block_size=block)
    if problem:
        raise MisfitError(problem)
    if given.has(ZERO) and given.shape(ZERO) != scale and math.prod(given.shape(ZERO)) != math.prod(scale):
        raise MisfitError(f"zero point has shape {list(given.shape(ZERO))}, the scale {list(scale)}")
    return [x]


def _dynamic(given: Given) -> Sequence[Shape]:
    return [given.shape(0), (), ()]


QUANT_RULES: dict[str, Rule] = {
    "QuantizeLinear": _linear, "DequantizeLinear": _linear, "DynamicQuantizeLinear": _dynamic,
}  # fmt: skip
