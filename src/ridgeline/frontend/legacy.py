"""Rewrites for meanings of old opsets that ONNX's own converter loses, before and after it runs."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from ridgeline.errors import UnsupportedError
from ridgeline.frontend.contrib import write_node_out
from ridgeline.frontend.contrib_call import Call, Definition, ints

# the converter leaves ops of this domain alone
KEPT = "ridgeline.kept"


def before_conversion(model: ir.Model, version: int) -> None:
    """Rewrites in ops of the old opset, which the converter would leave unchanged."""
    if version < 13:
        for node in _nodes(model, "Hardmax"):
            write_node_out(node, Definition(("x",), ("y",), _flattened))
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
            write_node_out(node, Definition(("x", "slope"), ("y",), _slope_per_channel))


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
        write_node_out(node, Definition(("x", "roi", "scales"), ("y",), _shrunk_then_grown))


def _shrunk_then_grown(call: Call) -> str:
    """Two nodes: the first shrinks axes, the second grows the others and rounds otherwise."""
    return """one = Constant<value_floats = [1.0]>() smaller = Min(scales, one) larger = Max(scales, one)
        shrunk = Resize<coordinate_transformation_mode = "asymmetric", nearest_mode = "ceil">(x, , smaller)
        y = Resize<coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(shrunk, , larger)"""


def _flattened(call: Call) -> str:
    """Before opset 13 the axes from `axis` on counted as one."""
    return f"""shape = Shape(x) rows = Flatten<axis = {call.get("axis", 1)}>(x)
        flat = Hardmax<axis = 1>(rows) y = Reshape(flat, shape)"""


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


def _slope_per_channel(call: Call) -> str:
    """PRelu with the trailing axes of its slopes, which before opset 7 needed none."""
    sizes, behind = call.shape("slope"), range(1, call.rank("x") - 1)
    call.require(len(sizes) == 1 and sizes != (1,) and len(behind) > 0)
    return f"{ints('axes', *behind)} spread = Unsqueeze(slope, axes) y = PRelu(x, spread)"
