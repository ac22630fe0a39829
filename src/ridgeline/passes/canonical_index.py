"""Rules that see through indices which only count: such a gather is a view of what it reads."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ridgeline.passes.fold_shape import Size, named_axes, range_end, sizes
from ridgeline.passes.match import attribute, constant
from ridgeline.passes.rule import Fusion, Match

# the axis along which an index counts, and how far; an index that is 0 throughout counts along no axis
Count: TypeAlias = tuple[int | None, Size]


class IndexedByPosition(Fusion):
    """x[i, j, ..] for all i, j, .. in order = x with axes of size one between its own"""

    may_change = ()

    def pattern(self, op: Any, x: Any, indices: Any) -> Any:
        return op.GatherND(x, indices)

    def check(self, m: Match) -> None:
        _kept_axes(m)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        rank = len(m.dims(m.indices)) - 1
        gone = sorted(set(range(rank)) - set(_kept_axes(m)))
        return op.Unsqueeze(m.x, op.const(np.array(gone, dtype=np.int64)))


def _kept_axes(m: Match) -> list[int]:
    """The axes of the result that are those of x, in order; refuses when the indices do more than count."""
    m.require(attribute(m.root, "batch_dims") == 0, "gathers within batches", m.indices)
    source, result = m.dims(m.x), m.dims(m.indices)[:-1]
    counts = _counts(m.indices)
    m.require(counts is not None and len(counts) == len(source), "indices do not count", m.indices)
    kept: list[int] = []
    for (axis, length), size in zip(counts or (), source, strict=True):
        m.require(length == size, f"counts to {length} along an axis of {size}", m.indices)
        place = axis if axis is not None else (kept[-1] + 1 if kept else 0)
        m.require(place < len(result) and result[place] == size, "does not keep its axes", m.indices)
        m.require(not kept or place > kept[-1], "changes the order of the axes", m.indices)
        kept.append(place)
    others = [size for axis, size in enumerate(result) if axis not in kept]
    m.require(all(size == 1 for size in others) and others, "repeats what it reads", m.indices)
    return kept


def _counts(indices: ir.Value) -> list[Count] | None:
    """For each entry of an index, along which axis of the result it counts."""
    array = constant(indices)
    if array is not None:
        found = [_count_of_array(array[..., i]) for i in range(array.shape[-1])]
        return None if None in found else [count for count in found if count is not None]
    node = indices.producer()
    rank = indices.shape.rank() if indices.shape is not None else 0
    if node is None or node.op_type != "Concat" or attribute(node, "axis") % rank != rank - 1:
        return None
    made: list[Count] = []
    for part in node.inputs:
        inner = part.producer()
        axes = constant(inner.inputs[1]) if inner is not None and inner.op_type == "Unsqueeze" else None
        if inner is None or axes is None or axes.reshape(-1).tolist() not in ([-1], [rank - 1]):
            return None
        count = _count(inner.inputs[0])
        if count is None:
            return None
        made.append(count)
    return made


def _count(value: ir.Value) -> Count | None:
    array, node = constant(value), value.producer()
    if array is not None:
        return _count_of_array(array)
    if node is None or value.shape is None:
        return None
    if node.op_type == "Range":
        end = range_end(node)
        return None if end is None else (0, end)
    if node.op_type not in ("Expand", "Unsqueeze"):
        return None
    inner = _count(node.inputs[0])
    if inner is None or inner[0] is None:
        return inner
    return _moved(node, inner[0], inner[1])


def _moved(node: ir.Node, axis: int, length: Size) -> Count | None:
    """Where an axis of a node's input lies in its output."""
    source, rank = sizes(node.inputs[0]), node.outputs[0].shape.rank()
    if source is None:
        return None
    if node.op_type == "Expand":
        return axis + rank - len(source), length
    new = named_axes(node, len(source))
    return None if new is None else ([i for i in range(rank) if i not in new][axis], length)


def _count_of_array(array: np.ndarray) -> Count | None:
    flat_axes = [
        axis for axis in range(array.ndim) if array.shape[axis] > 1 and np.any(np.diff(array, axis=axis))
    ]
    if not flat_axes:
        return (None, 1) if array.size and not np.any(array) else None
    axis = flat_axes[0]
    length = array.shape[axis]
    line = np.arange(length).reshape([-1 if i == axis else 1 for i in range(array.ndim)])
    return (axis, length) if len(flat_axes) == 1 and bool(np.all(array == line)) else None


RULES: tuple[Fusion, ...] = (IndexedByPosition(),)
