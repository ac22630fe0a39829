"""Control flow with results that nobody wants, on which ONNX Runtime ends the process: they get names."""

from __future__ import annotations

import onnx

from ridgeline.frontend.functions import all_nodes, copy_of, plain_domain

CONTROL = frozenset({"If", "Loop", "Scan"})


def with_named_results(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model, or a copy in which every result of control flow has a name."""
    if not any(map(_is_nameless, all_nodes(proto))):
        return proto
    made = copy_of(proto)
    taken = {name for node in all_nodes(made) for name in (*node.input, *node.output)}
    for node in all_nodes(made):
        if _is_nameless(node):
            base = next((name for name in node.output if name), node.name or node.op_type)
            for place, name in enumerate(node.output):
                if not name:
                    node.output[place] = _new(f"{base}/unused{place}", taken)
    return made


def _is_nameless(node: onnx.NodeProto) -> bool:
    return node.op_type in CONTROL and not plain_domain(node.domain) and "" in node.output


def _new(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name
