"""The lowest opset in which a graph can be written as it stands.

Models are worked on in the canonical opset. Other runtimes take older ones better: ONNX Runtime 1.31 fails on
some int8 graphs from opset 21 on, where it mixes the types of a QuantizeLinear that it moves.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir

# ops whose meaning changed without a change in their attributes
CHANGED_AT = {"GridSample": 20, "GroupNormalization": 21, "AveragePool": 19, "CumSum": 14, "Resize": 19}
# the last one before QuantizeLinear got an attribute for its type
PLAIN_QUANTIZE = 20


def lowest_opset(model: ir.Model, at_least: int) -> int:
    """From `at_least` on, the first in which every node says the same."""
    current = int(model.opset_imports.get("", 1))
    nodes = [node for node in model.graph.all_nodes() if node.domain == ""]
    for version in range(min(at_least, current), current):
        if all(_means_the_same(node, version, current) for node in nodes):
            return version
    return current


def _means_the_same(node: ir.Node, version: int, current: int) -> bool:
    if version < CHANGED_AT.get(node.op_type, 0):
        return False
    try:
        new = onnx.defs.get_schema(node.op_type, current)
        old = onnx.defs.get_schema(node.op_type, version)
    except onnx.defs.SchemaError:
        return False
    if old.since_version == new.since_version:
        return True
    if not set(node.attributes) <= set(old.attributes) or len(node.inputs) > old.max_input:
        return False
    for name in set(old.attributes) - set(node.attributes):
        if (
            name not in new.attributes
            or old.attributes[name].default_value != new.attributes[name].default_value
        ):
            return False
    return _takes_types(node, old)


def _takes_types(node: ir.Node, schema: onnx.defs.OpSchema) -> bool:
    for values, formals in ((node.inputs, schema.inputs), (node.outputs, schema.outputs)):
        for i, value in enumerate(values):
            formal = formals[min(i, len(formals) - 1)]
            if value is None or value.type is None or not isinstance(value.type, ir.TensorType):
                continue
            name = onnx.TensorProto.DataType.Name(int(value.type.dtype)).lower()
            if f"tensor({name})" not in formal.types:
                return False
    return True
