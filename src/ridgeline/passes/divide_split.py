"""Turns a Split whose parts go to different kernels into slices: each kernel then reads its own in place.

Attention is a kernel of its own; where all parts meet in one kernel, that one takes the Split whole.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

import onnx_ir as ir

from ridgeline.ir.op_row import Trait
from ridgeline.ir.ops import has
from ridgeline.passes.fold_shape import sizes
from ridgeline.passes.match import attribute
from ridgeline.passes.rule import GraphOps, Names, replace_value
from ridgeline.passes.take_moves import guard_of

NAME = "DividedSplit"


def divide_splits(model: ir.Model) -> None:
    names = Names(model)
    for graph in list(model.graphs()):
        for node in list(graph):
            if node.op_type == "Split" and not node.domain and _is_scattered(node):
                _divide(node, names)


def _is_scattered(split: ir.Node) -> bool:
    """Whether each part has one kernel that needs it, and they are not the same."""
    homes = [_home(out) for out in split.outputs]
    lengths = _lengths(split)
    is_clear = all(home is not None for home in homes) and lengths is not None
    return is_clear and len(set(homes)) > 1 and any(isinstance(home, ir.Node) for home in homes)


def _home(value: ir.Value) -> ir.Node | str | None:
    """The attention that needs a value, "other" for other kernels, None where both do."""
    if value.is_graph_output():
        return None
    found: set[ir.Node | str | None] = set()
    for node, _ in value.uses():
        if node.op_type == "Mul" and node in _guards(value):
            continue
        if has(node, Trait.STRIDED) or node.op_type == "Concat":
            found.update(_home(out) for out in node.outputs)
        else:
            found.add(node if node.op_type == "Attention" else "other")
    return found.pop() if len(found) == 1 else None


def _guards(value: ir.Value) -> list[ir.Node]:
    """What an attention that reads the value does to NaN: it is part of its kernel."""
    return [guard for node, _ in value.uses() if node.op_type == "Attention" for guard in guard_of(node)]


def _lengths(split: ir.Node) -> list[int] | None:
    axis = attribute(split, "axis")
    found = [(sizes(out) or (None,))[axis if sizes(out) else 0] for out in split.outputs]
    numbers = [length for length in found if isinstance(length, int)]
    return numbers if len(numbers) == len(found) else None


def _divide(split: ir.Node, names: Names) -> None:
    axis = attribute(split, "axis")
    bounds = pairwise(accumulate(_lengths(split) or (), initial=0))
    for out, (start, end) in zip(split.outputs, bounds, strict=True):
        op = GraphOps(split.graph, names, stem=f"{out.name}/{NAME}")
        part = op.Slice(split.inputs[0], *map(op.numbers, (start, end, axis)))
        op.place([split], rule=NAME, before=split)
        replace_value(out, part)
    split.graph.remove(split, safe=True)
