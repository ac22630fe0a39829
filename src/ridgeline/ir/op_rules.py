"""Which shapes an op takes and which it makes: our own rules, as the ONNX specification has them.

ONNX's shape inference is a convenience: it accepts nodes whose operands contradict one another. What a kernel
of ours believes is checked here. Every op that a generated kernel computes, or that is written into planned
memory, has a rule (`tests/passes/test_validate.py`); libraries that run other ops check their operands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np

from ridgeline.base.spec import Op, TensorSpec
from ridgeline.ir.moves import cuts, joined_axis, order, pads, parts
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
from ridgeline.ir.op_row import InferRule, Kind
from ridgeline.ir.op_rules_products import PRODUCT_RULES
from ridgeline.ir.op_rules_quant import QUANT_RULES

GivenSpecs: TypeAlias = Sequence[TensorSpec | None]
GivenValues: TypeAlias = Sequence[np.ndarray | None]


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


def _reduce(given: Given) -> Sequence[Shape]:
    shape, axes = given.shape(0), given.listed(1, "axes")
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


def _require_items(before: Shape, after: Shape) -> None:
    if math.prod(before) != math.prod(after):
        raise MisfitError(f"{list(before)} has {math.prod(before)} items, {list(after)} {math.prod(after)}")


def _reshape(given: Given) -> Sequence[Shape | None]:
    shape, target = given.shape(0), given.values.get(1) if given.has(1) else given.listed(1, "shape")
    if target is None:
        after = given.made[0]
        if after is not None:
            _require_items(shape, after)
        return [None]
    made = list(target)
    if not given.integer("allowzero", 0):
        for place, size in enumerate(made):
            if size == 0:
                if place >= len(shape):
                    raise MisfitError(f"{list(target)} keeps axis {place} of {list(shape)}")
                made[place] = shape[place]
    if made.count(-1) > 1 or any(size < -1 for size in made):
        raise MisfitError(f"{list(target)} is no shape")
    if -1 in made:
        rest = -math.prod(made)
        made[made.index(-1)] = math.prod(shape) // rest if rest else 0
    _require_items(shape, tuple(made))
    return [tuple(made)]


def _flatten(given: Given) -> Sequence[Shape]:
    shape, axis = given.shape(0), given.integer("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        raise MisfitError(f"axis {axis} of {len(shape)} axes")
    axis = axis + len(shape) if axis < 0 else axis
    return [(math.prod(shape[:axis]), math.prod(shape[axis:]))]


def _squeeze(given: Given) -> Sequence[Shape]:
    shape, axes = given.shape(0), given.listed(1, "axes")
    gone = {placed_axis(axis, len(shape)) for axis in axes}
    if any(shape[axis] != 1 for axis in gone):
        raise MisfitError(f"axes {sorted(gone)} of {list(shape)} are not all of size one")
    gone = gone or {axis for axis, size in enumerate(shape) if size == 1}
    return [tuple(size for axis, size in enumerate(shape) if axis not in gone)]


def _unsqueeze(given: Given) -> Sequence[Shape]:
    shape, axes = given.shape(0), given.listed(1, "axes")
    rank = len(shape) + len(axes)
    new = {placed_axis(axis, rank) for axis in axes}
    if len(new) != len(axes):
        raise MisfitError(f"axes {list(axes)} repeat")
    sizes = iter(shape)
    return [tuple(1 if axis in new else next(sizes) for axis in range(rank))]


def _transpose(given: Given) -> Sequence[Shape]:
    return [tuple(given.shape(0)[axis] for axis in order(given))]


def _expand(given: Given) -> Sequence[Shape | None]:
    target = given.values.get(1)
    if target is None:
        if given.made[0] is not None:
            require_into(given, 0, given.made[0])
        return [None]
    if any(size < 0 for size in target):
        raise MisfitError(f"{list(target)} is no shape")
    return [broadcast(given.shape(0), target)]


def _concat(given: Given) -> Sequence[Shape]:
    axis = joined_axis(given)
    shapes = [shape for shape in given.shapes if shape is not None]
    return [(*shapes[0][:axis], sum(shape[axis] for shape in shapes), *shapes[0][axis + 1 :])]


def _split(given: Given) -> Sequence[Shape]:
    (axis, sizes), shape = parts(given), given.shape(0)
    return [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]


def _slice(given: Given) -> Sequence[Shape]:
    taken = cuts(given)
    return [tuple(len(taken[d]) if d in taken else size for d, size in enumerate(given.shape(0)))]


def _pad(given: Given) -> Sequence[Shape]:
    added, shape = pads(given), given.shape(0)
    made = tuple(size + sum(added.get(axis, ())) for axis, size in enumerate(shape))
    if any(size < 0 for size in made):
        raise MisfitError(f"pads {list(added.values())} take more than {list(shape)} has")
    return [made]


def _gather(given: Given) -> Sequence[Shape]:
    shape = given.shape(0)
    if not shape:
        raise MisfitError("a scalar is gathered from")
    axis = given.axis("axis", 0, len(shape))
    return [(*shape[:axis], *given.shape(1), *shape[axis + 1 :])]


def _tile(given: Given) -> Sequence[Shape]:
    shape, repeats = given.shape(0), given.numbers(1)
    if len(repeats) != len(shape) or any(count < 0 for count in repeats):
        raise MisfitError(f"repeats {list(repeats)} of {list(shape)}")
    return [tuple(size * count for size, count in zip(shape, repeats, strict=True))]


def _image(given: Given) -> tuple[int, int, int, int, int]:
    """Sizes of an image, and the block that an op deals in."""
    shape, block = given.shape(0), given.integer("blocksize", 0)
    if len(shape) != 4 or block < 1:
        raise MisfitError(f"blocks of {block} in {list(shape)}")
    n, c, h, w = shape
    return n, c, h, w, block


def _depth_to_space(given: Given) -> Sequence[Shape]:
    n, c, h, w, block = _image(given)
    if c % block**2:
        raise MisfitError(f"{c} channels in blocks of {block}")
    return [(n, c // block**2, h * block, w * block)]


def _space_to_depth(given: Given) -> Sequence[Shape]:
    n, c, h, w, block = _image(given)
    if h % block or w % block:
        raise MisfitError(f"an image of {h} by {w} in blocks of {block}")
    return [(n, c * block**2, h // block, w // block)]


# elementwise ops that regions do not take along
_ELEMENTWISE = """
Mod BitwiseAnd BitwiseOr BitwiseXor BitShift Acos Acosh Asin Asinh Atan Atanh BitwiseNot Cosh Sinh
"""
_RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE.split(), _elementwise), **PRODUCT_RULES, **QUANT_RULES,
    "Reshape": _reshape, "Flatten": _flatten, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze,
    "Transpose": _transpose, "Expand": _expand, "Concat": _concat, "Split": _split, "Slice": _slice,
    "Pad": _pad, "Gather": _gather, "Tile": _tile, "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
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


def _like_first(op: Op, specs: GivenSpecs, values: GivenValues) -> GivenSpecs:
    return [specs[0]]


def _stft(op: Op, specs: GivenSpecs, values: GivenValues) -> GivenSpecs:
    """[batch, frames, bins, 2]. ONNX's inference takes `onesided` for off where the default is on."""
    signal, step, length = specs[0], values[1], values[3] if len(values) > 3 else None
    window = specs[2] if len(specs) > 2 else None
    if signal is None or step is None or (window is None and length is None) or len(signal.shape) < 2:
        return [None]
    frame = int(length.reshape(-1)[0]) if length is not None else window.shape[0] if window is not None else 0
    hop = int(step.reshape(-1)[0])
    batch, samples = signal.shape[:2]
    if not 0 < frame <= samples or hop <= 0:
        return [None]
    bins = frame // 2 + 1 if op.attrs.get("onesided", 1) else frame
    return [TensorSpec(signal.dtype, (batch, 1 + (samples - frame) // hop, bins, 2))]


def _as_checked(op: Op, specs: GivenSpecs, values: GivenValues) -> GivenSpecs | None:
    """ConvTranspose: ONNX's inference leaves sizes out where `output_shape` asks for less than the input has.

    Attention: it does not look at the mask, over which queries may be spread. With further outputs, ONNX is
    asked.
    """
    if any(op.outputs[1:]):
        return None
    if any(spec is None for name, spec in zip(op.inputs, specs, strict=True) if name):
        return [None]
    shapes = tuple(None if spec is None else spec.shape for spec in specs)
    made = PRODUCT_RULES[op.op_type](Given(op, shapes, (None,), {}))[0]
    return [None if made is None or specs[0] is None else TensorSpec(specs[0].dtype, made)]


# our own inference for ops whose ONNX inference is wrong or silent
INFER_RULES: Mapping[str, InferRule] = {
    "GroupNormalization": _like_first,
    "MeanVarianceNormalization": _like_first,
    "ConvTranspose": _as_checked,
    "Attention": _as_checked,
    "STFT": _stft,
}
