"""Outlining: move groups of nodes into model-local functions, one function per distinct body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from ridgeline.base.spec import Body, Op
from ridgeline.ir.body import DOMAIN, node_sources, op_of
from ridgeline.ir.provenance import MATH, SOURCES, node_name
from ridgeline.ir.quant import dequantizes, quantizes
from ridgeline.passes.rule import replace_value

# constants up to this size say what a region computes (axes, epsilons, bounds) and live inside it
INLINE_NUMEL = 1
INLINE_INT_NUMEL = 64


def outline(model: ir.Model, groups: Sequence[Sequence[ir.Node]], *, order: Mapping[ir.Node, int]) -> None:
    """Replace each group of nodes by a call of a function in domain `ridgeline`. Equal bodies share one."""
    taken: set[str] = {node_name(node) for node in model.graph}
    for group in groups:
        _outline_one(model, sorted(group, key=order.__getitem__), taken)
    if groups:
        model.opset_imports[DOMAIN] = 1
        model.graph.sort()


@dataclass(frozen=True)
class _Group:
    """Nodes that become one function, and the values at its edges."""

    nodes: list[ir.Node]
    inputs: list[ir.Value]
    inlined: list[ir.Value]  # constants that go into the function
    outputs: list[ir.Value]
    names: Mapping[ir.Value, str]  # of all values inside


def leaving(nodes: Sequence[ir.Node]) -> list[ir.Value]:
    """Values that others need from these nodes."""
    inside = set(nodes)
    made = [value for node in nodes for value in node.outputs]
    return [v for v in made if v.is_graph_output() or any(user not in inside for user, _ in v.uses())]


def _group(nodes: list[ir.Node]) -> _Group:
    group = _Group(nodes, [], [], leaving(nodes), names := {})
    for node in nodes:
        for value in node.inputs:
            if value is None or value in names:
                continue
            if is_inlined(value):
                names[value] = f"c{len(group.inlined)}"
                group.inlined.append(value)
            elif value.producer() not in nodes:
                names[value] = f"x{len(group.inputs)}"
                group.inputs.append(value)
        for value in node.outputs:
            names[value] = f"v{len(names)}"
    return group


def _outline_one(model: ir.Model, nodes: list[ir.Node], taken: set[str]) -> None:
    group = _group(nodes)
    names = group.names
    body = Body(
        inputs=tuple(names[v] for v in group.inputs),
        outputs=tuple(names[v] for v in group.outputs),
        ops=tuple(_renamed(node, names) for node in nodes),
        constants={names[value]: value.const_value.numpy() for value in group.inlined},
    )
    title = "_".join(node.op_type for node in nodes)
    name = f"{title[:48].rstrip('_')}_{body.digest[:8]}"
    if (DOMAIN, name, "") not in model.functions:
        function = _function(name, group, model.opset_imports)
        model.functions[function.identifier()] = function
    _call(model, name, group, taken)


def is_inlined(value: ir.Value) -> bool:
    tensor = value.const_value
    if tensor is None or value.is_graph_input():
        return False
    # scales differ from layer to layer: inside a body they would make regions of one shape different ones
    if any(quantizes(node) or dequantizes(node) for node, _ in value.uses()):
        return False
    limit = INLINE_INT_NUMEL if tensor.dtype.is_integer() else INLINE_NUMEL
    return bool(tensor.size <= limit)


def _renamed(node: ir.Node, names: Mapping[ir.Value, str]) -> Op:
    inputs = tuple(names[v] if v is not None else "" for v in node.inputs)
    return replace(op_of(node), inputs=inputs, outputs=tuple(names[v] for v in node.outputs), name="")


def _function(name: str, group: _Group, opset_imports: Mapping[str, int]) -> ir.Function:
    names = group.names
    fresh: dict[ir.Value, ir.Value] = {value: ir.Value(name=names[value]) for value in group.inputs}
    body: list[ir.Node] = []
    for value in group.inlined:
        tensor = ir.tensor(value.const_value.numpy(), dtype=value.const_value.dtype)
        constant = ir.Node("", "Constant", [], attributes=[ir.AttrTensor("value", tensor)])
        constant.outputs[0].name = names[value]
        fresh[value] = constant.outputs[0]
        body.append(constant)
    for node in group.nodes:
        copy = ir.Node(
            node.domain,
            node.op_type,
            [None if v is None else fresh[v] for v in node.inputs],
            attributes=list(node.attributes.values()),
            num_outputs=len(node.outputs),
        )
        if MATH in node.metadata_props:
            copy.metadata_props[MATH] = node.metadata_props[MATH]
        for old, new in zip(node.outputs, copy.outputs, strict=True):
            new.name = names[old]
            fresh[old] = new
        body.append(copy)
    domains = {"", *(node.domain for node in group.nodes)}
    graph = ir.Graph(
        [fresh[v] for v in group.inputs],
        [fresh[v] for v in group.outputs],
        nodes=body,
        opset_imports={domain: opset_imports.get(domain, 1) for domain in domains},
        name=name,
    )
    return ir.Function(DOMAIN, name, graph=graph, attributes=[])


def _call(model: ir.Model, name: str, group: _Group, taken: set[str]) -> None:
    nodes, outputs = group.nodes, group.outputs
    # what a region computes says more than what it reads its operands with
    lead = next((node for node in nodes if not dequantizes(node)), nodes[0])
    call = ir.Node(DOMAIN, name, group.inputs, num_outputs=len(outputs), name=_unique(node_name(lead), taken))
    sources = dict.fromkeys(source for node in nodes for source in node_sources(node))
    call.metadata_props[SOURCES] = ";".join(sources)
    model.graph.insert_after(nodes[-1], call)
    for old, new in zip(outputs, call.outputs, strict=True):
        replace_value(old, new)
    model.graph.remove(nodes, safe=True)


def name_nodes(graph: ir.Graph) -> None:
    """A name of its own for every node: ONNX allows equal names and none at all, plans and reports do not."""
    taken: set[str] = set()
    for node in graph:
        label = node_name(node)
        if label in taken:
            node.metadata_props.setdefault(SOURCES, label)
        node.name = _unique(label, taken)


def _unique(label: str, taken: set[str]) -> str:
    name, count = label, 1
    while name in taken:
        name, count = f"{label}#{count}", count + 1
    taken.add(name)
    return name
