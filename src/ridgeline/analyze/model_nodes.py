"""The nodes of a model by the names that `--keep` and `--exclude` take. Nothing here prints."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.frontend.from_onnx import Source, load
from ridgeline.frontend.ports import ports
from ridgeline.ir.provenance import node_name
from ridgeline.options import DEFAULT_LIMITS, Limits
from ridgeline.passes.outline import name_nodes


@dataclass(frozen=True)
class ModelNode:
    """One node of the main graph; a node without a name goes by its first output."""

    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class ModelNodes:
    """An ONNX model: its nodes in the order of the file, Constant nodes left out."""

    model: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[ModelNode, ...]


def list_nodes(source: Source, limits: Limits = DEFAULT_LIMITS) -> ModelNodes:
    loaded = load(source, limits)
    graph = loaded.model.graph
    name_nodes(graph)
    rows = [
        ModelNode(
            node_name(node),
            f"{node.domain}::{node.op_type}" if node.domain else node.op_type,
            tuple(str(value.name) for value in node.inputs if value is not None),
            tuple(str(value.name) for value in node.outputs),
        )
        for node in graph
        if node.op_type != "Constant"
    ]
    ends = (ports(graph.inputs, what="input"), ports(graph.outputs, what="output"))
    inputs, outputs = (tuple(f"{port.name}: {port}" for port in side) for side in ends)
    return ModelNodes(loaded.name, inputs, outputs, tuple(rows))
