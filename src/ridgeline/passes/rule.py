"""The contract of a rewrite rule: `pattern` / `check` / `rewrite`, no state, and a reason for every refusal.

Rules are applied here, once per node in a sweep; the rules themselves live in `fold_*` and `canonical_*`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import cache, partial
from itertools import chain, count, islice
from typing import Any, ClassVar, Literal, NoReturn

import numpy as np
import onnx
import onnx_ir as ir

from ridgeline.base.choices import Refusal
from ridgeline.errors import failure
from ridgeline.ir.provenance import KEEP, RULE, SOURCES, node_name
from ridgeline.passes.fold_shape import Size, reshape_target, sizes
from ridgeline.passes.match import (
    Found,
    Pattern,
    PatternOps,
    Var,
    attribute,
    constant,
    find,
    key_of,
    root_ops,
)

BAND = 64  # columns: a cache line of each row, whatever the type

# what reading a node raises whose operands are not what ONNX says; rules only read before they insert
MISFITS = (ValueError, TypeError, IndexError, KeyError, AttributeError, ArithmeticError)

# a commutative pattern over variables fits in several ways; a node never needs more tries than this
_MAX_READINGS = 16


class _Refused(Exception):
    def __init__(self, reason: str, at: ir.Value | None) -> None:
        super().__init__(reason)
        self.reason, self.at = reason, at


class Match:
    """One place where a pattern fits; `m.x` is the value bound to the pattern's parameter `x`, or None."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self.nodes = found.nodes
        self.root = found.nodes[0]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._found.values.get(name)

    def require(self, cond: object, reason: str, at: ir.Value | None = None) -> None:
        if not cond:
            self.refuse(reason, at)

    def refuse(self, reason: str, at: ir.Value | None = None) -> NoReturn:
        raise _Refused(reason, at)

    def node(self, op_type: str) -> ir.Node:
        """The outermost matched node of this type."""
        return next(node for node in self.nodes if node.op_type == op_type)

    def attr(self, op_type: str, name: str) -> Any:
        return attribute(self.node(op_type), name)

    def array(self, name: str) -> np.ndarray:
        """The constant bound to a parameter; refuses when it is not one."""
        value = self._found.values.get(name)
        array = constant(value)
        if array is None:
            self.refuse(f"{name} is not a constant", value)
        return array

    def const(self, name: str) -> Any:
        """The elements of `array` in a plain list, also where a file has a number for a list of one."""
        return self.array(name).reshape(-1).tolist()

    def scalar(self, name: str) -> float:
        array = self.array(name)
        self.require(array.size == 1, f"{name} has {array.size} elements, want one", self._found.values[name])
        return float(array.reshape(()))

    def dims(self, value: ir.Value) -> tuple[Size, ...]:
        """The sizes of a value, as numbers or names; refuses when its rank is unknown."""
        dims = sizes(value)
        if dims is None:
            self.refuse("rank is unknown", value)
        return dims

    def target(self, reshape: ir.Node) -> tuple[Size, ...]:
        """The sizes a Reshape puts out; refuses when they are unknown."""
        target = reshape_target(reshape)
        if target is None:
            self.refuse("target of the reshape is unknown", reshape.inputs[1])
        return target

    def escaping(self) -> ir.Value | None:
        """An inner value that something outside the pattern reads."""
        for node in self.nodes[1:]:
            if node in self._found.shared:
                continue
            for value in node.outputs:
                if value.is_graph_output() or any(use.node not in self.nodes for use in value.uses()):
                    return value
        return None

    def inner_bytes(self) -> int | None:
        """Bytes written and read again for the values the fusion would have kept out of memory."""
        sizes = [nbytes(node.outputs[0]) for node in self.nodes[1:]]
        return None if None in sizes else 2 * sum(size or 0 for size in sizes)


class Change(Enum):
    """What a rewrite may change. Anything else that comes out otherwise is a defect: docs/verification.md."""

    ROUNDING = "rounding"
    SIGNED_ZERO = "the sign of a zero"
    HALF_OVERFLOW = "half types: an overflow that wider sums or an unrounded intermediate avoid"
    INTERMEDIATE = "where an intermediate overflows, once a constant factor or a sum has moved past it"
    LEVEL = "one level of a quantised result, where a sum falls between two"
    DYNAMIC_SCALE = "which of NaN and infinity comes out where a scale found at run time is not finite"
    BARRED_KEYS = "whether NaN and infinities of keys that a mask bars reach the result"


