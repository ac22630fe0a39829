"""Merges products of one input with constant weights (q, k and v; gate and up) into one with a Split behind.

One wide product reads the input once and fills a GPU better than its parts. Which products are merged is told
by where they meet again: projections of one input for several layers stay apart. K input columns, N output.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ridgeline.base.choices import Refusal, RefusedError
from ridgeline.ir.op_row import Kind
from ridgeline.ir.ops import is_a
from ridgeline.ir.provenance import node_name
from ridgeline.passes.fold_shape import sizes
from ridgeline.passes.match import attribute, constant, key_of
from ridgeline.passes.rule import GraphOps, Names, nbytes, replace_value
from ridgeline.passes.take_moves import guard_of

NAME = "MergeLinear"
# between a projection and the product that takes it lie views, a bias, a rotation; more is another layer
MAX_STEPS = 48


@dataclass(frozen=True)
class Linear:
    """A product with constant weights [K, N], and the bias that follows it if there is one."""

    nodes: tuple[ir.Node, ...]
    weight: np.ndarray
    bias: np.ndarray | None

    @property
    def result(self) -> ir.Value:
        return self.nodes[-1].outputs[0]

    @property
    def columns(self) -> int:
        return int(self.weight.shape[1])


def merge_linear(model: ir.Model) -> list[Refusal]:
    """Merge what may be merged; a sibling that may not says why."""
    refusals: list[Refusal] = []
    names = Names(model)
    for graph in list(model.graphs()):
        for source in _sources(graph):
            groups: dict[ir.Node | None, list[Linear]] = {}
            for node in _siblings(source, graph):
                try:
                    linear = _read(node)
                    meeting = _meeting(linear.result)
                    _require_one_reader(linear, meeting)
                    groups.setdefault(meeting, []).append(linear)
                except RefusedError as no:
                    refusals.append(Refusal(NAME, str(no), node_name(node), nbytes(source)))
            for group in _joined(groups):
                if len(group) > 1:
                    _merge(source, group, names)
    return refusals


def _sources(graph: ir.Graph) -> list[ir.Value]:
    """Values that several products read."""
    made = [out for node in graph for out in node.outputs]
    return [value for value in (*graph.inputs, *made) if len(_siblings(value, graph)) > 1]


def _siblings(source: ir.Value, graph: ir.Graph) -> list[ir.Node]:
    readers = dict.fromkeys(use.node for use in source.uses() if use.idx == 0)
    return [node for node in readers if node.graph is graph and key_of(node) in ("MatMul", "Gemm")]


def _read(node: ir.Node) -> Linear:
    """The product as K columns to N; refuses one that cannot stand beside others."""
    weight, out = constant(node.inputs[1]), node.outputs[0]
    if weight is None:
        raise RefusedError(f"weight {node.inputs[1].name!r} is not a constant")
    if weight.ndim != 2:
        raise RefusedError(f"weight {node.inputs[1].name!r} has {weight.ndim} axes, want two")
    _require_inner(out)
    rank = sizes(node.inputs[0])
    if rank is None or len(rank) < 2:
        raise RefusedError(f"{node.inputs[0].name!r} is not known to have two axes")
    if node.op_type == "Gemm":
        return _read_gemm(node, weight)
    add = _bias_add(out, int(weight.shape[1]))
    if add is None:
        return Linear((node,), weight, None)
    bias = next(array for array in map(constant, add.inputs) if array is not None)
    _require_inner(add.outputs[0])
    return Linear((node, add), weight, bias.reshape(-1))


def _require_inner(value: ir.Value) -> None:
    if value.is_graph_output():
        raise RefusedError(f"{value.name!r} is an output of the model")


def _read_gemm(node: ir.Node, weight: np.ndarray) -> Linear:
    alpha, beta = attribute(node, "alpha"), attribute(node, "beta")
    if attribute(node, "transA"):
        raise RefusedError("Gemm transposes its input: its K is another axis")
    if alpha != 1.0 or beta != 1.0:
        raise RefusedError(f"Gemm scales by {alpha} and {beta}, want 1")
    if attribute(node, "transB"):
        weight = weight.T
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return Linear((node,), weight, None)
    bias, columns = constant(node.inputs[2]), int(weight.shape[1])
    if bias is None or bias.shape not in ((columns,), (1, columns)):
        raise RefusedError(f"bias {node.inputs[2].name!r} is not a constant row of {columns}")
    return Linear((node,), weight, bias.reshape(-1))


def _bias_add(product: ir.Value, columns: int) -> ir.Node | None:
    """The Add of one constant row that alone reads a product."""
    uses = list(product.uses())
    if len(uses) != 1 or uses[0].node.op_type != "Add" or uses[0].node.graph is not product.producer().graph:
        return None
    add: ir.Node = uses[0].node
    bias = constant(add.inputs[1 - uses[0].idx])
    is_row = bias is not None and bias.size == columns and bias.shape[-1:] == (columns,)
    rank = sizes(product)
    return add if is_row and bias is not None and rank is not None and bias.ndim <= len(rank) else None


def _meeting(value: ir.Value) -> ir.Node | None:
    """The first product or attention that needs this value, whatever lies between."""
    waiting, seen = deque([value]), 0
    while waiting and seen < MAX_STEPS:
        for node, _ in waiting.popleft().uses():
            if is_a(node, Kind.PRODUCT):
                found: ir.Node = node
                return found
            waiting.extend(node.outputs)
            seen += 1
    return None


def _joined(groups: Mapping[ir.Node | None, list[Linear]]) -> list[list[Linear]]:
    """The groups, with those in one that attend side by side: queries here are keys over there."""
    attentions = [m for m in groups if m is not None and m.op_type == "Attention"]
    alone = [group for meeting, group in groups.items() if meeting not in attentions]
    if len(attentions) > 1 and not any(_needs_another(meeting, attentions) for meeting in attentions):
        return [*alone, [linear for meeting in attentions for linear in groups[meeting]]]
    return list(groups.values())


def _needs_another(attention: ir.Node, others: Sequence[ir.Node]) -> bool:
    """Whether one of the others is computed first: then they belong to different layers."""
    waiting, seen = [attention], {attention}
    while waiting:
        for maker in waiting.pop().predecessors():
            if maker in others:
                return True
            if maker not in seen:
                seen.add(maker)
                waiting.append(maker)
    return False


def _require_one_reader(linear: Linear, meeting: ir.Node | None) -> None:
    """Refuse a part of the merged result that would have to be copied out for somebody beside `meeting`."""
    value = linear.result
    while meeting is not None:
        readers = list(dict.fromkeys(node for node, _ in value.uses()))
        others = [node for node in readers if node is not meeting and node not in guard_of(meeting)]
        _require_inner(value)
        if meeting in readers and others:
            raise RefusedError(f"{value.name!r} is read by {node_name(others[0])} too")
        if meeting in readers or len(readers) != 1 or not is_a(readers[0], Kind.MOVEMENT):
            return  # it meets the others, or is computed with before, and then copied in any case
        value = readers[0].outputs[0]


def _merge(source: ir.Value, group: Sequence[Linear], names: Names) -> None:
    nodes = [node for linear in group for node in linear.nodes]
    graph = nodes[0].graph
    first = min(nodes, key={node: i for i, node in enumerate(graph)}.__getitem__)
    op = GraphOps(graph, names, stem=f"{node_name(group[0].nodes[0])}/{NAME}")
    merged = op.MatMul(source, op.const(np.concatenate([linear.weight for linear in group], axis=1)))
    if any(linear.bias is not None for linear in group):
        # a product without a bias gets zeros, which add nothing
        biases = (np.zeros(x.columns, x.weight.dtype) if x.bias is None else x.bias for x in group)
        merged = op.Add(merged, op.const(np.concatenate(list(biases))))
    parts = op.split(merged, [linear.columns for linear in group])
    op.place(nodes, rule=NAME, before=first)
    for node in op.nodes:
        node.name = f"{node_name(group[0].nodes[0])}/{NAME}/{node.op_type}"
    for linear, part in zip(group, parts, strict=True):
        replace_value(linear.result, part)
    graph.remove(nodes[::-1], safe=True)
