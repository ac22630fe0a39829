"""A half-precision model in single precision: the same graph, for a reference that rounds less than we do.

Also: which half type reaches which output, since that decides how far rounding may carry it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, numpy_helper

from ridgeline.base.spec import EPSILON
from ridgeline.frontend.functions import copy_of, names_read, subgraphs
from ridgeline.frontend.other_runtimes import open_session
from ridgeline.frontend.types import HALVES, outside, tensor_type

Run: TypeAlias = Callable[[Mapping[str, Any]], dict[str, np.ndarray]]
# attributes that name a type
TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "output_datatype", "softmax_precision", "stash_type")
PLACE = "wide"  # where the weights are said to lie; they are handed over in memory
# what comes out of these does not depend on the values that go in
_OF_SHAPES = frozenset({"Shape", "Size"})


def halves_inside(model: onnx.ModelProto) -> dict[str, str]:
    """By output, the coarsest half type that any value on the way to it has; "" where none has."""
    coarsest = {f.name: _coarsest_in(f.node, {}) for f in model.functions}
    known = _half_ports(model.graph)
    _propagate(model.graph.node, known, coarsest)
    return {port.name: known.get(port.name, "") for port in model.graph.output}


def _half_ports(graph: onnx.GraphProto) -> dict[str, str]:
    typed = [(t.name, t.data_type) for t in graph.initializer]
    typed += [(port.name, port.type.tensor_type.elem_type) for port in (*graph.input, *graph.output)]
    return {name: HALVES[kind] for name, kind in typed if kind in HALVES}


def _propagate(nodes: Iterable[onnx.NodeProto], known: dict[str, str], functions: Mapping[str, str]) -> None:
    """Add to `known` the values that depend on half values, in the order of the nodes."""
    for node in nodes:
        inner = known if any(subgraphs(node)) else {}
        own = [_coarsest_in([node], inner), functions.get(node.op_type, "")]
        given = [] if node.op_type in _OF_SHAPES else [known.get(name, "") for name in node.input]
        half = coarsest([*own, *given])
        if half:
            known.update((name, coarsest([half, known.get(name, "")])) for name in node.output)


def _coarsest_in(nodes: Iterable[onnx.NodeProto], outer: Mapping[str, str]) -> str:
    """The coarsest half type that nodes name themselves or that their subgraphs read or hold."""
    found = []
    for node in nodes:
        for attribute in node.attribute:
            if attribute.name in TYPE_ATTRIBUTES:
                found.append(HALVES.get(attribute.i, ""))
            found.append(HALVES.get(attribute.t.data_type, ""))
        for graph in subgraphs(node):
            read = {name for inner in graph.node for name in inner.input}
            found += [*_half_ports(graph).values(), *(outer[name] for name in read if name in outer)]
            found.append(_coarsest_in(graph.node, outer))
    return coarsest(found)


def coarsest(halves: Iterable[str]) -> str:
    return max(halves, key=lambda half: EPSILON.get(half, 0.0), default="")


class Float32Model:
    """The model with every half tensor in float32.

    Weights that are half, or that a Cast makes half, lie outside: they are handed over in memory, so that
    moved ones can be handed over as well.
    """

    def __init__(self, model: onnx.ModelProto, folder: str) -> None:
        kinds = {p.name: HALVES.get(p.type.tensor_type.elem_type) for p in model.graph.output}
        self.halves = {n: np.dtype(getattr(ml_dtypes, half, half)) for n, half in kinds.items() if half}
        is_narrowed = {n.input[0] for n in model.graph.node if n.op_type == "Cast" and _coarsest_in([n], {})}
        self.names = [port.name for port in model.graph.output]
        self.weights: dict[str, np.ndarray] = {}
        self.proto = copy_of(model)
        del self.proto.graph.initializer[:]
        is_read = set(names_read(model.graph))
        for tensor in model.graph.initializer:
            array = numpy_helper.to_array(tensor, folder)
            is_cast = tensor.name in is_narrowed and tensor.data_type == TensorProto.FLOAT
            # ONNX Runtime drops unused inputs, and then refuses values for them
            if tensor.name not in is_read or (tensor.data_type not in HALVES and not is_cast):
                self.proto.graph.initializer.append(numpy_helper.from_array(array, tensor.name))
                continue
            wide = self.weights[tensor.name] = np.asarray(array, np.float32, order="C")
            light = TensorProto(name=tensor.name, data_type=TensorProto.FLOAT, dims=wide.shape)
            self.proto.graph.initializer.append(outside(light, PLACE, offset=0, length=wide.nbytes))
        self._half_values = _half_values(model)
        _widen_graph(self.proto.graph)
        for function in self.proto.functions:
            _widen_nodes(function.node)

    def rounding_session(self, options: ort.SessionOptions, changed: onnx.ModelProto | None = None) -> Run:
        """Runs with every result that is half in the model rounded to half, as the model says op by op.

        ONNX Runtime itself leaves roundings out between ops that it has no half kernels for.
        """
        proto = copy_of(self.proto) if changed is None else changed
        _round_results(proto.graph, self._half_values)
        return self.session(options, self.weights, proto)

    def session(
        self,
        options: ort.SessionOptions,
        weights: Mapping[str, np.ndarray],
        proto: onnx.ModelProto | None = None,
    ) -> Run:
        """Runs from half to half, in float32 between."""
        values = [ort.OrtValue.ortvalue_from_numpy(array) for array in weights.values()]
        options.add_external_initializers(list(weights), values)
        session = open_session(self.proto if proto is None else proto, options)

        def run(feeds: Mapping[str, Any], _held: object = (weights, values)) -> dict[str, np.ndarray]:
            made = dict(zip(self.names, session.run(self.names, widen_feeds(feeds)), strict=True))
            return {n: a.astype(self.halves[n]) if n in self.halves else a for n, a in made.items()}

        return run


def widen_feeds(feeds: Mapping[str, Any]) -> dict[str, Any]:
    halves = (np.float16, ml_dtypes.bfloat16)
    return {n: a.astype(np.float32) if np.asarray(a).dtype in halves else a for n, a in feeds.items()}


def value_types(model: onnx.ModelProto) -> dict[str, int]:
    """The element type of every value of the main graph; the bytes of weights are left out."""
    light = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    light.functions.extend(model.functions)
    light.graph.CopyFrom(onnx.GraphProto(name="types", node=model.graph.node, output=model.graph.output))
    kinds = {port.name: port.type for port in model.graph.input}
    kinds |= {t.name: tensor_type(t.data_type, t.dims) for t in model.graph.initializer}
    light.graph.input.extend(onnx.ValueInfoProto(name=name, type=kind) for name, kind in kinds.items())
    graph = onnx.shape_inference.infer_shapes(light).graph
    ports = (*graph.input, *graph.value_info, *graph.output)
    return {port.name: port.type.tensor_type.elem_type for port in ports}


def _half_values(model: onnx.ModelProto) -> dict[str, int]:
    """Results of the main graph's nodes that are half, with their type."""
    made = {name for node in model.graph.node for name in node.output}
    return {name: kind for name, kind in value_types(model).items() if kind in HALVES and name in made}


def _round_results(graph: onnx.GraphProto, halves: Mapping[str, int]) -> None:
    """After each node that makes one of these values: a cast to half and back."""
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        casts = []
        for i, name in enumerate(node.output):
            if name in halves:
                node.output[i], rounded = f"{name}.exact", f"{name}.rounded"
                casts += [
                    _cast(node.output[i], rounded, halves[name]),
                    _cast(rounded, name, TensorProto.FLOAT),
                ]
        graph.node.extend([node, *casts])


def _cast(source: str, target: str, to: int) -> onnx.NodeProto:
    attribute = onnx.AttributeProto(name="to", type=onnx.AttributeProto.INT, i=to)
    return onnx.NodeProto(op_type="Cast", input=[source], output=[target], attribute=[attribute])


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
