"""Rewrites for meanings of old opsets that ONNX's own converter loses, before and after it runs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from ridgeline.errors import UnsupportedError

# the converter leaves ops of this domain alone
KEPT = "ridgeline.kept"


def before_conversion(model: ir.Model, version: int) -> None:
    """Rewrites in ops of the old opset, which the converter would leave unchanged."""
    if version < 13:
        for node in _nodes(model, "Hardmax"):
            _flatten_around(node)
    if version == 8:
        for node in _nodes(model, "Scan"):
            _scan_by_item(node)
            model.opset_imports[KEPT] = 1


def release(model: ir.Model) -> None:
    """Give kept ops their domain back after the converter has passed the opset that it misreads."""
    for node in _nodes(model, "Scan", domain=KEPT):
        node.domain = ""
    model.opset_imports.pop(KEPT, None)


def after_conversion(model: ir.Model, version: int) -> None:
    """Rewrites in ops of the canonical opset: attributes that the converter leaves out."""
    if version < 11:
        for node in _nodes(model, "Resize"):
            _say_how_to_resize(node)
    if version < 7:
        common_passes.ShapeInferencePass()(model)
        for node in _nodes(model, "PRelu"):
            _slope_per_channel(node)


def _nodes(model: ir.Model, op_type: str, domain: str = "") -> Iterator[ir.Node]:
    for graph in list(model.graphs()):
        yield from [node for node in graph if node.op_type == op_type and node.domain == domain]


def _say_how_to_resize(node: ir.Node) -> None:
    """State the meaning before opset 11: first pixels coincide, and a shrinking axis takes the next pixel."""
    scales = node.inputs[2] if len(node.inputs) > 2 else None
    factors = None if scales is None or scales.const_value is None else scales.const_value.numpy()
    node.attributes.add(ir.AttrString("coordinate_transformation_mode", "asymmetric"))
    may_shrink = factors is None or bool((factors < 1).any())
    may_grow = factors is None or bool((factors > 1).any())
    node.attributes["nearest_mode"] = ir.AttrString("nearest_mode", "ceil" if may_shrink else "floor")
    is_nearest = node.attributes.get_string("mode", "nearest") == "nearest"
    if scales is not None and is_nearest and may_shrink and may_grow:
        _grow_after(node, scales, factors)


def _grow_after(node: ir.Node, scales: ir.Value, factors: np.ndarray | None) -> None:
    """The node keeps the axes that shrink; a second one, which rounds otherwise, grows the rest."""
    graph, y = node.graph, node.outputs[0]
    sizes = [
        _bounded(node, scales, factors, "Min", f"{y.name}/shrunk_by"),
        _bounded(node, scales, factors, "Max", f"{y.name}/grown_by"),
    ]
    attributes = {**node.attributes, "nearest_mode": ir.AttrString("nearest_mode", "floor")}
    grown = ir.Node("", "Resize", [y, None, sizes[1]], attributes.values())
    ir.convenience.replace_all_uses_with(y, grown.outputs[0], replace_graph_outputs=True)
    grown.replace_input_with(0, y)
    node.replace_input_with(2, sizes[0])
    graph.insert_after(node, [grown])
    grown.outputs[0].type, grown.outputs[0].shape = y.type, y.shape
    name, y.name, y.shape = y.name, f"{y.name}/shrunk", None
    grown.outputs[0].name = name


def _bounded(node: ir.Node, scales: ir.Value, factors: np.ndarray | None, op: str, name: str) -> ir.Value:
    """Scales clipped to at most or at least 1: a weight if they are known, else the output of a node."""
    known = {"Min": np.minimum, "Max": np.maximum}[op]
    number = np.ones(1, np.float32) if factors is None else known(factors, np.float32(1))
    weight = _weight(node.graph, name if factors is not None else f"{name}/one", number)
    if factors is not None:
        return weight
    made = ir.node(op, [scales, weight])
    made.outputs[0].name = name
    node.graph.insert_before(node, [made])
    return made.outputs[0]


def _weight(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    value = ir.Value(name=name, const_value=ir.tensor(array, name=name))
    graph.register_initializer(value)
    return value


def _flatten_around(node: ir.Node) -> None:
    """Flatten around the op: before opset 13 the axes from `axis` on counted as one."""
    x, y, graph = node.inputs[0], node.outputs[0], node.graph
    axis = node.attributes.get_int("axis", 1)
    shape = ir.node("Shape", [x])
    rows = ir.node("Flatten", [x], attributes={"axis": axis})
    flat = ir.node("Hardmax", [rows.outputs[0]], attributes={"axis": 1})
    back = ir.node("Reshape", [flat.outputs[0], shape.outputs[0]])
    for part, what in ((shape, "shape"), (rows, "rows"), (flat, "flat")):
        part.outputs[0].name = f"{y.name}/{what}"
    graph.insert_before(node, [shape, rows, flat, back])
    ir.convenience.replace_all_uses_with(y, back.outputs[0], replace_graph_outputs=True)
    back.outputs[0].shape, back.outputs[0].type = y.shape, y.type
    name, y.name = y.name, None
    back.outputs[0].name = name
    graph.remove(node, safe=True)


def _scan_by_item(node: ir.Node) -> None:
    """In opset 8 a Scan ran for each item of a batch: it becomes a Scan over the batch around one."""
    lengths, *reads = node.inputs
    if lengths is not None:
        raise UnsupportedError(
            f"Scan at {node.name or node.outputs[0].name} takes the lengths of its sequences",
            want="sequences of one length, or opset 9 and later",
        )
    stem = node.outputs[0].name
    items = [ir.Value(name=f"{stem}/item{i}") for i in range(len(reads))]
    for item, whole in zip(items, reads, strict=True):
        if whole is not None:
            item.type, item.shape = whole.type, None if whole.shape is None else ir.Shape(whole.shape[1:])
    attributes = dict(node.attributes)
    if "directions" in attributes:
        attributes["scan_input_directions"] = ir.AttrInt64s(
            "scan_input_directions", attributes.pop("directions").as_ints()
        )
    count = len(node.outputs)
    inner = ir.Node(KEPT, "Scan", items, attributes.values(), num_outputs=count, name=f"{stem}/steps")
    for i, out in enumerate(inner.outputs):
        out.name, out.type = f"{stem}/made{i}", node.outputs[i].type
    body = ir.Graph(items, inner.outputs, nodes=[inner], name=f"{stem}/item")
    for key in list(node.attributes):
        del node.attributes[key]
    node.attributes["body"] = ir.AttrGraph("body", body)
    node.attributes["num_scan_inputs"] = ir.AttrInt64("num_scan_inputs", len(reads))
    node.domain = KEPT
    node.resize_inputs(len(reads))
    for i, value in enumerate(reads):
        node.replace_input_with(i, value)


def _slope_per_channel(node: ir.Node) -> None:
    """Add the trailing axes to PRelu's slopes, which before opset 7 needed none."""
    x, slope = node.inputs
    if x is None or slope is None or x.shape is None or slope.shape is None or len(slope.shape) != 1:
        return
    behind = list(range(1, len(x.shape) - 1))
    if slope.shape[0] == 1 or not behind:
        return
    axes = _weight(node.graph, f"{node.outputs[0].name}/axes", np.array(behind, np.int64))
    spread = ir.node("Unsqueeze", [slope, axes])
    spread.outputs[0].name = f"{node.outputs[0].name}/slope"
    node.graph.insert_before(node, [spread])
    node.replace_input_with(1, spread.outputs[0])
