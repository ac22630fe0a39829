"""Grouped-query attention: keys and values that are repeated for their group of query heads are read once."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from ridgeline.base.choices import Refusal
from ridgeline.ir.provenance import node_name
from ridgeline.passes.fold_shape import sizes
from ridgeline.passes.match import is_read
from ridgeline.passes.rule import GraphOps, Names, nbytes
from ridgeline.passes.simplify_views import Step, spelling, write
from ridgeline.passes.view_runs import Piece, View, views_of_run

NAME = "GroupedHeads"
HEADS = 1  # the axis of heads in [B, H, T, D]


def group_heads(model: ir.Model) -> list[Refusal]:
    """Attention(q, repeat(k), repeat(v)) = Attention(q, k, v) with fewer heads of k and v than of q."""
    names = Names(model)
    refusals = []
    for graph in list(model.graphs()):
        for node in graph:
            if node.op_type == "Attention" and not node.domain and _is_plain(node):
                reason = _group(node, names)
                if reason is not None:
                    refusals.append(Refusal(NAME, reason, node_name(node), nbytes(node.inputs[1])))
    return refusals


def _is_plain(node: ir.Node) -> bool:
    """Four axes, and no keys from elsewhere that would have to be grouped too."""
    has_past = any(value is not None for value in node.inputs[4:])
    has_extra = any(is_read(out) for out in node.outputs[1:])
    ranks = [len(sizes(value) or ()) for value in node.inputs[:3]]
    return ranks == [4, 4, 4] and not has_past and not has_extra


def _group(node: ir.Node, names: Names) -> str | None:
    """Let the node read ungrouped keys and values; why not, where something is repeated after all."""
    keys, values = (_repeated(value) for value in node.inputs[1:3])
    if keys is None and values is None:
        return None
    if keys is None or values is None or keys[1] != values[1]:
        return "keys and values are repeated in different ways"
    for index, (view, _) in enumerate((keys, values), start=1):
        if _once(view) is None:
            return f"{node.inputs[index].name!r} repeats heads in another order, or its sizes are unknown"
    for index, (view, _) in enumerate((keys, values), start=1):
        op = GraphOps(node.graph, names, stem=f"{node.inputs[index].name}/{NAME}")
        new = write(op, view.source, _once(view) or [])
        op.place(view.run, rule=NAME, before=node)
        node.replace_input_with(index, new)
    return None


def _repeated(value: ir.Value) -> tuple[View, int] | None:
    """The value as a view that repeats heads, and how many times."""
    for view in views_of_run(value):
        times = [p.size for p in view.axes[HEADS] if p.axis is None] if len(view.axes) == 4 else []
        if len(times) == 1 and isinstance(times[0], int):
            return view, times[0]
    return None


def _once(view: View) -> list[Step] | None:
    """The view without its repetition; None unless query head h reads head h // times."""
    heads = view.axes[HEADS]
    if heads[-1].axis is not None:
        return None
    pieces: tuple[Piece, ...] = heads[:-1]
    return spelling(replace(view, axes=(view.axes[0], pieces, *view.axes[2:])))
