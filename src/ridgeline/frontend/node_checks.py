"""Checks that ONNX's checker does not make: how many values a node takes and gives."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from ridgeline.errors import ModelError
from ridgeline.frontend.functions import Holder, all_nodes, node_label, plain_domain, subgraphs

MAX_DEPTH = 33  # protobuf reads 100 nested messages, and a subgraph takes three
VALUES = frozenset({"value", "value_int", "value_ints", "value_float", "value_floats", "value_string",
                    "value_strings", "sparse_value"})  # fmt: skip


def check_depth(proto: onnx.ModelProto) -> None:
    """Raise if subgraphs nest deeper than a file can hold, as in a model made in memory."""
    pending: list[tuple[Holder, int]] = [(holder, 0) for holder in (proto.graph, *proto.functions)]
    while pending:
        holder, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise ModelError("subgraphs nest too deep", got=f"{depth} levels", want=f"at most {MAX_DEPTH}")
        pending += [(graph, depth + 1) for node in holder.node for graph in subgraphs(node)]


def check_nodes(proto: onnx.ModelProto) -> None:
    """Raise one error that lists every node whose subgraphs or value contradict it."""
    rows = [
        f"{node_label(node)} ({node.op_type}): {problem}"
        for node in all_nodes(proto)
        if not plain_domain(node.domain)
        for problem in _problems(node)
    ]
    if rows:
        raise ModelError("nodes of the model contradict their subgraphs or attributes", rows=rows)


def _problems(node: onnx.NodeProto) -> Iterator[str]:
    graphs = {attr.name: attr.g for attr in node.attribute if attr.HasField("g")}
    if node.op_type == "Constant":
        given = [attr.name for attr in node.attribute if attr.name in VALUES]
        if len(given) != 1:
            yield f"{len(given)} values, want one"
    elif node.op_type == "Split":
        # onnx's own shape inference reads past its end where these differ
        parts = [attr.i for attr in node.attribute if attr.name == "num_outputs"]
        if parts and parts[0] != len(node.output):
            yield f"num_outputs is {parts[0]}, and it has {len(node.output)}"
    elif node.op_type == "If":
        for name, graph in graphs.items():
            if len(graph.output) != len(node.output):
                yield f"{name} gives {len(graph.output)} values, the node {len(node.output)}"
    elif node.op_type in ("Loop", "SequenceMap") and "body" in graphs:
        body, gives = graphs["body"], len(node.output) + (node.op_type == "Loop")
        if len(body.input) != len(node.input):
            yield f"its body takes {len(body.input)} values, and is given {len(node.input)}"
        if "" in node.input[2 if node.op_type == "Loop" else 0 :]:
            yield "a value that its body takes is left out"
        if len(body.output) < gives:
            yield f"its body gives {len(body.output)} values, want {gives} or more"
