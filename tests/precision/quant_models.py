"""Models in text with weights drawn at random, for the tests of quantisation."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir


def proto_of(text: str, *, opset: int = 20, **weights: np.ndarray) -> onnx.ModelProto:
    """A graph in ONNX text whose free names are these weights."""
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]>\n{text}')
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(w, name) for name, w in weights.items())
    return proto


def model_of(text: str, *, opset: int = 20, **weights: np.ndarray) -> ir.Model:
    return ir.from_proto(proto_of(text, opset=opset, **weights))
