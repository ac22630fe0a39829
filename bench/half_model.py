"""A float32 ONNX file in half precision, node by node, for plans that are never run: it may overflow."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, numpy_helper

LARGEST = 65504.0
# operands that ONNX has in float32 whatever the data is
FLOAT32_OPERANDS = {"Resize": (1, 2), "Upsample": (1,), "QuantizeLinear": (1,), "DequantizeLinear": (1,)}


def in_half(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which every float32 tensor, port and cast is float16."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    _lower(copy.graph, _kept(copy.graph))
    return copy


def _kept(graph: onnx.GraphProto) -> set[str]:
    """Values that must stay float32."""
    operands = [(node, FLOAT32_OPERANDS.get(node.op_type, ())) for node in graph.node]
    return {node.input[i] for node, places in operands for i in places if i < len(node.input)}


def _lower(graph: onnx.GraphProto, kept: set[str]) -> None:
    del graph.value_info[:]
    for tensor in graph.initializer:
        if tensor.name not in kept:
            _lower_tensor(tensor)
    for port in (*graph.input, *graph.output):
        if port.type.tensor_type.elem_type == TensorProto.FLOAT:
            port.type.tensor_type.elem_type = TensorProto.FLOAT16
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                _lower(attribute.g, kept)
            elif attribute.type == AttributeProto.TENSOR and not kept & set(node.output):
                _lower_tensor(attribute.t)
            elif node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.FLOAT16


def _lower_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        array = np.clip(numpy_helper.to_array(tensor), -LARGEST, LARGEST).astype(np.float16)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
