"""Computes pointwise ops before the views between an image and its rows of channels, where a product made it.

Channels last those views move nothing, but they end the region of the product in front of them. An op that
stands before them joins it. Its operands move along: one number, whole axes, what the same views made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import onnx_ir as ir

from ridgeline.base.choices import Refusal, RefusedError
from ridgeline.ir.layout import CONVOLUTIONS
from ridgeline.ir.op_row import Kind
from ridgeline.ir.ops import is_a
from ridgeline.ir.provenance import KEEP, node_name
from ridgeline.ir.quant import dequantizes, quantizes
from ridgeline.passes.canonical_image import is_to_lie_last, lies_last
from ridgeline.passes.fold_shape import Size, sizes
from ridgeline.passes.match import attributes, constant
from ridgeline.passes.outline import leaving
from ridgeline.passes.rule import GraphOps, Names, nbytes, replace_value
from ridgeline.passes.view_runs import View, views_of_run

NAME = "OpsBeforeViews"
MOST_OPS = 12  # that are tried to bring several live values back to one
_VIEWS = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten"})


@dataclass(frozen=True)
class Turn:
    """The views behind a product, and what they come to."""

    nodes: tuple[ir.Node, ...]
    view: View
    is_image: bool  # what the product made, which becomes rows; else rows become an image

    @property
    def source(self) -> ir.Value:
        return self.view.source

    @property
    def made(self) -> ir.Value:
        made: ir.Value = self.nodes[-1].outputs[0]
        return made

    def require(self, node: ir.Node, found: Sequence[ir.Node], behind: Sequence[ir.Node] = ()) -> None:
        """Refuses an op that cannot stand before the views, behind those that move there."""
        _require_pointwise(self.made, node)
        if KEEP in node.metadata_props:
            raise _No(node, f"it is to compute in {node.metadata_props[KEEP]}")
        own = {self.made, *(out for op in (*behind, *found) for out in op.outputs)}
        for value in node.inputs:
            if (
                value is not None
                and value not in own
                and self.moved(value) is None
                and not self.is_last(value)
            ):
                self.spread(value, node)

    def is_last(self, value: ir.Value) -> bool:
        """Whether it is an image as these views make it that lies channels last: its rows are in memory."""
        dims = sizes(value) or ()
        is_like = not self.is_image and dims == sizes(self.made) and isinstance(dims[1], int)
        return is_like and lies_last(value)

    def moved(self, value: ir.Value) -> ir.Value | None:
        """What these views move where they make a value."""
        dims = sizes(self.source)
        found = (
            v.source for v in views_of_run(value) if (v.axes, v.starts) == (self.view.axes, self.view.starts)
        )
        return next((source for source in found if sizes(source) == dims), None)

    def spread(self, value: ir.Value, node: ir.Node) -> tuple[Size, ...]:
        """The shape of an operand that is spread, as it is before the views."""
        whole, dims = sizes(self.source) or (), sizes(value)
        if dims is None:
            raise _No(node, f"the rank of its operand {value.name!r} is not known")
        kept: dict[int, Size] = {}
        for size, axis in zip(reversed(dims), reversed(self.view.axes), strict=False):
            if size == 1:
                continue
            if len(axis) != 1 or axis[0].axis is None or not size == axis[0].size == whole[axis[0].axis]:
                raise _No(node, f"its operand {value.name!r} has the shape {dims}: the views take it apart")
            kept[axis[0].axis] = size
        if (
            list(kept) != sorted(kept, reverse=True)
            or sum(isinstance(size, str) for size in kept.values()) > 1
        ):
            raise _No(node, f"its operand {value.name!r} has the shape {dims}: the views turn it")
        if not kept and len(dims) <= len(whole):
            return dims
        return tuple(kept.get(axis, 1) for axis in range(min(kept, default=len(whole)), len(whole)))

    def rows(self, image: ir.Value, op: GraphOps) -> ir.Value:
        """An image in the order in which it lies, as the source of the views has it."""
        rows: ir.Value = op.Transpose(image, perm=[0, 2, 3, 1])
        rows.type, rows.shape = image.type, ir.Shape([image.shape[axis] for axis in (0, 2, 3, 1)])
        if rows.shape.rank() != self.source.shape.rank():
            rows = op.Reshape(rows, op.numbers(0, -1, image.shape[1]))
            rows.type, rows.shape = image.type, self.source.shape
        return rows

    def operand(self, value: ir.Value, node: ir.Node, op: GraphOps) -> ir.Value:
        """An operand from elsewhere as it is before the views."""
        moved = self.moved(value)
        if moved is not None:
            return moved
        if self.is_last(value):
            return self.rows(value, op)
        shape, known = self.spread(value, node), constant(value)
        if shape == sizes(value):
            return value
        numbers = [size if isinstance(size, int) else -1 for size in shape]
        if known is not None:
            return op.const(known.reshape(numbers))
        made: ir.Value = op.Reshape(value, op.numbers(*numbers))
        made.type, made.shape = value.type, ir.Shape(list(shape))
        return made


def ops_before_views(model: ir.Model) -> list[Refusal]:
    """Move what may be moved; an op that may not says why."""
    refusals: list[Refusal] = []
    names = Names(model)
    for graph in list(model.graphs()):
        for node in list(graph):
            if is_a(node, Kind.PRODUCT) and node.op_type != "Attention":
                try:
                    _advance(node.outputs[0], names, is_image=node.op_type in CONVOLUTIONS)
                except _No as no:
                    lost = nbytes(no.at.outputs[0])
                    refusals.append(Refusal(NAME, str(no), node_name(no.at), lost and 2 * lost))
    return refusals


class _No(RefusedError):
    """Why an op stays behind the views."""

    def __init__(self, at: ir.Node, reason: str) -> None:
        super().__init__(reason)
        self.at = at


def _advance(tip: ir.Value, names: Names, *, is_image: bool) -> None:
    """Move ops before the views of a product's result, and of what its region makes of that."""
    while True:
        try:
            tip = _joined(tip, partial(_require_pointwise, tip))[-1].outputs[0]
            continue
        except _No:
            turn = _turn(tip, is_image=is_image)
        moved = [] if turn is None else _movable(turn)
        if turn is None or not moved:
            return
        tip = _rewrite(turn, moved, names)


