"""A half-precision model in single precision: the same graph, for a reference that rounds less than we do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, numpy_helper

HALVES = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}
# attributes that name a type
TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "output_datatype", "softmax_precision", "stash_type")
PLACE = "wide"  # where the weights are said to lie; they are handed over in memory


def half_type(model: onnx.ModelProto) -> str:
    """The half type a model's weights or inputs have; "" for none."""
    kinds = [t.data_type for t in model.graph.initializer]
    kinds += [port.type.tensor_type.elem_type for port in model.graph.input]
    return next((HALVES[kind] for kind in kinds if kind in HALVES), "")


class Wide:
    """The model with every half tensor in float32. Its large weights lie outside, handed over in memory."""

    def __init__(self, model: onnx.ModelProto, folder: str) -> None:
        self.half = np.dtype(getattr(ml_dtypes, half_type(model), np.float16))
        self.halves = [p.name for p in model.graph.output if p.type.tensor_type.elem_type in HALVES]
        self.names = [port.name for port in model.graph.output]
        self.weights: dict[str, np.ndarray] = {}
        self.proto = onnx.ModelProto()
        self.proto.CopyFrom(model)
        del self.proto.graph.initializer[:]
        for tensor in model.graph.initializer:
            array = numpy_helper.to_array(tensor, folder)
            if tensor.data_type not in HALVES:
                self.proto.graph.initializer.append(numpy_helper.from_array(array, tensor.name))
                continue
            self.weights[tensor.name] = np.ascontiguousarray(array.astype(np.float32))
            self.proto.graph.initializer.append(_outside(tensor.name, self.weights[tensor.name]))
        _widen_graph(self.proto.graph)
        for function in self.proto.functions:
            _widen_nodes(function.node)

    def session(
        self, options: ort.SessionOptions, weights: Mapping[str, np.ndarray]
    ) -> Callable[[Mapping[str, Any]], dict[str, np.ndarray]]:
        """Runs from half to half, in float32 between."""
        values = [ort.OrtValue.ortvalue_from_numpy(array) for array in weights.values()]
        options.add_external_initializers(list(weights), values)
        session = ort.InferenceSession(self.proto.SerializeToString(), options, ["CPUExecutionProvider"])

        def run(feeds: Mapping[str, Any], _held: object = (weights, values)) -> dict[str, np.ndarray]:
            made = dict(zip(self.names, session.run(self.names, widen_feeds(feeds)), strict=True))
            return {n: np.asarray(a).astype(self.half) if n in self.halves else a for n, a in made.items()}

        return run


def widen_feeds(feeds: Mapping[str, Any]) -> dict[str, Any]:
    halves = (np.float16, ml_dtypes.bfloat16)
    return {n: a.astype(np.float32) if np.asarray(a).dtype in halves else a for n, a in feeds.items()}


def _outside(name: str, array: np.ndarray) -> TensorProto:
    made = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=array.shape)
    made.data_location = TensorProto.EXTERNAL
    for key, value in (("location", PLACE), ("offset", "0"), ("length", str(array.nbytes))):
        made.external_data.add(key=key, value=value)
    return made


def _widen_graph(graph: onnx.GraphProto) -> None:
    del graph.value_info[:]
    for port in (*graph.input, *graph.output):
        kind = port.type.tensor_type
        if kind.elem_type in HALVES:
            kind.elem_type = TensorProto.FLOAT
    for i, tensor in enumerate(graph.initializer):
        graph.initializer[i].CopyFrom(_wide_tensor(tensor))
    _widen_nodes(graph.node)


def _widen_nodes(nodes: Iterable[onnx.NodeProto]) -> None:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                attribute.t.CopyFrom(_wide_tensor(attribute.t))
            if attribute.HasField("g"):
                _widen_graph(attribute.g)
            if attribute.name in TYPE_ATTRIBUTES and attribute.i in HALVES:
                attribute.i = TensorProto.FLOAT


def _wide_tensor(tensor: TensorProto) -> TensorProto:
    if tensor.data_type not in HALVES:
        return tensor
    return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name)
