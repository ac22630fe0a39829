"""Between onnx_ir graphs and `Body` values: reading regions out of a fused model, writing ops out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ridgeline.base.spec import Body, Op
from ridgeline.frontend.types import is_non_tensor, type_of, type_text
from ridgeline.ir.provenance import MATH, SOURCES, node_name
from ridgeline.options import DEFAULT_LIMITS, Limits

DOMAIN = "ridgeline"


@dataclass(frozen=True)
class Region:
    """One node of the fused model: a call of a region function, or a plain ONNX node left alone."""

    name: str
    function: str  # the function's name; the op type for a plain node
    body: Body
    inputs: tuple[str, ...]  # values of the main graph, in the order of body.inputs
    outputs: tuple[str, ...]
    sources: tuple[str, ...]

    @property
    def op_types(self) -> tuple[str, ...]:
        return tuple(op.op_type for op in self.body.ops)

    def outer(self, inner: str) -> str:
        """The main graph's name of a body value; inner values get the region's name before them."""
        for names, formals in ((self.inputs, self.body.inputs), (self.outputs, self.body.outputs)):
            if inner in formals:
                return names[formals.index(inner)]
        return f"{self.name}/{inner}" if self.is_function else inner

    @property
    def is_function(self) -> bool:
        return self.body.inputs != self.inputs or self.body.outputs != self.outputs


@dataclass(frozen=True)
class Program:
    """The fused model as the runtime reads it: regions in order, names of inputs, outputs and weights."""

    regions: tuple[Region, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: frozenset[str]
    opset_imports: Mapping[str, int]
    loose_inputs: Mapping[str, onnx.TypeProto] = field(default_factory=dict)  # strings, and what is no tensor
    limits: Limits = field(default=DEFAULT_LIMITS, compare=False)  # on what it may cost to run

    def flat_ops(self, regions: Iterable[Region]) -> tuple[tuple[Op, ...], dict[str, np.ndarray]]:
        """The ops of some regions in main-graph names, with the constants their bodies hold."""
        ops: list[Op] = []
        constants: dict[str, np.ndarray] = {}
        for region in regions:
            body = region.body
            constants |= {region.outer(name): array for name, array in body.constants.items()}
            for op in body.ops:
                if not region.is_function:
                    ops.append(op)
                    continue
                inputs = tuple(region.outer(n) if n else "" for n in op.inputs)
                outputs = tuple(region.outer(n) if n else "" for n in op.outputs)
                ops.append(replace(op, inputs=inputs, outputs=outputs))
        return tuple(ops), constants


def read_program(model: ir.Model, limits: Limits = DEFAULT_LIMITS) -> Program:
    """Read the fused model. Deterministic: the same file gives the same program."""
    graph = model.graph
    bodies = {f.identifier(): _function_body(f) for f in model.functions.values()}
    regions = tuple(_region(node, bodies) for node in graph)
    return Program(
        regions=regions,
        inputs=tuple(str(v.name) for v in graph.inputs),
        outputs=tuple(str(v.name) for v in graph.outputs),
        weights=frozenset(graph.initializers),
        opset_imports=dict(model.opset_imports),
        loose_inputs={str(v.name): type_of(v) for v in graph.inputs if is_non_tensor(type_text(type_of(v)))},
        limits=limits,
    )


def node_sources(node: ir.Node) -> tuple[str, ...]:
    """The nodes of the original model that this one stands for."""
    kept = node.metadata_props.get(SOURCES, "")
    return tuple(s for s in kept.split(";") if s) or (node_name(node),)


def op_of(node: ir.Node) -> Op:
    return Op(
        op_type=node.op_type,
        inputs=tuple(_name(v) for v in node.inputs),
        outputs=tuple(_name(v) for v in node.outputs),
        attrs={name: attr_value(attr) for name, attr in node.attributes.items()},
        domain=node.domain,
        name=node.name or "",
        math=node.metadata_props.get(MATH, ""),
    )


def body_of_graph(graph: ir.Graph) -> Body:
    """A subgraph as a body; its free names are values of the graphs around it."""
    constants = {
        str(name): tensor_array(value.const_value)
        for name, value in graph.initializers.items()
        if value.const_value is not None
    }
    return Body(
        inputs=tuple(str(v.name) for v in graph.inputs),
        outputs=tuple(str(v.name) for v in graph.outputs),
        ops=tuple(op_of(node) for node in graph),
        constants=constants,
        graph=graph,
    )


def _name(value: ir.Value | None) -> str:
    return "" if value is None or value.name is None else value.name


def attr_value(attr: ir.Attr) -> Any:
    match attr.type:
        case ir.AttributeType.GRAPH:
            return body_of_graph(attr.as_graph())
        case ir.AttributeType.TENSOR:
            return tensor_array(attr.as_tensor())
        case ir.AttributeType.INTS | ir.AttributeType.STRINGS:
            return tuple(attr.value)
        # ONNX writes floats in 32 bits: what a rule computed in 64 must not change when it is written
        case ir.AttributeType.FLOAT:
            return float(np.float32(attr.value))
        case ir.AttributeType.FLOATS:
            return tuple(float(np.float32(v)) for v in attr.value)
    return attr.value


def tensor_array(tensor: ir.TensorProtocol) -> np.ndarray:
    """numpy's view of a tensor; strings, which ONNX keeps as bytes, as Python has them."""
    array: np.ndarray = tensor.numpy()
    if tensor.dtype != ir.DataType.STRING:
        return array
    texts = [text.decode() if isinstance(text, bytes) else str(text) for text in array.reshape(-1).tolist()]
    return np.array(texts, object).reshape(array.shape)