def _movable(turn: Turn) -> list[ir.Node]:
    """All pointwise ops behind the views; refuses where one must stay: a kernel would be left for it."""
    moved: list[ir.Node] = []
    tip = turn.made
    while True:
        try:
            moved += _joined(tip, partial(turn.require, behind=tuple(moved)))
        except _No:
            if any(_is_alone(node, tip) for node in _readers(tip)):
                raise
            return moved
        tip = moved[-1].outputs[0]


def _is_alone(node: ir.Node, tip: ir.Value) -> bool:
    """Whether an op of one element each has no second operand as large, whose product could take it."""
    others = [value for value in node.inputs if value not in (None, tip) and value.producer() is not None]
    is_joined = any(sizes(value) == sizes(tip) and constant(value) is None for value in others)
    return is_a(node, Kind.POINTWISE) and sizes(node.outputs[0]) == sizes(tip) and not is_joined


def _readers(value: ir.Value) -> list[ir.Node]:
    return list(dict.fromkeys(node for node, _ in value.uses()))


def _joined(tip: ir.Value, require: Callable[[ir.Node, Sequence[ir.Node]], None]) -> list[ir.Node]:
    """The fewest ops behind a value, in order, after which again one value is read by others."""
    found: list[ir.Node] = []
    frontier = [] if tip.is_graph_output() else _readers(tip)
    while frontier and len(found) + len(frontier) <= MOST_OPS:
        for node in _in_order(frontier):
            require(node, found)
            found.append(node)
        live = leaving(found)
        if len(live) == 1:
            return _in_order(found)
        frontier = [n for n in dict.fromkeys(n for v in live for n in _readers(v)) if n not in found]
    raise _No(tip.producer(), f"{tip.name!r} and values made from it are needed outside too")


def _in_order(nodes: list[ir.Node]) -> list[ir.Node]:
    """As they stand in the graph; those of other graphs stay where they are."""
    if len(nodes) == 1:
        return nodes
    order = {node: i for i, node in enumerate(nodes[0].graph)}
    return sorted(nodes, key=lambda node: order.get(node, -1))


def _require_pointwise(tip: ir.Value, node: ir.Node, _: Sequence[ir.Node] = ()) -> None:
    """Refuses an op that is not of one element each of a value of that shape."""
    if not is_a(node, Kind.POINTWISE) or node.graph is not tip.producer().graph:
        raise _No(node, f"{node.op_type} reads {tip.name!r} too, and is not pointwise")
    if quantizes(node) or dequantizes(node):
        raise _No(node, "scales count along an axis")
    (made,) = node.outputs
    if sizes(made) is None or sizes(made) != sizes(tip):
        raise _No(node, f"its result has the shape {sizes(made)}, what it reads has {sizes(tip)}")
    if not made.uses() and not made.is_graph_output():
        raise _No(node, "nothing reads its result")


def _turn(tip: ir.Value, *, is_image: bool) -> Turn | None:
    """The views behind a value that are its only reader, if they turn an image to rows, or rows to one."""
    nodes: list[ir.Node] = []
    value = tip
    while not value.is_graph_output() and len(readers := _readers(value)) == 1:
        (node,) = readers
        if node.op_type not in _VIEWS or node.domain or node.graph is not tip.producer().graph:
            break
        nodes.append(node)
        value = node.outputs[0]
    view = next((view for view in views_of_run(value) if view.source is tip), None) if nodes else None
    if view is None or not (is_image or (len(view.axes) == 4 and is_to_lie_last(value))):
        return None
    rank = len(view.starts)
    # image to rows: channels go last; rows to image: the last axis goes behind the batch
    order = [0, *range(2, rank), 1] if is_image else [0, rank - 1, *range(1, rank - 1)]
    places = [(order.index(p.axis), -p.step) for axis in view.axes for p in axis if p.axis is not None]
    return Turn(tuple(nodes), view, is_image) if rank > 2 and places == sorted(places) else None


def _rewrite(turn: Turn, moved: Sequence[ir.Node], names: Names) -> ir.Value:
    """The ops on the source of the views, then the views; returns what the ops make."""
    last, old = moved[-1], moved[-1].outputs[0]
    made: dict[ir.Value | None, ir.Value | None] = {None: None, turn.made: turn.source}
    for node in moved:
        op = GraphOps(last.graph, names, stem=f"{node.outputs[0].name}/{NAME}")
        inputs = [made[value] if value in made else turn.operand(value, node, op) for value in node.inputs]
        new = op.call(node.op_type, *inputs, **attributes(node))
        new.type, new.shape = node.outputs[0].type, turn.source.shape
        op.place([node], rule=NAME, before=last)
        made[node.outputs[0]] = new
    joined = value = made[old]
    op = GraphOps(last.graph, names, stem=f"{old.name}/{NAME}")
    for node in turn.nodes:
        value = op.call(node.op_type, value, *node.inputs[1:], **attributes(node))
        value.type, value.shape = old.type, node.outputs[0].shape
    op.place(turn.nodes, rule=NAME, before=last)
    replace_value(old, value)
    last.graph.remove([*reversed(moved), *reversed(turn.nodes)], safe=True)
    return joined
