"""Functions become plain nodes: those of the model, and standard ops that ONNX defines by other ops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import TypeAlias

import onnx
from onnx import shape_inference
from onnx.inliner import inline_local_functions

from ridgeline.errors import LimitError, ModelError
from ridgeline.options import Limits

Holder: TypeAlias = onnx.GraphProto | onnx.FunctionProto  # of nodes
FunctionId: TypeAlias = tuple[str, str, str]  # domain, name, overload

LOCAL = "ridgeline.defined"
# these have no kernel: they run as the nodes that ONNX defines them by
FLEX_ATTENTION = ("ai.onnx.preview", "FlexAttention")
# has a scale for each group instead of each channel; deprecated, but exporters write it
GROUP_NORM, GROUP_NORM_OPSETS = ("", "GroupNormalization"), range(18, 21)
# ONNX Runtime writes these as if they were standard in every opset
RUNTIME_DOMAIN = "com.microsoft"
RUNTIME_OPS = frozenset({("", "LayerNormalization"), ("", "SimplifiedLayerNormalization")})


def define_functions(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with a function for each node whose op no later stage reads."""
    versions = {plain_domain(entry.domain): entry.version for entry in proto.opset_import}
    wanted = {FLEX_ATTENTION} | ({GROUP_NORM} if versions.get("") in GROUP_NORM_OPSETS else set())
    if not any(_key(node) in wanted for node in all_nodes(proto)):
        return proto
    inferred = shape_inference.infer_shapes(proto).graph
    types = {v.name: v.type for v in (*inferred.input, *inferred.value_info, *inferred.output)}
    defined = copy_of(proto)
    for i, node in enumerate(node for node in all_nodes(defined) if _key(node) in wanted):
        is_flex = _key(node) == FLEX_ATTENTION
        function = _flex_attention(node, versions, types) if is_flex else _group_norm(node)
        function.domain, function.name = LOCAL, f"{node.op_type}_{i}"
        del function.opset_import[:], function.attribute[:], function.attribute_proto[:]
        function.opset_import.extend(proto.opset_import)
        defined.functions.append(function)
        node.domain, node.op_type = function.domain, function.name
        del node.attribute[:]
    defined.opset_import.add(domain=LOCAL, version=1)
    return defined


