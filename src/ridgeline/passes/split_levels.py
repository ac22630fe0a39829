"""Split of dequantised numbers as Split of their levels: each part is then dequantised by what reads it."""

from __future__ import annotations

import onnx_ir as ir

from ridgeline.ir.quant import dequantizes
from ridgeline.passes.match import attributes, constant
from ridgeline.passes.rule import GraphOps, Names, replace_value

NAME = "LevelsSplit"


def split_levels(model: ir.Model) -> bool:
    """Whether a Split was found that reads levels now."""
    names = Names(model)
    found = [
        (graph, node)
        for graph in list(model.graphs())
        for node in graph
        if node.op_type == "Split" and not node.domain and _is_movable(node)
    ]
    for graph, node in found:
        _divide(graph, node, names)
    return bool(found)


def _is_movable(split: ir.Node) -> bool:
    """It reads 8-bit levels of one scale. ONNX splits no narrower ones."""
    maker = None if split.inputs[0] is None else split.inputs[0].producer()
    if maker is None or not dequantizes(maker) or maker.graph is not split.graph:
        return False
    levels, scale = maker.inputs[0], maker.inputs[1]
    numbers = None if scale is None else constant(scale)
    is_known = levels is not None and levels.dtype in (ir.DataType.INT8, ir.DataType.UINT8)
    return is_known and numbers is not None and numbers.size == 1


def _divide(graph: ir.Graph, split: ir.Node, names: Names) -> None:
    maker = split.inputs[0].producer()
    levels, scale, zero = (*maker.inputs, None)[:3]
    parts = ir.Node(
        "", "Split", [levels, *split.inputs[1:]], attributes=list(split.attributes.values()),
        num_outputs=len(split.outputs), name=names.fresh(f"{split.name}/{NAME}"),
    )  # fmt: skip
    parts.metadata_props.update(split.metadata_props)
    graph.insert_before(split, parts)
    for part, out in zip(parts.outputs, split.outputs, strict=True):
        part.name, part.type, part.shape = names.fresh(f"{out.name}/{NAME}"), levels.type, out.shape
        op = GraphOps(graph, names, stem=f"{out.name}/{NAME}")
        numbers = op.call("DequantizeLinear", part, scale, zero, **attributes(maker))
        op.place([maker, split], rule=NAME, before=split)
        replace_value(out, numbers)
    graph.remove(split, safe=True)
