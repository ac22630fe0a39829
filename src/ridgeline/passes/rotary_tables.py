"""Tables of cosines and sines that hold every column twice, and the parts of a value that they turn."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ridgeline.passes.fold_shape import named_axes, part_of, sizes
from ridgeline.passes.match import attribute, attributes, constant

_PER_ITEM = frozenset({"Cos", "Sin", "Cast", "Identity"})
_SCALED = frozenset({"Mul", "Div"})
_PER_ROW = frozenset({"Unsqueeze", "Squeeze", "Slice", "Gather"})
_MAX_DEPTH = 12


Piece: TypeAlias = tuple[ir.Value, range]  # a value, and some of its columns


def piece(value: ir.Value) -> Piece | None:
    """What a value is some columns of; None when it is no cut along the last axis."""
    node = value.producer()
    if node is None or node.op_type not in ("Slice", "Split"):
        return None
    dims = sizes(node.inputs[0])
    found = part_of(value, dims) if dims else None
    if dims is None or found is None or found[0] != len(dims) - 1 or found[1].step < 1:
        return None
    return node.inputs[0], found[1]


def is_doubled(table: ir.Value, interleaved: bool, depth: int = 0) -> bool:
    """Whether the second half of the columns is the first again, or each column stands twice in a row."""
    array, node = constant(table), table.producer()
    if array is not None:
        return array.ndim > 0 and array.shape[-1] % 2 == 0 and _halves_agree(array, interleaved)
    if node is None or depth > _MAX_DEPTH or node.domain:
        return False
    if node.op_type == "Concat":
        rank = len(sizes(table) or ())
        is_last = rank > 0 and attribute(node, "axis") % rank == rank - 1
        is_pair = len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]
        return is_last and is_pair and not interleaved
    inner = _reads(node)
    return inner is not None and is_doubled(inner, interleaved, depth + 1)


def _halves_agree(array: np.ndarray, interleaved: bool) -> bool:
    if interleaved:
        return bool(np.array_equal(array[..., 0::2], array[..., 1::2]))
    front, back = np.split(array, 2, axis=-1)
    return bool(np.array_equal(front, back))


def _reads(node: ir.Node) -> ir.Value | None:
    """The table behind a node that keeps columns in place; None for any other node."""
    source = node.inputs[0]
    dims = None if source is None else sizes(source)
    if node.op_type in _PER_ITEM:
        return source
    if node.op_type in _SCALED:
        table, factor = _scaled(node)
        return table if factor is not None else None
    if node.op_type not in _PER_ROW or dims is None or len(dims) < 2:
        return None
    if node.op_type == "Gather":
        return source if attribute(node, "axis") % len(dims) < len(dims) - 1 else None
    axes = named_axes(node, len(dims)) or []
    last = len(dims) - 1 + (len(axes) if node.op_type == "Unsqueeze" else 0)
    return source if axes and last not in axes else None


def _scaled(node: ir.Node) -> tuple[ir.Value, ir.Value | None]:
    """A table times one number: the table first, then the number."""
    left, right = node.inputs
    for table, factor in ((left, right), (right, left))[: 1 if node.op_type == "Div" else 2]:
        number = constant(factor)
        if number is not None and number.size == 1 and number.ndim <= len(sizes(table) or ()):
            return table, factor
    return left, None


def once(op: Any, table: ir.Value, interleaved: bool) -> ir.Value:
    """The table with every column once: what `is_doubled` found, made again from half as many columns."""
    array, node = constant(table), table.producer()
    if array is not None:
        half = array[..., 0::2] if interleaved else np.split(array, 2, axis=-1)[0]
        return op.const(np.ascontiguousarray(half))
    assert node is not None, "a table that is no constant is made by a node"
    if node.op_type == "Concat":
        return node.inputs[0]
    source = _reads(node)
    assert source is not None, "is_doubled saw through this node"
    inner = once(op, source, interleaved)
    given = [inner if value is source else value for value in node.inputs]
    made = getattr(op, node.op_type)(*given, **attributes(node))
    made.dtype = table.dtype
    return made
