"""Masks and rotary tables that ONNX lets broadcast, spread out: other runtimes want every row written.

The fused graph must stay one that ONNX Runtime runs too: it checks it, and may compute parts of it. The rows
are the same for all layers, so they are written once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from ridgeline.passes.fold_shape import Size, sizes
from ridgeline.passes.rule import GraphOps, Names

NAME = "SpreadRows"
# what was spread to which shape, in one graph: layers share it
Made: TypeAlias = dict[tuple[ir.Value, tuple[Size, ...]], ir.Value]


def broadcast_rows(model: ir.Model) -> None:
    """Attention masks get a row per query, caches of RotaryEmbedding one per batch entry."""
    names = Names(model)
    for graph in list(model.graphs()):
        made: Made = {}
        for node in list(graph):
            if node.domain:
                continue
            if node.op_type == "Attention":
                _broadcast_mask(node, names, made)
            elif node.op_type == "RotaryEmbedding":
                _broadcast_caches(node, names, made)


def _broadcast_mask(node: ir.Node, names: Names, made: Made) -> None:
    mask = node.inputs[3] if len(node.inputs) > 3 else None
    queries = sizes(node.inputs[0])
    dims = None if mask is None else sizes(mask)
    if queries is None or dims is None or len(dims) < 2 or dims[-2] != 1:
        return
    axis = 2 if len(queries) == 4 else 1
    if queries[axis] != 1:
        shape: list[Size] = [1] * len(dims)
        shape[-2] = queries[axis]
        _spread(node, 3, shape, axis, names, made)


def _broadcast_caches(node: ir.Node, names: Names, made: Made) -> None:
    has_places = len(node.inputs) > 3 and node.inputs[3] is not None
    batch = sizes(node.inputs[0])
    for index in (1, 2):
        dims = sizes(node.inputs[index])
        if has_places or batch is None or dims is None or len(dims) != 3:
            continue
        if dims[0] == 1 and batch[0] != 1:
            _spread(node, index, [batch[0], 1, 1], 0, names, made)


def _spread(
    node: ir.Node,
    index: int,
    shape: Sequence[Size],
    axis: int,
    names: Names,
    made: Made,
) -> None:
    """Let the node read its input spread to `shape`, whose one open size is that of an axis of input 0."""
    value, first = node.inputs[index], node.inputs[0]
    assert value is not None, "only inputs that are there are spread"
    key = (value, tuple(shape))
    if key not in made:
        op = GraphOps(node.graph, names, stem=f"{value.name}/{NAME}")
        wide = op.Expand(value, _shape(op, shape, first, axis))
        wide.type = value.type
        grown = zip(shape, value.shape, strict=True)
        wide.shape = ir.Shape([dim if size == 1 else first.shape[axis] for size, dim in grown])
        op.place([node], rule=NAME, before=node)
        made[key] = wide
    node.replace_input_with(index, made[key])


def _shape(op: GraphOps, shape: Sequence[Size], first: ir.Value, axis: int) -> ir.Value:
    if all(isinstance(size, int) for size in shape):
        return op.const(np.array(shape, dtype=np.int64))
    place = next(i for i, size in enumerate(shape) if size != 1)
    parts = [np.ones(place, np.int64), None, np.ones(len(shape) - place - 1, np.int64)]
    size = op.Shape(first, start=axis, end=axis + 1)
    return op.Concat(*(size if p is None else op.const(p) for p in parts if p is None or p.size), axis=0)
