"""String initializers become Constant nodes: weights are numbers, in memory and in an engine file."""

from __future__ import annotations

import onnx_ir as ir


def keep_strings_in_graph(model: ir.Model) -> None:
    """Put a Constant node in the place of every string initializer of the main graph."""
    graph = model.graph
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or tensor.dtype != ir.DataType.STRING:
            continue
        node = ir.node("Constant", [], {"value": tensor}, name=f"{name}/strings")
        made = node.outputs[0]
        made.type, made.shape = value.type, value.shape
        graph.insert_before(graph[0], node)
        del graph.initializers[name]
        ir.convenience.replace_all_uses_with(value, made, replace_graph_outputs=True)
        value.name, made.name = None, name
