"""Writes a run of movement ops in its shortest form: slice, reshape, transpose, reshape, each where needed.

Exporters split, turn and select in many small steps; the same view in few steps is one that later rules know
and that a region takes whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ridgeline.passes.fold_shape import Size, sizes, written_shape
from ridgeline.passes.rule import GraphOps, Names, replace_value
from ridgeline.passes.view_runs import Axis, View, count, is_movement, views_of_run

NAME = "ShortestView"


def simplify_views(model: ir.Model) -> None:
    """Rewrite every run that can be written with fewer ops."""
    names = Names(model)
    for graph in list(model.graphs()):
        for node in reversed(list(graph)):
            if is_movement(node) and node.graph is graph:
                for value in node.outputs:
                    if value.is_graph_output() or any(not is_movement(reader) for reader, _ in value.uses()):
                        _simplify(value, names)


def _simplify(value: ir.Value, names: Names) -> None:
    node = value.producer()
    for view in views_of_run(value):
        op = GraphOps(node.graph, names, stem=f"{value.name}/{NAME}")
        steps = spelling(view)
        if steps is not None and len(steps) < len(view.run):
            new = write(op, view.source, steps)
            if new is view.source and value.is_graph_output():
                continue  # an output keeps a node of its own
            op.place(view.run, rule=NAME, before=node)
            replace_value(value, new)
            return


@dataclass(frozen=True)
class Step:
    """One movement op with what it needs beside its input: a perm, a shape, or start, end and axis."""

    op_type: str
    numbers: tuple[int, ...]


def write(op: GraphOps, source: ir.Value, steps: Sequence[Step]) -> ir.Value:
    """The ops of a spelling, from its source on."""
    value = source
    for step in steps:
        if step.op_type == "Transpose":
            value = op.Transpose(value, perm=list(step.numbers))
        elif step.op_type == "Reshape":
            value = op.Reshape(value, op.numbers(*step.numbers))
        else:
            value = op.Slice(value, *map(op.numbers, step.numbers))
    return value


def spelling(view: View) -> list[Step] | None:
    """The fewest ops that make the view; None where it is no slice of its source or a size is unknown."""
    factors = _factors(view)
    slices = None if factors is None else _slices(view, factors)
    if factors is None or slices is None:
        return None
    ones = sum(not axis for axis in view.axes)
    placed = _placed(factors, ones)
    order = _order(placed, view.axes)
    split = _reshape([_size(part) for part in factors], [_size(part) for part in placed])
    joined = _reshape([_size(placed[i]) for i in order], [_size(axis) for axis in view.axes])
    if split is None or joined is None:
        return None
    turned = [] if order == sorted(order) else [Step("Transpose", tuple(order))]
    return [*slices, *split, *turned, *joined]


def _factors(view: View) -> list[Axis] | None:
    """The pieces of each source axis, outermost first; None where they do not lie side by side."""
    pieces = [piece for axis in view.axes for piece in axis]
    found: list[Axis] = []
    for axis in range(len(view.starts)):
        mine = sorted((p for p in pieces if p.axis == axis), key=lambda p: p.step)
        reach = 1
        for piece in mine:
            if piece.step != reach or (not isinstance(piece.size, int) and len(mine) > 1):
                return None
            reach *= piece.size if isinstance(piece.size, int) else 1
        found.append(tuple(reversed(mine)))
    return None if any(piece.axis is None for piece in pieces) else found


def _slices(view: View, factors: Sequence[Axis]) -> list[Step] | None:
    """What cuts the source down to the places that are read; None where they are not numbers."""
    steps = []
    axes = zip(factors, view.starts, sizes(view.source) or (), strict=True)
    for axis, (part, start, whole) in enumerate(axes):
        length = _size(part)
        if length == whole and start == 0:
            continue
        if not isinstance(length, int):
            return None
        steps.append(Step("Slice", (start, start + length, axis)))
    return steps


def _placed(factors: Sequence[Axis], ones: int) -> list[Axis]:
    """The factors in the source's order, with as many sizes of one as the result has."""
    placed: list[Axis] = []
    for part in factors:
        placed += [(piece,) for piece in part] or [()]
    while sum(not part for part in placed) > ones:
        placed.remove(())
    return [()] * (ones - sum(not part for part in placed)) + placed


def _order(placed: Sequence[Axis], axes: Sequence[Axis]) -> list[int]:
    """Which factor comes where in the result."""
    units = iter([i for i, part in enumerate(placed) if not part])
    order = []
    for axis in axes:
        order += [placed.index((piece,)) for piece in axis] or [next(units)]
    return order


def _size(axis: Axis) -> Size | None:
    """The size of an axis; None when several pieces make an unknown one."""
    return axis[0].size if len(axis) == 1 else count(axis)


def _reshape(before: Sequence[Size | None], after: Sequence[Size | None]) -> list[Step] | None:
    """The reshape between two lists of sizes, none when they are the same; None when it cannot be written."""
    if list(before) == list(after) and None not in after:
        return []
    shape = written_shape(before, after)
    return [Step("Reshape", tuple(shape))] if shape.count(-1) < 2 else None
