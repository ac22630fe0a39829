"""Draws the nodes of an ONNX file for `ridge show`."""

from __future__ import annotations

from rich.console import Console

from ridgeline.analyze.model_nodes import ModelNodes
from ridgeline.cli.grid import put, put_lines, table
from ridgeline.cli.render import plural


def draw_model(found: ModelNodes, console: Console) -> None:
    """The nodes of a model, for `ridge show MODEL.onnx`."""
    ends = (("in", "; ".join(found.inputs)), ("out", "; ".join(found.outputs)))
    put_lines((("model", f"{found.model}, {plural(len(found.nodes), 'node')}"), *ends), console)
    console.print()
    grid = table("#", "node", "op", "reads", numeric=("#",), keep=("node",))
    for i, node in enumerate(found.nodes, start=1):
        grid.add_row(str(i), node.name, node.op_type, ", ".join(node.inputs))
    put(grid, console)