def array_tensor(array: np.ndarray, name: str | None = None) -> ir.TensorProtocol:
    if array.dtype.kind not in "OUS":
        return ir.tensor(array, name=name)
    texts = [str(text).encode() for text in array.reshape(-1).tolist()]
    return ir.StringTensor(texts, shape=ir.Shape(array.shape), name=name)


def _function_body(function: ir.Function) -> Body:
    held = {node: node.attributes["value"].as_tensor() for node in function if _holds_tensor(node)}
    return Body(
        inputs=tuple(str(v.name) for v in function.inputs),
        outputs=tuple(str(v.name) for v in function.outputs),
        ops=tuple(op_of(node) for node in function if node not in held),
        constants={_name(node.outputs[0]): tensor_array(tensor) for node, tensor in held.items()},
    )


def _holds_tensor(node: ir.Node) -> bool:
    return node.op_type == "Constant" and "value" in node.attributes


def _region(node: ir.Node, bodies: Mapping[ir.OperatorIdentifier, Body]) -> Region:
    body = bodies.get(node.op_identifier()) if node.domain == DOMAIN else None
    inputs, outputs = tuple(map(_name, node.inputs)), tuple(map(_name, node.outputs))
    if body is None:
        op = op_of(node)
        outputs = tuple(n for n in op.outputs if n)
        plain = Body(inputs=(), outputs=outputs, ops=(op,))
        inputs = plain.free_names()  # the node's own inputs, then what its subgraphs capture
        body = Body(inputs=inputs, outputs=outputs, ops=(op,))
    return Region(
        name=node_name(node),
        function=node.op_type,
        body=body,
        inputs=inputs,
        outputs=outputs,
        sources=node_sources(node),
    )


def node_proto(op: Op) -> onnx.NodeProto:
    """An op as ONNX writes it."""
    proto = onnx.NodeProto(op_type=op.op_type, domain=op.domain, name=op.name)
    proto.input.extend(op.inputs)
    proto.output.extend(op.outputs)
    for name, value in op.attrs.items():
        attr = ir.AttrGraph(name, value.graph) if isinstance(value, Body) else _attr(name, value)
        proto.attribute.append(ir.serde.serialize_attribute(attr))
    return proto


_PLAIN_ATTRS: dict[type, Callable[[str, Any], ir.Attr]] = {
    int: ir.AttrInt64,
    float: ir.AttrFloat32,
    str: ir.AttrString,
}


def _attr(name: str, value: Any) -> ir.Attr:
    if isinstance(value, ir.TypeAndShape):
        return ir.AttrTypeProto(name, value)
    if isinstance(value, np.ndarray):
        return ir.AttrTensor(name, array_tensor(value))
    if isinstance(value, tuple) and not value:
        return ir.AttrInt64s(name, [])  # an empty list has no type of its own; ONNX's are lists of axes
    # the common types by hand: `convert_attribute` tries protocols first, which takes most of settling
    if type(value) in _PLAIN_ATTRS:
        return _PLAIN_ATTRS[type(value)](name, value)
    if isinstance(value, tuple) and all(type(item) is int for item in value):
        return ir.AttrInt64s(name, value)
    return ir.convenience.convert_attribute(name, list(value) if isinstance(value, tuple) else value)


def model_proto(
    ops: Sequence[Op],
    *,
    inputs: Mapping[str, onnx.TypeProto],
    outputs: Mapping[str, onnx.TypeProto],
    constants: Mapping[str, np.ndarray],
    opset_imports: Mapping[str, int],
) -> onnx.ModelProto:
    """Ops as a model of their own. Constants become initializers inside the file."""
    graph = onnx.GraphProto(name="region")
    for op in ops:
        node = node_proto(op)
        node.name = next(n for n in op.outputs if n)  # names inside functions repeat; values never do
        graph.node.append(node)
    for ports, types in ((graph.input, inputs), (graph.output, outputs)):
        for name, kind in types.items():
            port = ports.add(name=name)
            port.type.CopyFrom(kind)
    graph.initializer.extend(ir.serde.serialize_tensor(array_tensor(a, n)) for n, a in constants.items())
    model = onnx.ModelProto(ir_version=ir_version_for(opset_imports), graph=graph)
    model.opset_import.extend(onnx.OperatorSetIdProto(domain=d, version=v) for d, v in opset_imports.items())
    return model


def ir_version_for(opset_imports: Mapping[str, int]) -> int:
    """The oldest file version that may hold this opset, since runtimes refuse newer ones than they know."""
    opset = opset_imports.get("", 1)
    return 10 if opset <= 22 else 11 if opset == 23 else 12 if opset == 24 else 13