class Fusion:
    """A rewrite that never changes what the model computes. The docstring's first line is its formula.

    Every rule states in `may_change` what may come out otherwise; with nothing there, no bit does.
    """

    may_change: ClassVar[tuple[Change, ...]]

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} holds no state: pass what `check` learns on the match")

    @property
    def name(self) -> str:
        return type(self).__name__

    def pattern(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def check(self, m: Match) -> None:
        """Call `m.require` for each condition that the structure alone does not show."""

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        raise NotImplementedError


class Names:
    """Value names that a model has; a new one must differ even from those in its subgraphs."""

    def __init__(self, model: ir.Model) -> None:
        self._taken: set[str | None] = set()
        for graph in model.graphs():
            self._taken.update(graph.initializers)
            self._taken.update(value.name for value in graph.inputs)
            self._taken.update(out.name for node in graph for out in node.outputs)

    def fresh(self, stem: str) -> str:
        numbered = (f"{stem}_{i}" for i in count(1))
        name = next(name for name in chain([stem], numbered) if name not in self._taken)
        self._taken.add(name)
        return name


class GraphOps:
    """The `op` a rule's `rewrite` gets: each call makes a node; `op.const(array)` makes an initializer."""

    def __init__(self, graph: ir.Graph, names: Names, *, stem: str) -> None:
        self._graph, self._names, self._stem = graph, names, stem
        self.nodes: list[ir.Node] = []

    def const(self, array: np.ndarray) -> ir.Value:
        return add_initializer(self._graph, self._names.fresh(f"{self._stem}/const"), array)

    def numbers(self, *numbers: int) -> ir.Value:
        """A list of axes, sizes or bounds."""
        return self.const(np.array(numbers, dtype=np.int64))

    def place(self, old: Sequence[ir.Node], *, rule: str, before: ir.Node) -> None:
        """Put the new nodes into the graph, with the sources of those they stand for."""
        for node in self.nodes:
            node.name = node.outputs[0].name
            node.metadata_props.update({SOURCES: merged_sources(old), RULE: rule})
            node.metadata_props.update(
                (KEEP, n.metadata_props[KEEP]) for n in old if KEEP in n.metadata_props
            )
        before.graph.insert_before(before, self.nodes)

    def call(self, key: str, *inputs: ir.Value | None, **attrs: Any) -> ir.Value:
        """A node of any op, by `OpType` or `domain::OpType`; its first output."""
        domain, _, op_type = key.rpartition("::")
        given = list(inputs)
        while given and given[-1] is None:
            given.pop()
        kept = {name: value for name, value in attrs.items() if value is not None}
        count = len(onnx.defs.get_schema(op_type, domain=domain).outputs) if domain else 1
        return self._add(ir.node(op_type, given, attributes=kept, domain=domain, num_outputs=count))[0]

    def split(self, value: ir.Value, lengths: Sequence[int]) -> Sequence[ir.Value]:
        """The parts of a value along its last axis."""
        inputs, axis = [value, self.numbers(*lengths)], {"axis": -1}
        return self._add(ir.node("Split", inputs, attributes=axis, num_outputs=len(lengths)))

    def _add(self, node: ir.Node) -> Sequence[ir.Value]:
        for output in node.outputs:
            output.name = self._names.fresh(f"{self._stem}/{node.op_type}")
        self.nodes.append(node)
        outputs: Sequence[ir.Value] = node.outputs
        return outputs

    def __getattr__(self, op_type: str) -> Any:
        return partial(self.call, op_type)


def apply_rules(
    model: ir.Model,
    rules: Sequence[Fusion],
    *,
    order: Literal["outputs first", "inputs first"] = "outputs first",
) -> list[Refusal]:
    """One sweep over every graph. Outputs first meets the largest pattern before its parts; inputs first
    lets a chain collapse into its first node, each rewrite meeting the result of the one before."""
    by_op = _by_root(tuple(rules))
    refused: list[tuple[Refusal, Match]] = []
    graphs = list(model.graphs())
    if not any(key_of(node) in by_op for graph in graphs for node in graph):
        return []
    names = Names(model)
    for graph in graphs:
        nodes = list(graph)
        for node in nodes if order == "inputs first" else reversed(nodes):
            for rule, pattern in by_op.get(key_of(node), ()):
                # a node of an earlier match has left its graph
                if node.graph is not graph or _try_rule(rule, pattern, node, names, refused):
                    break
    # a refusal is void when a smaller reading of the same nodes fired later in the sweep
    return [refusal for refusal, m in refused if all(node.graph is not None for node in m.nodes)]


@cache
def _by_root(rules: tuple[Fusion, ...]) -> dict[str, list[tuple[Fusion, Pattern]]]:
    """The rules that a node can be the last op of, with their patterns, by the node's key."""
    found: dict[str, list[tuple[Fusion, Pattern]]] = {}
    for rule in rules:
        pattern = _compiled(rule)
        for op_type in root_ops(pattern):
            found.setdefault(op_type, []).append((rule, pattern))
    return found


@cache
def _compiled(rule: Fusion) -> Pattern:
    names = list(inspect.signature(rule.pattern).parameters)[1:]
    pattern: Pattern = rule.pattern(PatternOps(), *map(Var, names))
    return pattern


def _try_rule(
    rule: Fusion, pattern: Pattern, node: ir.Node, names: Names, refused: list[tuple[Refusal, Match]]
) -> bool:
    first: tuple[Refusal, Match] | None = None
    for found in islice(find(pattern, node.outputs[0], Found()), _MAX_READINGS):
        m = Match(found)
        try:
            rule.check(m)
            _require_kept_types(m)
            inner = m.escaping()
            if inner is not None:
                maker = inner.producer()
                assert maker is not None, "an inner value of a match is made by a matched node"
                m.refuse(f"{maker.op_type} result is used outside the pattern", inner)
            _replace(rule, m, names)
        except _Refused as no:
            at = (no.at.name if no.at is not None else None) or node_name(node)
            first = first or (Refusal(rule.name, no.reason, at, m.inner_bytes()), m)
        except MISFITS as error:  # operands that contradict the op: the checks of sites name them later
            reason = f"operands that it cannot read, {failure(error)}"
            first = first or (Refusal(rule.name, reason, node_name(node), None), m)
        else:
            return True
    # a pattern of one node has nothing to fuse, so nothing is lost
    if first is not None and len(first[1].nodes) > 1:
        refused.append(first)
    return False


def _require_kept_types(m: Match) -> None:
    """A rewrite that takes a Cast along changes the type that nodes compute in."""
    kept = [node for node in m.nodes if KEEP in node.metadata_props]
    if kept and any(node.op_type == "Cast" for node in m.nodes):
        m.refuse(f"{node_name(kept[0])} is to compute in {kept[0].metadata_props[KEEP]}", kept[0].outputs[0])


def _replace(rule: Fusion, m: Match, names: Names) -> None:
    graph, old = m.root.graph, m.root.outputs[0]
    op = GraphOps(graph, names, stem=old.name or m.root.op_type)
    new = rule.rewrite(op, m)
    op.place(m.nodes, rule=rule.name, before=m.root)
    for node in op.nodes:
        whole = f"{node_name(m.root)}/{rule.name}"
        # a rule may be called like an op that it writes
        inner = f"{node.outputs[0].name}/inner" if node.outputs[0].name == whole else node.outputs[0].name
        node.name = whole if node is new.producer() else inner
    replace_value(old, new)
    for node in m.nodes:
        if not any(out.uses() or out.is_graph_output() for out in node.outputs):
            graph.remove(node, safe=True)


def replace_value(old: ir.Value, new: ir.Value) -> None:
    """Let every reader of `old` read `new`, which takes over its name, type and shape.

    Inputs, outputs and weights keep the names that callers know: an output in their place is a copy.
    """
    if new.shape is None:
        new.shape = old.shape
    if new.type is None:
        new.type = old.type
    keeps_name = new.is_graph_output() or new.is_graph_input() or new.is_initializer()
    maker = old.producer()
    if keeps_name and old.is_graph_output() and maker is not None:
        copy = ir.node("Identity", [new])
        maker.graph.insert_before(maker, copy)
        replace_value(old, copy.outputs[0])
        return
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    if not keeps_name:
        # they change names: the node behind `old` may stay for another of its outputs
        name, old.name = old.name, None
        new.name, old.name = name, new.name


def merged_sources(nodes: Iterable[ir.Node]) -> str:
    """The original nodes behind these ones, each once, makers before readers."""
    names: dict[str, None] = {}
    waiting = dict.fromkeys(nodes)

    def visit(node: ir.Node) -> None:
        waiting.pop(node)
        for maker in node.predecessors():
            if maker in waiting:
                visit(maker)
        carried = node.metadata_props.get(SOURCES)
        names.update((name, None) for name in (carried.split(";") if carried else [node_name(node)]))

    while waiting:
        visit(next(iter(waiting)))
    return ";".join(names)


def nbytes(value: ir.Value) -> int | None:
    if value.shape is None or value.dtype is None or not value.shape.is_static():
        return None
    size: int = math.ceil(math.prod(value.shape.numpy()) * value.dtype.itemsize)
    return size


def add_initializer(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    tensor = ir.tensor(_contiguous(array).reshape(array.shape), name=name)
    kind = ir.TensorType(tensor.dtype)
    value = ir.Value(name=name, type=kind, shape=ir.Shape(array.shape), const_value=tensor)
    graph.register_initializer(value)
    return value


def _contiguous(array: np.ndarray) -> np.ndarray:
    """A large transposed matrix goes band by band: numpy's own way misses the cache at every element."""
    if array.ndim != 2 or not array.flags.f_contiguous or array.nbytes < 1 << 20:
        return np.ascontiguousarray(array)
    made = np.empty(array.shape, array.dtype)
    for begin in range(0, array.shape[1], BAND):
        made[:, begin : begin + BAND] = array[:, begin : begin + BAND]
    return made
