"""Writes model.onnx: a convolution, an activation, a pool and a product, with seeded weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

GRAPH = """
<ir_version: 10, opset_import: ["": 20]>
small (float[N,3,32,32] image) => (float[N,10] scores)
{
  features = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (image, filters, shift)
  active = Relu (features)
  pooled = GlobalAveragePool (active)
  flat = Flatten <axis = 1> (pooled)
  scores = Gemm <transB = 1> (flat, head, bias)
}
"""
WEIGHTS = {"filters": (8, 3, 3, 3), "shift": (8,), "head": (10, 8), "bias": (10,)}


def make_model() -> onnx.ModelProto:
    model = onnx.parser.parse_model(GRAPH)
    rng = np.random.default_rng(0)
    for name, shape in WEIGHTS.items():
        array = rng.normal(size=shape, scale=0.3).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


if __name__ == "__main__":
    Path("model.onnx").write_bytes(make_model().SerializeToString())
