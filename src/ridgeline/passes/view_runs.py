"""What a run of reshapes, transposes and slices amounts to: which element of its source lies where.

Each axis of the result is a list of pieces of the source's axes, outermost first. Sizes may be names, so an
answer holds for every batch. Only reads the graph; `simplify_views.py` and others write runs anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import onnx_ir as ir

from ridgeline.passes.fold_shape import Size, elements, named_axes, part_of, reshape_target, sizes
from ridgeline.passes.match import attribute, constant

MAX_RUN = 24  # ops; runs of real models are shorter than ten


@dataclass(frozen=True)
class Piece:
    """Some counting along one axis of the source, `step` places at a time; axis None repeats elements."""

    axis: int | None
    size: Size
    step: int = 1


Axis = tuple[Piece, ...]  # outermost first; nothing for a size of one


@dataclass(frozen=True)
class View:
    """A value as elements of another one: by axis, counted from `starts` along the source's axes."""

    source: ir.Value
    axes: tuple[Axis, ...]
    starts: tuple[int, ...]
    run: tuple[ir.Node, ...] = ()  # from the source on


def views_of_run(value: ir.Value) -> list[View]:
    """The value as a view of what its run of movement ops starts from, then of what lies nearer."""
    run: list[tuple[ir.Node, ir.Value]] = []
    made = value
    while (node := made.producer()) is not None and len(run) < MAX_RUN:
        if node.op_type not in _STEPS or node.domain or sizes(node.inputs[0]) is None:
            break
        run.insert(0, (node, made))
        made = node.inputs[0]
    found = (_follow(run[start:]) for start in range(len(run)))
    return [view for view in found if view is not None]


def is_movement(node: ir.Node) -> bool:
    return node.op_type in _STEPS and not node.domain


def _follow(run: Sequence[tuple[ir.Node, ir.Value]]) -> View | None:
    view: View | None = whole(run[0][0].inputs[0])
    for node, made in run:
        # an inferred rank may contradict the op: whoever settles its shapes says so
        if view is None or (node.op_type in _NEED_AXES and not view.axes):
            return None
        view = _STEPS[node.op_type](view, node, made)
    return replace(view, run=tuple(node for node, _ in run)) if view is not None else None


def whole(source: ir.Value) -> View:
    """A value as a view of itself."""
    dims = sizes(source) or ()
    return View(source, tuple(_axis(Piece(i, size)) for i, size in enumerate(dims)), (0,) * len(dims))


def _axis(*pieces: Piece) -> Axis:
    return tuple(piece for piece in pieces if piece.size != 1)


def count(axis: Sequence[Piece]) -> int | None:
    """How many places an axis has, None when that is not a number."""
    numbers = [piece.size for piece in axis if isinstance(piece.size, int)]
    return math.prod(numbers) if len(numbers) == len(axis) else None


def _transposed(view: View, node: ir.Node, made: ir.Value) -> View | None:
    perm = attribute(node, "perm") or range(len(view.axes))[::-1]
    if sorted(perm) != list(range(len(view.axes))):
        return None
    return replace(view, axes=tuple(view.axes[axis] for axis in perm))


def _squeezed(view: View, node: ir.Node, made: ir.Value) -> View | None:
    gone = named_axes(node, len(view.axes))
    if gone is None or any(view.axes[axis] for axis in gone):
        return None
    return replace(view, axes=tuple(axis for i, axis in enumerate(view.axes) if i not in gone))


def _unsqueezed(view: View, node: ir.Node, made: ir.Value) -> View | None:
    new, old = named_axes(node, len(view.axes)), iter(view.axes)
    if new is None or len(set(new)) != len(new):
        return None
    rank = len(view.axes) + len(new)
    return replace(view, axes=tuple(() if i in new else next(old) for i in range(rank)))


def _reshaped(view: View, node: ir.Node, made: ir.Value) -> View | None:
    target = reshape_target(node) if node.op_type == "Reshape" else sizes(made)
    axes = None if target is None else _regrouped(list(chain(*view.axes)), list(target))
    return None if axes is None else replace(view, axes=axes)


