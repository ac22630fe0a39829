"""Writes a placement into the graph: stored weights behind DequantizeLinear, pairs around activations.

Biases stay float32: they are added after the product is scaled, where one more rounding would only cost
accuracy, and the integer kernels of ONNX Runtime and oneDNN take them so or round them themselves.
Zero points are always written for 8-bit types, since below opset 21 their type is all that names the format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ridgeline.base.formats import Format
from ridgeline.base.scales import Encoded, scales_for
from ridgeline.precision.calibrate import Calibrated, Group
from ridgeline.precision.fake_quant import zero_point_of
from ridgeline.precision.place import Edge, Placement

FLOAT_TYPE = 1  # ONNX's number of float32


class Inserter:
    """New nodes and initializers of one graph, under names that are free."""

    def __init__(self, model: ir.Model) -> None:
        self.graph = model.graph
        self._taken = {str(v.name) for v in (*self.graph.inputs, *self.graph.initializers.values())}
        self._taken |= {str(value.name) for node in self.graph.all_nodes() for value in node.outputs}
        self._taken |= {str(node.name) for node in self.graph.all_nodes()}

    def name(self, wanted: str) -> str:
        found, count = wanted, 1
        while found in self._taken:
            found, count = f"{wanted}_{count}", count + 1
        self._taken.add(found)
        return found

    def constant(self, wanted: str, array: np.ndarray) -> ir.Value:
        name = self.name(wanted)
        tensor = ir.Tensor(np.ascontiguousarray(array), name=name)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
        self.graph.register_initializer(value)
        return value

    def node(
        self,
        op: str,
        inputs: Sequence[ir.Value],
        wanted: str,
        attributes: Mapping[str, int] | None = None,
        *,
        like: tuple[ir.DataType, ir.Shape | None],
    ) -> ir.Node:
        """A node that is in no graph yet, with the type and shape of its result."""
        node = ir.node(op, inputs, attributes or {}, name=self.name(wanted))
        out = node.outputs[0]
        out.name = self.name(wanted + "_output")
        out.dtype, out.shape = like[0], like[1]
        return node

    def place(self, nodes: Sequence[ir.Node], value: ir.Value) -> None:
        """Behind what makes the value; at the very front if it is an input."""
        producer = value.producer()
        if producer is not None:
            self.graph.insert_after(producer, nodes)
        else:
            self.graph.insert_before(next(iter(self.graph)), nodes)


def insert_quantization(
    model: ir.Model, placement: Placement, weights: Mapping[Edge, Encoded], ranges: Mapping[str, Calibrated]
) -> None:
    """Rewrite the model in place. `ranges` are by group, `weights` by the edge that reads them."""
    inserter = Inserter(model)
    stored: dict[tuple[str, str], list[tuple[Encoded, ir.Value]]] = {}
    for edge, encoded in weights.items():
        _insert_weight(inserter, edge, encoded, stored)
    readers: dict[str, list[Edge]] = {}
    for edge in placement.activations:
        readers.setdefault(str(edge.value.name), []).append(edge)
    for group in placement.groups:
        _insert_pairs(inserter, group, ranges[group.name], readers)
    scheme = placement.scheme
    model.opset_imports[""] = max(model.opset_imports.get("", 1), scheme.opset)
    _drop_unread_initializers(model.graph)


def _insert_weight(
    inserter: Inserter,
    edge: Edge,
    encoded: Encoded,
    stored: dict[tuple[str, str], list[tuple[Encoded, ir.Value]]],
) -> None:
    """One stored weight for all who read it in the same way."""
    value = edge.value
    known = stored.setdefault((str(value.name), str(encoded.granularity)), [])
    for other, made in known:
        if other is encoded or _are_same(other, encoded):
            edge.node.replace_input_with(edge.index, made)
            return
    nodes, result = weight_nodes(inserter, str(value.name), encoded)
    inserter.graph.insert_before(next(iter(inserter.graph)), nodes)
    edge.node.replace_input_with(edge.index, result)
    known.append((encoded, result))


def _are_same(one: Encoded, other: Encoded) -> bool:
    """The same codes at the same scales."""
    are_equal = np.array_equal(one.codes.view(np.uint8), other.codes.view(np.uint8))
    return are_equal and np.array_equal(one.step(), other.step())


def weight_nodes(inserter: Inserter, name: str, encoded: Encoded) -> tuple[list[ir.Node], ir.Value]:
    """DequantizeLinear over stored codes; the scales of NVFP4 pass through one of their own."""
    fmt, shape = encoded.fmt, ir.Shape(encoded.codes.shape)
    codes = inserter.constant(f"{name}_quantized", encoded.codes)
    scale = inserter.constant(f"{name}_scale", encoded.scale)
    nodes: list[ir.Node] = []
    if encoded.tensor_scale is not None:
        whole = inserter.constant(f"{name}_tensor_scale", encoded.tensor_scale)
        like = (ir.DataType.FLOAT, ir.Shape(encoded.scale.shape))
        nodes.append(inserter.node("DequantizeLinear", [scale, whole], f"{name}_scale_dequantize", like=like))
        scale = nodes[0].outputs[0]
    inputs = [codes, scale]
    attributes: dict[str, int] = {}
    grain = encoded.granularity
    if grain.axis is not None:
        attributes["axis"] = grain.axis % encoded.codes.ndim
    if grain.block:
        attributes["block_size"] = grain.block
    if fmt.scale_type != np.float32 and encoded.tensor_scale is None:
        attributes["output_dtype"] = FLOAT_TYPE
    elif not grain.block:
        zero = zero_point_of(encoded.scale, encoded.zero_point, fmt)
        inputs.append(inserter.constant(f"{name}_zero_point", zero))
    elif encoded.zero_point is not None:
        inputs.append(inserter.constant(f"{name}_zero_point", encoded.zero_point))
    like = (ir.DataType.FLOAT, shape)
    nodes.append(inserter.node("DequantizeLinear", inputs, f"{name}_dequantize", attributes, like=like))
    return nodes, nodes[-1].outputs[0]


def _insert_pairs(
    inserter: Inserter, group: Group, found: Calibrated, readers: Mapping[str, list[Edge]]
) -> None:
    """One scale for the group, and one pair for each tensor of it, however many read it."""
    scale, zero = activation_constants(inserter, group.name, group.fmt, found, symmetric=group.symmetric)
    assert zero.dtype is not None
    for name in group.members:
        edges = readers.get(name, [])
        if not edges:
            continue
        value = edges[0].value
        pair: list[ir.Node] = []
        for op, read, dtype in (
            ("QuantizeLinear", value, zero.dtype),
            ("DequantizeLinear", None, ir.DataType.FLOAT),
        ):
            source = pair[-1].outputs[0] if read is None else read
            wanted = f"{name}_{op.removesuffix('Linear').lower()}"
            pair.append(inserter.node(op, [source, scale, zero], wanted, like=(dtype, value.shape)))
        inserter.place(pair, value)
        for edge in edges:
            edge.node.replace_input_with(edge.index, pair[-1].outputs[0])


def activation_constants(
    inserter: Inserter, name: str, fmt: Format, found: Calibrated, *, symmetric: bool
) -> tuple[ir.Value, ir.Value]:
    scale, zero = scales_for(np.asarray(found.low), np.asarray(found.high), fmt, symmetric=symmetric)
    point = zero_point_of(scale, zero, fmt)
    return inserter.constant(f"{name}_scale", scale), inserter.constant(f"{name}_zero_point", point)


def _drop_unread_initializers(graph: ir.Graph) -> None:
    outputs = set(graph.outputs)
    for name, value in list(graph.initializers.items()):
        if not value.uses() and value not in outputs:
            del graph.initializers[name]
