"""Weights of an ONNX file, inside it or outside, exchanged for others."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx

from ridgeline.frontend.functions import copy_of


def with_weights(proto: onnx.ModelProto, given: Mapping[str, np.ndarray], folder: str) -> onnx.ModelProto:
    """A copy that holds all its weights: those given, and those that lie outside."""
    made = copy_of(proto)
    for tensor in made.graph.initializer:
        if tensor.name in given or is_outside(tensor):
            array = given.get(tensor.name)
            array = onnx.numpy_helper.to_array(tensor, folder) if array is None else array
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return made


def is_weight(tensor: onnx.TensorProto) -> bool:
    """Scales, bounds and the like are no weights: moved, they would change shapes and meanings."""
    kinds = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
    return bool(tensor.data_type in kinds and math.prod(tensor.dims) > 8)


def is_outside(tensor: onnx.TensorProto) -> bool:
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)