def name_runtime_ops(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Move norms that the model's opset does not have to the domain of the runtime that wrote them."""
    version = max((e.version for e in proto.opset_import if not plain_domain(e.domain)), default=1)
    foreign = {
        key for key in RUNTIME_OPS if not onnx.defs.has(key[1], max_inclusive_version=version, domain="")
    }
    if not any(_key(node) in foreign for node in all_nodes(proto)):
        return proto
    named = copy_of(proto)
    for node in all_nodes(named):
        if _key(node) in foreign:
            node.domain = RUNTIME_DOMAIN
    if all(entry.domain != RUNTIME_DOMAIN for entry in named.opset_import):
        named.opset_import.add(domain=RUNTIME_DOMAIN, version=1)
    return named


def inline_functions(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model without calls of functions."""
    return inline_local_functions(proto) if proto.functions else proto


def require_inlinable(proto: onnx.ModelProto, limits: Limits) -> None:
    """Raise if inlining makes the model too large, or if a function calls itself."""
    functions = {_id(function.domain, function.name, function): function for function in proto.functions}
    calls: dict[FunctionId, list[FunctionId]] = {}
    sizes: dict[FunctionId, int] = {}
    for key, function in functions.items():
        made = [_id(node.domain, node.op_type, node) for node in _nodes_within([function])]
        sizes[key], calls[key] = len(made), [callee for callee in made if callee in functions]
    try:
        order = tuple(TopologicalSorter(calls).static_order())  # functions come before their callers
    except CycleError as error:
        path = " calls ".join(f"{domain}::{name}" for domain, name, _ in reversed(error.args[1]))
        raise ModelError("a function of the model calls itself", got=path) from error
    for key in order:
        sizes[key] += sum(sizes[callee] for callee in calls[key])
    total = 0
    for node in _nodes_within([proto.graph]):
        total += 1 + sizes.get(_id(node.domain, node.op_type, node), 0)
        if functions and total > limits.inlined_nodes:
            raise LimitError(
                f"functions of the model become too many nodes, at {node_label(node)} ({node.op_type})",
                limit="inlined_nodes",
                got=total,
                allowed=limits.inlined_nodes,
            )


def _id(domain: str, name: str, holder: onnx.FunctionProto | onnx.NodeProto) -> FunctionId:
    return plain_domain(domain), name, holder.overload


def node_label(node: onnx.NodeProto) -> str:
    """A node's name, else its first output's."""
    return node.name or next(iter(node.output), "a node without a name")


def all_nodes(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Every node, in subgraphs and functions too."""
    return _nodes_within([proto.graph, *proto.functions])


def _nodes_within(holders: Sequence[Holder]) -> Iterator[onnx.NodeProto]:
    return (node for holder in all_holders(holders) for node in holder.node)


def all_holders(first: Sequence[Holder]) -> Iterator[Holder]:
    """These graphs and functions, and every subgraph in them."""
    pending = list(first)
    while pending:
        holder = pending.pop()
        yield holder
        pending += [graph for node in holder.node for graph in subgraphs(node)]


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs that a node itself holds."""
    for attr in node.attribute:
        if attr.HasField("g"):
            yield attr.g
        yield from attr.graphs


def names_read(graph: onnx.GraphProto) -> Iterator[str]:
    """The names that nodes read, those in subgraphs too, and that the graph gives out."""
    yield from (port.name for port in graph.output)
    for node in graph.node:
        yield from names_read_by(node)


def names_read_by(node: onnx.NodeProto) -> Iterator[str]:
    """Names that a node reads, in its subgraphs too. Names made inside those hide none outside."""
    yield from node.input
    for graph in subgraphs(node):
        yield from names_read(graph)


def copy_of(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that can be changed without changing the model."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    return made


def plain_domain(name: str) -> str:
    """The domain of standard ops has two names; this one is empty."""
    return "" if name == "ai.onnx" else name


def count_nodes(nodes: Iterable[onnx.NodeProto]) -> int:
    """The number of nodes without Constant nodes, which hold weights."""
    return sum(node.op_type != "Constant" for node in nodes)


def _key(node: onnx.NodeProto) -> tuple[str, str]:
    return plain_domain(node.domain), node.op_type


def _flex_attention(
    node: onnx.NodeProto, versions: Mapping[str, int], types: Mapping[str, onnx.TypeProto]
) -> onnx.FunctionProto:
    """The definition of ONNX, which depends on the node's attributes and types."""
    schema = onnx.defs.get_schema(node.op_type, versions[node.domain], node.domain)
    given = [types.get(name, onnx.TypeProto()).SerializeToString() for name in node.input]
    return onnx.FunctionProto.FromString(
        schema.get_context_dependent_function(node.SerializeToString(), given)
    )


def _group_norm(node: onnx.NodeProto) -> onnx.FunctionProto:
    """The op as an instance norm: each group is one channel of an image."""
    attrs = {attr.name: attr for attr in node.attribute}
    epsilon = attrs["epsilon"].f if "epsilon" in attrs else 1e-5
    return onnx.parser.parse_function(f"""
        <domain: "{LOCAL}", opset_import: ["" : 18]> GroupNorm (x, scale, bias) => (y) {{
            shape = Shape(x)
            groups = Constant<value_ints = [0, {attrs["num_groups"].i}, -1]>()
            rows = Reshape(x, groups)
            normal = InstanceNormalization<epsilon = {epsilon:.9e}>(rows, scale, bias)
            y = Reshape(normal, shape)
        }}""")