def _regrouped(pieces: list[Piece], target: list[Size]) -> tuple[Axis, ...] | None:
    """The pieces in order as axes of these sizes: matched from both ends, what is left goes to one axis."""
    if 0 in target or any(piece.size == 0 for piece in pieces):
        return None
    front: list[Axis] = []
    while target and (taken := _take(pieces, target[0], outer=True)) is not None:
        front.append(taken)
        target.pop(0)
    back: list[Axis] = []
    while target and (taken := _take(pieces, target[-1], outer=False)) is not None:
        back.insert(0, taken)
        target.pop()
    if len(target) > 1 or (pieces and not target):
        return None
    # element counts agree, so the one size that is not known is what the others leave
    middle = [tuple(pieces)] if target else []
    return (*front, *middle, *back)


def _take(pieces: list[Piece], size: Size, *, outer: bool) -> Axis | None:
    """Pieces from one end that make up a size, out of the list; None, and all left, when they do not."""
    left = list(pieces)
    taken: list[Piece] = []
    while size != 1:
        if not left:
            return None
        piece = left.pop(0 if outer else -1)
        if piece.size != size:
            cut = _cut(piece, size, outer=outer)
            if cut is None:
                return None
            piece, rest = cut
            left[0 if outer else len(left) : 0 if outer else len(left)] = rest
        taken.insert(len(taken) if outer else 0, piece)
        if piece.size == size:
            break
        size = int(size) // int(piece.size)
    pieces[:] = left
    return tuple(taken)


def _cut(piece: Piece, size: Size, *, outer: bool) -> tuple[Piece, list[Piece]] | None:
    """The part of a piece on one end that goes into an axis of this size, and what stays of it."""
    if not isinstance(size, int) or not isinstance(piece.size, int):
        return None
    if size % piece.size == 0:
        return piece, []
    if piece.size % size:
        return None
    times = piece.size // size
    if outer:
        return replace(piece, size=size, step=piece.step * times), [replace(piece, size=times)]
    return replace(piece, size=size), [replace(piece, size=times, step=piece.step * size)]


def _gathered(view: View, node: ir.Node, made: ir.Value) -> View | None:
    """One place along an axis."""
    index, found = constant(node.inputs[1]), part_of(made, [count(axis) for axis in view.axes])
    if index is None or index.ndim or found is None:
        return None
    axis, place, starts = found[0], found[1].start, list(view.starts)
    for piece in reversed(view.axes[axis]):
        place, here = divmod(place, int(piece.size))
        if piece.axis is not None:
            starts[piece.axis] += here * piece.step
    axes = (*view.axes[:axis], *view.axes[axis + 1 :])
    return replace(view, axes=axes, starts=tuple(starts))


def _cut_out(view: View, node: ir.Node, made: ir.Value) -> View | None:
    """A Slice of one axis, or a part of a Split."""
    found = part_of(made, [count(axis) for axis in view.axes])
    if found is None or found[1].step != 1:
        return None
    axis, start, length = found[0], found[1].start, len(found[1])
    pieces = view.axes[axis]
    inner = count(pieces[1:])
    # the places must be whole counts of the outermost piece
    if length < 1 or inner is None or start % inner or length % inner:
        return None
    if not pieces or pieces[0].axis is None:
        return None
    first, starts = pieces[0], list(view.starts)
    starts[pieces[0].axis] += start // inner * first.step
    kept = (*_axis(replace(first, size=length // inner)), *pieces[1:])
    axes = (*view.axes[:axis], kept, *view.axes[axis + 1 :])
    return replace(view, axes=axes, starts=tuple(starts))


def _expanded(view: View, node: ir.Node, made: ir.Value) -> View | None:
    """Repeats along axes of size one, by counts that are written in the model."""
    asked = elements(node.inputs[1])
    if asked is None or len(asked) != len(view.axes):
        return None
    have = [1 if not axis else axis[0].size if len(axis) == 1 else count(axis) for axis in view.axes]
    axes: list[Axis] = []
    for axis, size, wanted in zip(view.axes, have, asked, strict=True):
        if wanted in (1, size):
            axes.append(axis)
        elif axis or not isinstance(wanted, int):
            return None
        else:
            axes.append((Piece(None, wanted),))
    return replace(view, axes=tuple(axes))


_NEED_AXES = frozenset({"Squeeze", "Gather", "Slice", "Split"})
_STEPS: Mapping[str, Callable[[View, ir.Node, ir.Value], View | None]] = {
    "Transpose": _transposed,
    "Squeeze": _squeezed,
    "Unsqueeze": _unsqueezed,
    "Reshape": _reshaped,
    "Flatten": _reshaped,
    "Gather": _gathered,
    "Slice": _cut_out,
    "Split": _cut_out,
    "Expand": _expanded,
}
