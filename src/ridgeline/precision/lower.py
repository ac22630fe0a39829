"""A graph in another precision: chosen nodes compute in a half type, Casts stand where the two kinds meet.

The result is plain ONNX. A node is lowered by the type variables of its schema, so an operand that must stay
float32, such as the scales of Resize, does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import onnx
import onnx_ir as ir
import torch

from ridgeline.base.formats import SHORT_NAMES
from ridgeline.errors import BuildError
from ridgeline.frontend.types import ONNX_TYPES
from ridgeline.ir.op_row import Kind
from ridgeline.ir.ops import is_a
from ridgeline.ir.provenance import KEEP, SOURCES, node_name
from ridgeline.kernels.elements import TORCH_DTYPES, numpy_dtype
from ridgeline.verify.float32_reference import TYPE_ATTRIBUTES

FLOAT = ir.DataType.FLOAT
# operands of these variables are never lowered: they are sizes and scales
_STAYS = {("Resize", "T2"), ("QuantizeLinear", "T2"), ("QuantizeLinear", "T3")}


def value_key(node: ir.Node) -> str:
    """The node's first result, as `emulate.node_key` names it."""
    return next(str(value.name) for value in node.outputs if value.name)


@cache
def _schema(op_type: str, domain: str, version: int) -> onnx.defs.OpSchema | None:
    if not onnx.defs.has(op_type, max_inclusive_version=version, domain=domain):
        return None
    return onnx.defs.get_schema(op_type, version, domain)


@dataclass(frozen=True)
class Lowerable:
    """Which operands and results of a node change their type with it."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def lowerable(node: ir.Node, half: str, version: int) -> Lowerable | None:
    """What of a node can be in this half type; None if nothing of it can, or it has no float32 operand."""
    schema = _schema(node.op_type, node.domain, version)
    if schema is None or any(attr.type in (ir.AttributeType.GRAPH,) for attr in node.attributes.values()):
        return None
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    wanted = f"tensor({half})"

    def variable(formals: list[onnx.defs.OpSchema.FormalParameter], place: int) -> str:
        formal = formals[min(place, len(formals) - 1)]
        is_free = wanted in allowed.get(formal.type_str, ()) and (node.op_type, formal.type_str) not in _STAYS
        return formal.type_str if is_free else ""

    read = {i: variable(schema.inputs, i) for i, v in enumerate(node.inputs) if _is_float(v)}
    made = {i: variable(schema.outputs, i) for i, v in enumerate(node.outputs) if _is_float(v)}
    inputs = tuple(i for i, name in read.items() if name)
    outputs = tuple(i for i, name in made.items() if name and name in read.values())
    if node.op_type == "DequantizeLinear" and "output_dtype" in schema.attributes:
        return Lowerable((), (0,))
    has_float_result = any(_is_float(value) for value in node.outputs)
    return Lowerable(inputs, outputs) if inputs and (outputs or not has_float_result) else None


def _is_float(value: ir.Value | None) -> bool:
    return value is not None and value.dtype == FLOAT


@dataclass
class _Versions:
    """The float32 and the half form of each value; the form that is missing is made when it is wanted."""

    model: ir.Model
    half: str
    masks: Collection[str] = ()  # values that are clipped to the half type's range
    forms: dict[tuple[ir.Value, ir.DataType], ir.Value] = field(default_factory=dict)

    @property
    def dtype(self) -> ir.DataType:
        return ir.DataType(ONNX_TYPES[self.half])

    def form(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """The value in this type: itself, a converted constant, or a Cast after whoever makes it."""
        if value.dtype == dtype:
            return value
        if (value, dtype) not in self.forms:
            constant = value.const_value if value.is_initializer() else None
            is_fixed = constant is not None and value not in self.model.graph.inputs
            self.forms[value, dtype] = self._converted(value, dtype) if is_fixed else self._cast(value, dtype)
        return self.forms[value, dtype]

    def _converted(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        assert value.const_value is not None, "only asked of constants"
        narrow = saturated(value.const_value.numpy(), dtype.numpy())
        name = f"{value.name}.{_short(dtype)}"
        made = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(narrow.shape))
        made.const_value = ir.tensor(narrow, dtype=dtype, name=name)
        self.model.graph.register_initializer(made)
        return made

    def _cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        if str(value.name) in self.masks and dtype != FLOAT:
            value = self._clipped(value)
        node = ir.node("Cast", [value], attributes={"to": int(dtype)}, name=f"{value.name}.{_short(dtype)}")
        made = node.outputs[0]
        made.name, made.type, made.shape = f"{value.name}.{_short(dtype)}", ir.TensorType(dtype), value.shape
        return self._placed(node, value)

    def _clipped(self, value: ir.Value) -> ir.Value:
        """A mask inside the range of the half type: a Cast would make infinities of its lowest numbers."""
        largest = np.float32(_largest(self.dtype.numpy()))
        ends = [
            self._constant(f"{value.name}.{name}", end)
            for name, end in (("low", -largest), ("high", largest))
        ]
        node = ir.node("Clip", [value, *ends], name=f"{value.name}.clipped")
        made = node.outputs[0]
        made.name, made.type, made.shape = f"{value.name}.clipped", ir.TensorType(FLOAT), value.shape
        return self._placed(node, value)

    def _constant(self, name: str, number: np.float32) -> ir.Value:
        made = ir.Value(name=name, type=ir.TensorType(FLOAT), shape=ir.Shape([]))
        made.const_value = ir.tensor(np.array(number, np.float32), name=name)
        self.model.graph.register_initializer(made)
        return made

    def _placed(self, node: ir.Node, value: ir.Value) -> ir.Value:
        """The node's result; it stands behind whoever makes the value that it reads."""
        producer, graph = value.producer(), self.model.graph
        node.metadata_props[SOURCES] = node_name(producer) if producer is not None else str(value.name)
        if producer is None:
            first = next(iter(graph), None)
            graph.insert_before(first, node) if first is not None else graph.append(node)
        else:
            graph.insert_after(producer, node)
        return node.outputs[0]


