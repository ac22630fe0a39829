"""Norms that ONNX's ops cannot express: of half values with float32 weights, and in double.

Under autocast a layer's weights stay float32, and the exporter hands both types to an op that takes one. In
double the ops still hold epsilon as a float32, and some their state. Both are written out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import onnx_ir as ir

from ridgeline.frontend.contrib import write_node_out
from ridgeline.frontend.contrib_call import Call, Definition, ints

_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_INPUTS = {
    "LayerNormalization": ("x", "w", "b"),
    "RMSNormalization": ("x", "w"),
    "GroupNormalization": ("x", "w", "b"),
    "InstanceNormalization": ("x", "w", "b"),
    "BatchNormalization": ("x", "w", "b", "mean", "var"),
}
_OUTPUTS = ("y", "second", "third")
# what is subtracted, and the mean square of what is left
_OWN_MOMENTS = """middle = ReduceMean(x, axes) centred = Sub(x, middle)
    square = Mul(centred, centred) variance = ReduceMean(square, axes)"""
_MOMENTS = {
    "RMSNormalization": "centred = Identity(x) square = Mul(x, x) variance = ReduceMean(square, axes)",
    "GroupNormalization": "grouped = Reshape(x, groups) " + _OWN_MOMENTS.replace("(x, ", "(grouped, "),
    "BatchNormalization": """middle = Reshape(mean, channels) centred = Sub(x, middle)
        variance = Reshape(var, channels)""",
}


def write_out_norms(model: ir.Model) -> None:
    for graph in list(model.graphs()):
        for node in [node for node in graph if node.op_type in _INPUTS and node.domain == ""]:
            body = _body_for(node)
            if body is not None:
                write_node_out(node, Definition(_INPUTS[node.op_type], _OUTPUTS, partial(body, node.op_type)))


def _body_for(node: ir.Node) -> Callable[[str, Call], str] | None:
    x, *weights = (value.dtype for value in node.inputs if value is not None)
    if x == ir.DataType.DOUBLE:
        return _in_double
    is_mixed = x in _HALVES and ir.DataType.FLOAT in weights
    # BatchNormalization takes two types as it is
    return _in_float if is_mixed and node.op_type != "BatchNormalization" else None


def _in_float(op_type: str, call: Call) -> str:
    call.require(not call.wants("second", "third"))
    wide = " ".join(f"{name}_wide = Cast<to = 1>({name})" for name in call.given)
    reads = ", ".join(f"{name}_wide" for name in call.given)
    attrs = ", ".join(f"{name} = {value!r}" for name, value in call.attributes.items())
    return f"{wide} made = {op_type}<{attrs}>({reads}) y = Cast<to = {call.dtype('x')}>(made)"


def _in_double(op_type: str, call: Call) -> str:
    """(x - mean) / sqrt(variance + epsilon) · w + b; some of the constants are unused."""
    rank = call.rank("x")
    call.require(not call.get("training_mode", 0) and not call.wants("second", "third"))
    is_by_row = op_type in ("LayerNormalization", "RMSNormalization")
    is_grouped = op_type == "GroupNormalization"
    first = call.get("axis", -1) % rank if is_by_row else 2
    lines = [
        f"epsilon = Constant<value = double {{{call.get('epsilon', 1e-5)!r}}}>()",
        ints("axes", *(range(first, 3 if is_grouped else rank) or [1])),
        ints("channels", -1, *[1] * (rank - 2)),
        ints("groups", 0, call.get("num_groups", 0), -1),
        _MOMENTS.get(op_type, _OWN_MOMENTS),
        "guarded = Add(variance, epsilon) deviation = Sqrt(guarded) normal = Div(centred, deviation)",
        "shape = Shape(x) made = Reshape(normal, shape)" if is_grouped else "made = Identity(normal)",
    ]
    for name in filter(call.has, ("w", "b")):
        lines += [f"{name}_fit = " + (f"Identity({name})" if is_by_row else f"Reshape({name}, channels)")]
    lines += [
        "scaled = Mul(made, w_fit)",
        "y = Add(scaled, b_fit)" if call.has("b") else "y = Identity(scaled)",
    ]
    return " ".join(lines)
