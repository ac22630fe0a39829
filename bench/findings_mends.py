"""Findings applied to the ONNX file they were found in, for the kinds that leave a person no choice.

Used to confirm that a change gains what was said. `None` where the change is a person's (an export in another
type, another size).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import numpy_helper

from ridgeline.analyze.findings.finding import Finding

Mend = Callable[[onnx.ModelProto, Finding], bool]


def mended(model: onnx.ModelProto, finding: Finding) -> onnx.ModelProto | None:
    """A copy of the model with the finding's change made."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    mend = MENDS.get(finding.kind)
    return copy if mend is not None and mend(copy, finding) else None


def label(node: onnx.NodeProto) -> str:
    """As findings name a node."""
    return node.name or node.output[0]


def _named(model: onnx.ModelProto, finding: Finding, *op_types: str) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if label(node) in finding.nodes and node.op_type in op_types]


def _drop(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    """Let readers of a node read its first operand."""
    source, made = node.input[0], node.output[0]
    model.graph.node.remove(node)
    if any(port.name == made for port in model.graph.output):
        for other in model.graph.node:
            other.output[:] = [made if name == source else name for name in other.output]
            other.input[:] = [made if name == source else name for name in other.input]
    for other in model.graph.node:
        other.input[:] = [source if name == made else name for name in other.input]


def _turn_port(model: onnx.ModelProto, finding: Finding) -> bool:
    """The input or output of the model in the order that the transpose makes of it."""
    turns = _named(model, finding, "Transpose")
    if len(turns) != 1:
        return False
    (node,) = turns
    perm = next((list(a.ints) for a in node.attribute if a.name == "perm"), None)
    entry = next((port for port in model.graph.input if port.name == node.input[0]), None)
    if perm is None or entry is None:
        return False
    dims = entry.type.tensor_type.shape.dim
    sizes = [onnx.TensorShapeProto.Dimension.FromString(dims[axis].SerializeToString()) for axis in perm]
    del dims[:]
    dims.extend(sizes)
    del model.graph.value_info[:]
    _drop(model, node)
    return True


def _leave_out(model: onnx.ModelProto, finding: Finding) -> bool:
    """The output in the middle."""
    made = {name for node in model.graph.node if label(node) in finding.nodes for name in node.output}
    read = {name for node in model.graph.node for name in node.input}
    gone = [port for port in model.graph.output if port.name in made & read]
    for port in gone:
        model.graph.output.remove(port)
    return bool(gone)


def _drop_levels(model: onnx.ModelProto, finding: Finding) -> bool:
    pairs = _named(model, finding, "QuantizeLinear", "DequantizeLinear")
    for node in pairs:
        _drop(model, node)
    return bool(pairs)


def _maximum(model: onnx.ModelProto, finding: Finding) -> bool:
    for node in _named(model, finding, "TopK"):
        attributes = {a.name: a.i for a in node.attribute}
        axes = f"{node.output[0]}/axes"
        model.graph.initializer.append(numpy_helper.from_array(np.array([attributes.get("axis", -1)]), axes))
        node.op_type = "ReduceMax" if attributes.get("largest", 1) else "ReduceMin"
        node.input[1] = axes
        del node.output[1:], node.attribute[:]
        node.attribute.append(onnx.AttributeProto(name="keepdims", type=onnx.AttributeProto.INT, i=1))
        return True
    return False


def _pick_columns(model: onnx.ModelProto, finding: Finding) -> bool:
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    for gather in _named(model, finding, "Gather"):
        product = next((n for n in model.graph.node if gather.input[0] in n.output), None)
        if product is None or product.op_type != "MatMul":
            continue
        picked = numpy_helper.to_array(weights[gather.input[1]])
        columns = np.ascontiguousarray(numpy_helper.to_array(weights[product.input[1]])[..., picked])
        weights[product.input[1]].CopyFrom(numpy_helper.from_array(columns, product.input[1]))
        product.output[0] = gather.output[0]
        model.graph.node.remove(gather)
        return True
    return False


MENDS: dict[str, Mend] = {
    "layout": _turn_port,
    "kept_output": _leave_out,
    "unfused_qdq": _drop_levels,
    "topk": _maximum,
    "gather_axis": _pick_columns,
}
