"""Patterns of ONNX ops and the search for them: what a rule's `pattern` builds, and where it fits a graph.

Says only whether the structure fits and what it binds; whether a rule may fire is decided in `rule.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import permutations
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from ridgeline.ir.op_row import Trait
from ridgeline.ir.ops import with_trait

COMMUTATIVE = with_trait(Trait.COMMUTATIVE)

# exporters round sqrt(2), 1/6 and their kind to float32 at best; float16 models to half precision
_RELATIVE_SLACK = {np.dtype(np.float16): 4 * 2.0**-10}
_DEFAULT_SLACK = 4 * 2.0**-23


@dataclass(frozen=True, eq=False)
class Var:
    """Any value; the same name must be the same value everywhere. An absent optional input binds None."""

    name: str
    is_constant: bool = False


@dataclass(frozen=True, eq=False)
class Scalar:
    """A constant of one element with this value, up to the rounding of its type."""

    value: float


@dataclass(frozen=True, eq=False)
class Call:
    """One node; attributes that are not listed may be anything."""

    op_type: str  # domain::OpType outside ONNX's own
    inputs: tuple[Pattern, ...]
    attrs: dict[str, Any]
    is_shared: bool = False


@dataclass(frozen=True, eq=False)
class Either:
    """The first of several spellings that fits; variables of the others stay None."""

    choices: tuple[Pattern, ...]


Pattern: TypeAlias = Var | Scalar | Call | Either


class PatternOps:
    """The `op` a rule's `pattern` gets: `op.Mul(x, 0.5)`, `op.either(a, b)` and so on."""

    def known(self, var: Var) -> Var:
        """A variable that fits constants only: anything else is another structure, not a refusal."""
        return Var(var.name, is_constant=True)

    def either(self, *choices: Pattern) -> Either:
        return Either(choices)

    def shared(self, call: Call) -> Call:
        """A node whose value others may use too: it stays if they do."""
        return Call(call.op_type, call.inputs, call.attrs, is_shared=True)

    def call(self, key: str, *inputs: Pattern | float, **attrs: Any) -> Call:
        """A node of any op, by `OpType` or `domain::OpType`."""
        wrapped = (Scalar(float(i)) if isinstance(i, int | float) else i for i in inputs)
        return Call(key, tuple(wrapped), attrs)

    def __getattr__(self, op_type: str) -> Any:
        return partial(self.call, op_type)


@dataclass(frozen=True)
class Found:
    """What a pattern bound: values by variable name, nodes from the root inwards."""

    values: dict[str, ir.Value | None] = field(default_factory=dict)
    nodes: tuple[ir.Node, ...] = ()
    shared: frozenset[ir.Node] = frozenset()
    calls: dict[Call, ir.Value] = field(default_factory=dict)


def key_of(node: ir.Node) -> str:
    return node.op_type if not node.domain else f"{node.domain}::{node.op_type}"


def root_ops(pattern: Pattern) -> frozenset[str]:
    """The op types a match of this pattern can end in."""
    if isinstance(pattern, Call):
        return frozenset({pattern.op_type})
    if isinstance(pattern, Either):
        return frozenset().union(*(root_ops(choice) for choice in pattern.choices))
    raise TypeError("a pattern must end in an op, not in a bare variable")


def find(pattern: Pattern, value: ir.Value | None, found: Found) -> Iterator[Found]:
    """Every way in which `pattern` fits the computation of `value`, given what is bound already."""
    if isinstance(pattern, Var):
        if pattern.is_constant and constant(value) is None:
            return
        if pattern.name not in found.values:
            yield Found({**found.values, pattern.name: value}, found.nodes, found.shared, found.calls)
        elif found.values[pattern.name] is value:
            yield found
    elif isinstance(pattern, Scalar):
        if value is not None and _is_scalar(value, pattern.value):
            yield found
    elif isinstance(pattern, Either):
        for choice in pattern.choices:
            yield from find(choice, value, found)
    elif pattern in found.calls:
        if found.calls[pattern] is value:
            yield found
    else:
        yield from _find_call(pattern, value, found)


