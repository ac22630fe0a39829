"""Which shapes an op takes and which it makes: our own rules, as the ONNX specification has them.

ONNX's shape inference is a convenience: it accepts nodes whose operands contradict one another. What a kernel
of ours believes is checked here. Every op that a generated kernel computes, or that is written into planned
memory, has a rule (`tests/passes/test_validate.py`); libraries that run other ops check their operands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from ridgeline.ir.op_given import (
    Given,
    MisfitError,
    Rule,
    Shape,
    broadcast,
    placed_axis,
    require_into,
    require_shape,
)
from ridgeline.ir.op_row import Kind
from ridgeline.ir.op_rules_moves import MOVE_RULES
from ridgeline.ir.op_rules_products import PRODUCT_RULES


def _elementwise(given: Given) -> Sequence[Shape]:
    return [broadcast(*(shape for shape in given.shapes if shape is not None))]


def _clip(given: Given) -> Sequence[Shape]:
    for place in (1, 2):
        if given.has(place) and math.prod(given.shape(place)) != 1:
            raise MisfitError(f"input {place} has shape {list(given.shape(place))}, want a scalar")
    return [given.shape(0)]


def _slope(given: Given) -> Sequence[Shape]:
    require_into(given, 1, given.shape(0))
    return [given.shape(0)]


def _along_axis(given: Given) -> Sequence[Shape]:
    shape = given.shape(0)
    if shape:
        given.axis("axis", -1, len(shape))
    return [shape]


def _channels(given: Given, least_rank: int) -> int:
    shape = given.shape(0)
    if len(shape) < least_rank:
        raise MisfitError(f"input 0 has {len(shape)} axes, want at least {least_rank}")
    return shape[1] if len(shape) > 1 else 1


def _per_channel(given: Given, places: Sequence[int], *, least_rank: int) -> Sequence[Shape]:
    channels = (_channels(given, least_rank),)
    for place in places:
        given.shape(place)
        require_shape(given, place, channels)
    return [given.shape(0), channels, channels]


def _group_norm(given: Given) -> Sequence[Shape]:
    channels, groups = _channels(given, 2), given.integer("num_groups", 0)
    if groups < 1 or channels % groups:
        raise MisfitError(f"{channels} channels in {groups} groups")
    for place in (1, 2):
        if given.shape(place) not in ((channels,), (groups,)):
            raise MisfitError(f"input {place} has shape {list(given.shape(place))}, want [{channels}]")
    return [given.shape(0)]


def _layer_norm(given: Given) -> Sequence[Shape]:
    shape = given.shape(0)
    if not shape:
        raise MisfitError("input 0 has no axes")
    axis = given.axis("axis", -1, len(shape))
    for place in (1, 2):
        require_into(given, place, shape)
    row = shape[:axis] + (1,) * (len(shape) - axis)
    return [shape, row, row]


def _reduce(given: Given) -> Sequence[Shape | None]:
    shape, axes = given.shape(0), given.listed(1, "axes")
    if axes is None:
        return [None]
    if not axes and given.integer("noop_with_empty_axes", 0):
        return [shape]
    gone = {placed_axis(axis, len(shape)) for axis in axes} if axes else set(range(len(shape)))
    if given.integer("keepdims", 1):
        return [tuple(1 if d in gone else size for d, size in enumerate(shape))]
    return [tuple(size for d, size in enumerate(shape) if d not in gone)]


def _global_pool(given: Given) -> Sequence[Shape]:
    shape = given.shape(0)
    _channels(given, 2)
    return [shape[:2] + (1,) * (len(shape) - 2)]


# elementwise ops that regions do not take along
_ELEMENTWISE = """
Mod BitwiseAnd BitwiseOr BitwiseXor BitShift Acos Acosh Asin Asinh Atan Atanh BitwiseNot Cosh Sinh
"""
_RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE.split(), _elementwise), **MOVE_RULES, **PRODUCT_RULES,
    "BatchNormalization": partial(_per_channel, places=(1, 2, 3, 4), least_rank=1),
    "InstanceNormalization": partial(_per_channel, places=(1, 2), least_rank=3),
    "Clip": _clip, "PRelu": _slope, "GroupNormalization": _group_norm, "LayerNormalization": _layer_norm,
    "RMSNormalization": _layer_norm, "Softmax": _along_axis, "LogSoftmax": _along_axis,
    "LpNormalization": _along_axis, "GlobalAveragePool": _global_pool, "GlobalMaxPool": _global_pool,
}  # fmt: skip


def rule_of(key: str, kind: Kind) -> Rule | None:
    """The rule of an op: its own, or that of its kind."""
    if key in _RULES or not kind & (Kind.POINTWISE | Kind.ROW):
        return _RULES.get(key)
    return _elementwise if kind & Kind.POINTWISE else _reduce