def saturated(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """In a half type; numbers beyond its range become its largest, infinities stay."""
    largest = _largest(dtype)
    clipped = np.where(np.isfinite(array), np.clip(array, -largest, largest), array)
    made: np.ndarray = clipped.astype(dtype)
    return made


def _largest(dtype: np.dtype) -> float:
    return float(torch.finfo(TORCH_DTYPES[str(dtype)]).max)


def _short(dtype: ir.DataType) -> str:
    return SHORT_NAMES[str(dtype.numpy())]


def lower(
    model: ir.Model,
    nodes: Mapping[str, str],
    *,
    io: str | None = None,
    keep: Collection[str] = (),
    masks: Collection[str] = (),
) -> None:
    """Rewrite in place. `nodes` has the half type of each lowered node by `value_key`, `io` that of ports.

    The nodes of `keep` are marked: no later rewrite changes the type that they compute in. The values of
    `masks` are clipped to the range of the half type, since their lowest numbers only have to be low.
    """
    for node in model.graph:
        if value_key(node) in keep:
            node.metadata_props[KEEP] = "float32"
    halves = {*nodes.values(), *([io] if io else [])}
    if len(halves) > 1:
        raise BuildError("a graph is lowered to one half type", got=", ".join(sorted(halves)))
    versions = _Versions(model, next(iter(halves), "float16"), masks)
    version = model.opset_imports.get("", 1)
    plan = {
        node: found
        for node in model.graph
        if value_key(node) in nodes and (found := lowerable(node, versions.half, version)) is not None
    }
    ports = list(model.graph.outputs)
    changed: set[ir.Value] = set()
    for value in model.graph.inputs if io else ():
        if _is_float(value):
            value.type = ir.TensorType(versions.dtype)
            changed.add(value)
    for node in list(model.graph):
        taken = plan.get(node)
        for i, value in enumerate(node.inputs):
            if value is None or _takes_any(node):
                continue
            if taken is not None and i in taken.inputs:
                node.replace_input_with(i, versions.form(value, versions.dtype))
            elif value in changed:
                node.replace_input_with(i, versions.form(value, FLOAT))
        for i in taken.outputs if taken is not None else ():
            node.outputs[i].type = ir.TensorType(versions.dtype)
            changed.add(node.outputs[i])
            if node.op_type == "DequantizeLinear":
                node.attributes["output_dtype"] = ir.AttrInt64("output_dtype", int(versions.dtype))
        for inner, i, value in _captured(node):
            if value in changed:
                inner.replace_input_with(i, versions.form(value, FLOAT))
    for place, value in enumerate(ports):
        if value in changed and not io:
            _give_port(model.graph, place, versions.form(value, FLOAT))
        elif _is_float(value) and io:
            _give_port(model.graph, place, versions.form(value, versions.dtype))


def _takes_any(node: ir.Node) -> bool:
    """Nothing needs to stand before a node that takes any type and makes the same of it."""
    return node.op_type in ("Cast", "Shape", "Size") and not node.domain


def _captured(node: ir.Node) -> Iterator[tuple[ir.Node, int, ir.Value]]:
    """What subgraphs of a node read from outside."""
    for attr in node.attributes.values():
        graphs = [attr.as_graph()] if attr.type == ir.AttributeType.GRAPH else []
        for graph in graphs:
            for inner in graph.all_nodes():
                for i, value in enumerate(inner.inputs):
                    if value is not None:
                        yield inner, i, value


def _give_port(graph: ir.Graph, place: int, value: ir.Value) -> None:
    """Make a Cast the output at this place, under the name that the output has."""
    old = graph.outputs[place]
    name = old.name
    old.name = f"{name}.inner"
    graph.outputs[place] = value
    value.name = name


def follow_neighbours(model: ir.Model, nodes: Mapping[str, str], half: str) -> dict[str, str]:
    """With those nodes added that only move or compare values, where what they read is half anyway."""
    made = dict(nodes)
    version = model.opset_imports.get("", 1)
    for node in model.graph:
        key = value_key(node)
        if key in made or not _follows(node) or (found := lowerable(node, half, version)) is None:
            continue
        reads = [node.inputs[i] for i in found.inputs]
        producers = [value.producer() for value in reads if value is not None]
        if any(p is not None and value_key(p) not in made for p in producers):
            continue
        if all(p is None for p in producers):  # constants and inputs: as whoever reads the result
            readers = [user for out in node.outputs for user, _ in out.uses()]
            if not readers or any(value_key(user) not in made for user in readers):
                continue
        if not found.outputs and not all(map(_is_exact, reads, [half] * len(reads))):
            continue
        made[key] = half
    return made


def _follows(node: ir.Node) -> bool:
    is_comparison = all(value.dtype != FLOAT for value in node.outputs)
    return is_a(node, Kind.MOVEMENT) or is_comparison


def _is_exact(value: ir.Value | None, half: str) -> bool:
    """A constant that loses nothing in the half type; a value made at run time is half already."""
    if value is None or value.const_value is None:
        return True
    array = value.const_value.numpy()
    with np.errstate(over="ignore"):
        return bool(np.array_equal(array.astype(numpy_dtype(half)).astype(array.dtype), array))


def widen(model: ir.Model) -> None:
    """Every half tensor inside as float32, in place; ports keep their types, with Casts behind them."""
    halves = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    graph = model.graph
    taken = [(value, value.dtype) for value in graph.inputs if value.dtype in halves]
    given = [(place, value.dtype) for place, value in enumerate(graph.outputs) if value.dtype in halves]
    for inner in model.graphs():
        for value in inner.initializers.values():
            if value.dtype in halves and value.const_value is not None:
                array = value.const_value.numpy().astype(np.float32)
                value.const_value = ir.tensor(array, name=value.name)
                value.type = ir.TensorType(FLOAT)
        for node in inner:
            _widen_attributes(node, halves)
            for out in node.outputs:
                if out.dtype in halves:
                    out.type = ir.TensorType(FLOAT)
    versions = _Versions(model, "float16")
    for value, _ in taken:
        users = list(value.uses())
        wide = versions.form(value, FLOAT)
        for node, place in users:
            node.replace_input_with(place, wide)
    for place, dtype in given:
        assert dtype is not None, "only half outputs are listed"
        _give_port(graph, place, versions.form(graph.outputs[place], dtype))


def _widen_attributes(node: ir.Node, halves: tuple[ir.DataType, ...]) -> None:
    """Types that attributes name, and tensors that they hold."""
    for name, attr in list(node.attributes.items()):
        if attr.type == ir.AttributeType.TENSOR and attr.as_tensor().dtype in halves:
            array = attr.as_tensor().numpy().astype(np.float32)
            node.attributes[name] = ir.AttrTensor(name, ir.tensor(array))
        elif name in TYPE_ATTRIBUTES and attr.type == ir.AttributeType.INT and attr.as_int() in halves:
            node.attributes[name] = ir.AttrInt64(name, int(FLOAT))
