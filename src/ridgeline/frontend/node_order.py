"""Sorts nodes into the order that ONNX requires. Some converters append casts at the end."""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

import onnx

from ridgeline.frontend.functions import copy_of, names_read_by


def in_order(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the nodes of its main graph sorted; the same model if they are, or cannot be."""
    nodes = proto.graph.node
    maker = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    needs = [[maker[name] for name in names_read_by(node) if name in maker] for node in nodes]
    if all(j < i for i, needed in enumerate(needs) for j in needed):
        return proto
    try:
        order = _stable_order(needs)
    except CycleError:
        return proto  # the checker reports what is wrong
    made = copy_of(proto)
    del made.graph.node[:]
    made.graph.node.extend(nodes[i] for i in order)
    return made


def _stable_order(needs: Sequence[Sequence[int]]) -> list[int]:
    """An order that changes as little as possible."""
    sorter = TopologicalSorter(dict(enumerate(needs)))
    sorter.prepare()
    order: list[int] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        order += ready
        sorter.done(*ready)
    return order
