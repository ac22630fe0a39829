"""Ops that only move items, as values at moved indices; only Concat and Pad add steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Op
from ridgeline.ir.moves import cuts, pads, parts
from ridgeline.ir.op_given import Given, MisfitError, NotKnownError, given_at
from ridgeline.kernels.scalar.axes import ONE
from ridgeline.kernels.scalar.lowering import Lowering, Move, Val, reshaped
from ridgeline.kernels.scalar.ops import Handler, args_of, number, permuted

Found = TypeVar("Found")


def _cut(low: Lowering, x: Val, dim: int, size: int, start: int, step: int = 1) -> Val:
    """`size` items of a dim from `start` on; the values past its ends are arbitrary."""
    if x.shape[dim] == size and start == 0 and step == 1:
        return x
    outer, *inner = low.axes.leaves(x.axes[dim]) if x.axes[dim] != ONE else (ONE,)
    whole = math.prod(low.axes.sizes_of(inner))
    if inner and step == 1 and start % whole == 0 == size % whole and size:
        # as if the dim had not been joined: whole items of its outermost part
        count, first = size // whole, start // whole
        kept = () if count == 1 else (low.axes.fresh(count),)
        x = low.moved(x, Move(outer, kept, first))
        return _with_dim(x, dim, size, low.axes.joined((*kept, *inner)))
    axis = ONE if size == 1 else low.axes.fresh(size)
    if x.axes[dim] != ONE:
        x = low.moved(x, Move(x.axes[dim], () if axis == ONE else (axis,), start, step))
    return _with_dim(x, dim, size, axis)


def _with_dim(x: Val, dim: int, size: int, axis: int) -> Val:
    shape, axes = list(x.shape), list(x.axes)
    shape[dim], axes[dim] = size, axis
    return replace(x, shape=tuple(shape), axes=tuple(axes))


def known(low: Lowering, op: Op, read: Callable[[Given], Found]) -> Found:
    """What `read` finds in the operands whose numbers are known; `RefusedError` if they are not known."""
    try:
        return read(given_at(op, low.site.specs, low.arrays))
    except MisfitError as misfit:
        raise RefusedError(str(misfit)) from misfit
    except NotKnownError as error:
        raise RefusedError(f"what {op.op_type} moves is not known before the run") from error


def _slice(low: Lowering, op: Op) -> Sequence[Val]:
    x = low.value(op.inputs[0])
    for dim, places in known(low, op, cuts).items():
        x = _cut(low, x, dim, len(places), places.start, places.step)
    return [x]


def _split(low: Lowering, op: Op) -> Sequence[Val]:
    x, (dim, sizes) = low.value(op.inputs[0]), known(low, op, parts)
    return [_cut(low, x, dim, size, sum(sizes[:place])) for place, size in enumerate(sizes)]


def _concat(low: Lowering, op: Op) -> Sequence[Val]:
    """Extends every part over the whole axis, then selects the part that belongs at each index."""
    parts = args_of(low, op)
    dim = int(op.attrs["axis"]) % len(parts[0].shape)
    parts = [part for part in parts if part.shape[dim]]
    if not parts:
        raise RefusedError("a Concat of nothing")
    if len(parts) == 1:
        return parts
    axis = low.axes.fresh(sum(part.shape[dim] for part in parts))
    made, start = _at(low, parts[0], dim, axis, 0), parts[0].shape[dim]
    for part in parts[1:]:
        moved, here = _at(low, part, dim, axis, start), _here(low, made, dim)
        made = low.map("rl_where({2} < {3}, {0}, {1})", made, moved, here, low.constant(start, "int32"))
        start += part.shape[dim]
    return [made]


def _at(low: Lowering, part: Val, dim: int, axis: int, start: int) -> Val:
    """A part on the joined axis, from `start` on."""
    size = low.axes.size(axis)
    if part.axes[dim] == ONE:
        return _with_dim(part, dim, size, axis)
    return _with_dim(low.moved(part, Move(part.axes[dim], (axis,), -start)), dim, size, axis)


def _here(low: Lowering, like: Val, dim: int) -> Val:
    """The index along a dim, which is compared with the starts of parts."""
    shape = tuple(size if d == dim else 1 for d, size in enumerate(like.shape))
    axes = tuple(axis if d == dim else ONE for d, axis in enumerate(like.axes))
    return low.coordinate(like.axes[dim], shape, axes)


def _pad(low: Lowering, op: Op) -> Sequence[Val]:
    if op.attrs.get("mode", "constant") not in ("constant", b"constant"):
        raise RefusedError(f"Pad by mode {op.attrs['mode']}")
    x = low.value(op.inputs[0])
    fill = low.value(op.inputs[2]) if len(op.inputs) > 2 and op.inputs[2] else number(low, x, 0.0)
    for dim, (before, after) in known(low, op, pads).items():
        if before or after:
            x = _padded(low, x, dim, before, x.shape[dim] + before + after, fill)
    return [x]


def _padded(low: Lowering, x: Val, dim: int, before: int, size: int, fill: Val) -> Val:
    had = x.shape[dim]
    if size <= 1:
        raise RefusedError(f"Pad to {size} items")
    axis = low.axes.fresh(size)
    moved = _at(low, x, dim, axis, before)
    here = _here(low, moved, dim)
    first, past = low.constant(before, "int32"), low.constant(before + had, "int32")
    inside = low.map("({0} >= {1}) & ({0} < {2})", here, first, past, dtype="bool")
    return low.map("rl_where({2}, {0}, {1})", moved, low.cast(fill, x.dtype), inside)


def _gather(low: Lowering, op: Op) -> Sequence[Val]:
    """x at indices that are read when the kernel runs; a negative index counts from the end."""
    x, places = args_of(low, op)
    dim = int(op.attrs.get("axis", 0)) % len(x.shape)
    if places.dtype not in ("int32", "int64"):
        raise RefusedError(f"Gather at places of {places.dtype}")
    shape = (*x.shape[:dim], *places.shape, *x.shape[dim + 1 :])
    axes = (*x.axes[:dim], *places.axes, *x.axes[dim + 1 :])
    if x.axes[dim] != ONE:
        if math.prod(x.shape) >= 2**31:
            places = low.cast(places, "int64")
        index = low.map("rl_place({0}, {1})", places, low.constant(x.shape[dim], places.dtype))
        x = low.moved(x, Move(x.axes[dim], places.axes, value=index.term))
    return [replace(x, shape=shape, axes=axes)]


def _tile(low: Lowering, op: Op) -> Sequence[Val]:
    x = low.value(op.inputs[0])
    repeats = [int(r) for r in low.array(op.inputs[1], "the repeats").reshape(-1)]
    shape, axes = [], []
    for size, axis, count in zip(x.shape, x.axes, repeats, strict=True):
        parts = [a for a in (low.axes.fresh(count) if count != 1 else ONE, axis) if a != ONE]
        shape.append(size * count)
        axes.append(low.axes.joined(parts) if parts else ONE)
    return [replace(x, shape=tuple(shape), axes=tuple(axes))]


def _shuffle(low: Lowering, op: Op) -> Sequence[Val]:
    """DepthToSpace and SpaceToDepth: the dims are split, put in another order and joined."""
    x, made = low.value(op.inputs[0]), low.site.specs[op.outputs[0]].shape
    n, c, h, w = x.shape
    block = int(op.attrs["blocksize"])
    deep = c // block**2
    if op.op_type == "SpaceToDepth":
        split, order = (n, c, h // block, block, w // block, block), (0, 3, 5, 1, 2, 4)
    elif op.attrs.get("mode", "DCR") in ("CRD", b"CRD"):
        split, order = (n, deep, block, block, h, w), (0, 1, 4, 2, 5, 3)
    else:
        split, order = (n, block, block, deep, h, w), (0, 3, 4, 1, 5, 2)
    assert math.prod(split) == math.prod(made), "a shuffle keeps every item"
    return [reshaped(low, permuted(reshaped(low, x, split), order), made)]


MOVES: dict[str, Handler] = {
    "Slice": _slice, "Split": _split, "Concat": _concat, "Pad": _pad, "Gather": _gather, "Tile": _tile,
    "DepthToSpace": _shuffle, "SpaceToDepth": _shuffle,
}  # fmt: skip