def _find_call(pattern: Call, value: ir.Value | None, found: Found) -> Iterator[Found]:
    node = value.producer() if value is not None else None
    if node is None or key_of(node) != pattern.op_type:
        return
    if value is not node.outputs[0] or any(is_read(extra) for extra in node.outputs[1:]):
        return
    if any(not _same_attr(attribute(node, name), want) for name, want in pattern.attrs.items()):
        return
    given = list(node.inputs)
    while given and given[-1] is None:
        given.pop()
    if len(given) > len(pattern.inputs):
        return
    given += [None] * (len(pattern.inputs) - len(given))
    shared = found.shared | {node} if pattern.is_shared else found.shared
    nodes = found.nodes if node in found.nodes else (*found.nodes, node)
    start = Found(found.values, nodes, shared, {**found.calls, pattern: value})
    may_swap = pattern.op_type in COMMUTATIVE and len(given) == 2
    for order in permutations(given) if may_swap else [tuple(given)]:
        if _scalars_keep_rank(pattern.inputs, order):
            yield from _find_inputs(pattern.inputs, order, start)


def _find_inputs(
    patterns: tuple[Pattern, ...], values: tuple[ir.Value | None, ...], found: Found
) -> Iterator[Found]:
    if not patterns:
        yield found
        return
    for bound in find(patterns[0], values[0], found):
        yield from _find_inputs(patterns[1:], values[1:], bound)


def _scalars_keep_rank(patterns: tuple[Pattern, ...], values: tuple[ir.Value | None, ...]) -> bool:
    """A [1,1,1] constant stands for a scalar only beside a value of at least that rank."""
    for pattern, value in zip(patterns, values, strict=True):
        array = constant(value) if isinstance(pattern, Scalar) else None
        if array is None or array.ndim == 0:
            continue
        shapes = [other.shape for other in values if other is not None and other is not value]
        if None in shapes or array.ndim > max((shape.rank() for shape in shapes), default=0):
            return False
    return True


def _is_scalar(value: ir.Value, want: float) -> bool:
    array = constant(value)
    if array is None or array.size != 1 or array.dtype.kind not in "fiuV":
        return False
    got = float(array.reshape(()))
    return abs(got - want) <= abs(want) * _RELATIVE_SLACK.get(array.dtype, _DEFAULT_SLACK)


def is_read(value: ir.Value) -> bool:
    """Whether a node reads the value, or the graph puts it out."""
    return bool(value.uses()) or value.is_graph_output()


def _same_attr(got: Any, want: Any) -> bool:
    if isinstance(want, float) and got is not None:
        return abs(float(got) - want) <= abs(want) * _DEFAULT_SLACK
    if isinstance(want, list | tuple) and got is not None:
        return list(got) == list(want)
    return bool(got == want)


def read_values(node: ir.Node) -> Iterator[ir.Value]:
    """What a node reads, through its subgraphs too."""
    yield from (value for value in node.inputs if value is not None)
    yield from captured_values(node)


def captured_values(node: ir.Node) -> Iterator[ir.Value]:
    """What the subgraphs of a node read."""
    for attr in node.attributes.values():
        if attr.type == ir.AttributeType.GRAPH:
            for inner in attr.as_graph():
                yield from read_values(inner)


def constant(value: ir.Value | None) -> np.ndarray | None:
    """The array of an initializer or Constant node, else None."""
    if value is None or value.is_graph_input():
        return None
    tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None or tensor.dtype == ir.DataType.STRING else tensor.numpy()


def attribute(node: ir.Node, name: str) -> Any:
    """An attribute's value, or the default that its operator's schema gives."""
    attr = node.attributes.get(name)
    if attr is not None:
        return attr.value
    version = node.graph.opset_imports.get(node.domain) if node.graph is not None else None
    return _default(node.op_type, node.domain, name, version or onnx.defs.onnx_opset_version())


def attributes(node: ir.Node) -> dict[str, Any]:
    """What a node itself says, for one that takes its place."""
    return {name: attr.value for name, attr in node.attributes.items()}


@cache
def _default(op_type: str, domain: str, name: str, version: int) -> Any:
    schema = onnx.defs.get_schema(op_type, version, domain)
    default = schema.attributes[name].default_value if name in schema.attributes else None
    if default is None or default.type == onnx.AttributeProto.UNDEFINED:
        return None
    if default.type == onnx.AttributeProto.STRING:
        return default.s.decode()
    return {1: default.f, 2: default.i, 6: list(default.floats), 7: list(default.ints)}.get(default.type)
