"""Rows that nobody reads are not computed: a selection moves up to where rows meet one another.

A classifier reads one token of the last layer; everything there but keys and values is then of one row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ridgeline.ir.op_row import Kind
from ridgeline.ir.ops import is_a
from ridgeline.ir.quant import dequantizes, quantizes
from ridgeline.passes.fold_shape import part_of, sizes
from ridgeline.passes.match import attribute, captured_values, constant, is_read
from ridgeline.passes.rule import GraphOps, Names, replace_value

NAME = "UnreadRows"
_NORMS = frozenset({"LayerNormalization", "RMSNormalization", "Softmax"})


class Rows(NamedTuple):
    """Some of the rows along one axis."""

    axis: int
    places: range


def drop_unread_rows(model: ir.Model) -> None:
    """Narrow what is computed row by row and read only in part, where a product or a norm gains by it."""
    names = Names(model)
    for graph in list(model.graphs()):
        wanted = _wanted(graph)
        gains = any(n.op_type in _NORMS | {"MatMul", "Attention"} for n in graph if n.outputs[0] in wanted)
        if gains:
            _narrow(graph, wanted, names)


def _wanted(graph: ir.Graph) -> dict[ir.Value, Rows]:
    """The values of which only these rows are read, and which can be computed for them alone."""
    demands: dict[ir.Value, Rows | None] = dict.fromkeys(graph.outputs)
    for node in reversed(list(graph)):
        out = node.outputs[0] if node.outputs else None
        rows = demands.get(out) if out is not None else None
        demands.update(dict.fromkeys(node.outputs[1:]))
        picked = _picked(node)
        operands = _row_operands(node, rows) if rows is not None else None
        if rows is not None and operands is None and out is not None:
            demands[out] = None  # made whole; its readers take their part of it
        for index, value in enumerate(node.inputs):
            if value is None:
                continue
            asked = picked if index == 0 else None
            if operands is not None:
                asked = _of_operand(rows, node, value) if index in operands else None
                # a constant that rows do not run along asks nothing of anybody
                if index not in operands and constant(value) is not None:
                    continue
            demands[value] = asked if demands.get(value, asked) == asked else None
        for inner in captured_values(node):
            demands[inner] = None
    return {
        value: rows for value, rows in demands.items() if rows is not None and value.producer() is not None
    }


def _picked(node: ir.Node) -> Rows | None:
    """The rows that a Gather of one place or a Slice of some takes out of its input."""
    if node.op_type not in ("Gather", "Slice") or node.domain:
        return None
    dims = sizes(node.inputs[0])
    found = part_of(node.outputs[0], dims) if dims is not None and len(dims) > 2 else None
    if dims is None or found is None:
        return None
    axis, places = found
    is_part = places.step == 1 and len(places) > 0 and (node.op_type == "Gather" or len(places) != dims[axis])
    return Rows(axis, places) if is_part and axis != len(dims) - 1 else None


def _row_operands(node: ir.Node, rows: Rows) -> list[int] | None:
    """The inputs of which the same rows are enough; None when an output row needs more than them."""
    out = sizes(node.outputs[0])
    if out is None or node.domain or any(map(is_read, node.outputs[1:])):
        return None
    if node.op_type in _NORMS:
        axis = attribute(node, "axis")
        return [0] if axis % len(out) == len(out) - 1 else None
    if node.op_type == "MatMul":
        weight, left = constant(node.inputs[1]), sizes(node.inputs[0])
        return [0] if weight is not None and weight.ndim == 2 and left is not None else None
    if node.op_type == "Attention":
        is_masked = any(value is not None for value in node.inputs[3:]) or attribute(node, "is_causal")
        return [0] if not is_masked and len(out) == 3 and rows.axis == 1 else None
    if not is_a(node, Kind.POINTWISE):
        return None
    if quantizes(node) or dequantizes(node):  # a scale of several numbers lies along an axis of its own
        scale = sizes(node.inputs[1])
        return [0] if scale is not None and all(size == 1 for size in scale) else None
    found = []
    for index, value in enumerate(node.inputs):
        dims = sizes(value) if value is not None else ()
        if dims is None:
            return None
        place = rows.axis - (len(out) - len(dims))
        if place >= 0 and dims[place] == out[rows.axis]:
            found.append(index)
        elif place >= 0 and dims[place] != 1:
            return None
    return found


def _of_operand(rows: Rows | None, node: ir.Node, value: ir.Value) -> Rows | None:
    """The same rows in an operand of lower rank."""
    mine, out = sizes(value), sizes(node.outputs[0])
    if rows is None or mine is None or out is None:
        return None
    return Rows(rows.axis - (len(out) - len(mine)), rows.places)


def _narrow(graph: ir.Graph, wanted: Mapping[ir.Value, Rows], names: Names) -> None:
    parts: dict[tuple[ir.Value, Rows], ir.Value] = {}
    # known before the first edit: whoever reads a selection reads a narrowed value once it is gone
    selectors = [node for node in graph if node.inputs and node.inputs[0] in wanted and _picked(node)]
    for node in list(graph):
        rows = wanted.get(node.outputs[0]) if node.outputs else None
        if rows is not None:
            for index in _row_operands(node, rows) or ():
                value = node.inputs[index]
                asked = _of_operand(rows, node, value)
                if value not in wanted and asked is not None:
                    if (value, asked) not in parts:
                        parts[value, asked] = _part(node, value, asked, names)
                    node.replace_input_with(index, parts[value, asked])
    for node in selectors:
        _put_aside(node, wanted[node.inputs[0]], names)
    for value, rows in wanted.items():
        dims = list(value.shape)
        dims[rows.axis] = len(rows.places)
        value.shape = ir.Shape(dims)


def _part(reader: ir.Node, value: ir.Value, rows: Rows, names: Names) -> ir.Value:
    """A Slice of a value that others need whole, in front of its reader; of a constant, another constant."""
    op = GraphOps(reader.graph, names, stem=f"{value.name}/{NAME}")
    array = constant(value)
    if array is not None:
        return op.const(np.take(array, rows.places, axis=rows.axis))
    part: ir.Value = op.Slice(value, *map(op.numbers, (rows.places.start, rows.places.stop, rows.axis)))
    op.place([reader], rule=NAME, before=reader)
    return part


def _put_aside(selector: ir.Node, rows: Rows, names: Names) -> None:
    """The selection itself, of a value that now is what it takes: nothing is left but a lost axis."""
    graph, old, whole = selector.graph, selector.outputs[0], selector.inputs[0]
    first = constant(selector.inputs[1])
    if selector.op_type == "Gather" and first is not None and first.ndim == 0:
        op = GraphOps(graph, names, stem=f"{old.name}/{NAME}")
        whole = op.Squeeze(whole, op.numbers(rows.axis))
        op.place([selector], rule=NAME, before=selector)
    replace_value(old, whole)
    graph.remove(selector, safe=True)
