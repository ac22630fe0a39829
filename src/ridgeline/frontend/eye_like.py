"""EyeLike nodes that ONNX's own shape inference cannot read: it ends the process.

It looks up the type of the input, to compare it with `dtype`, also where it knows none: behind a custom op,
or a node that contradicts itself. An identity of the input's type and a Cast say the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx


def without_typed_eyes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model, or a copy in which a Cast stands for `dtype`."""
    if not any(_type_of(node) for nodes in _node_lists(proto) for node in nodes):
        return proto
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    for nodes in list(_node_lists(made)):
        for place, node in reversed(list(enumerate(nodes))):
            kind = _type_of(node)
            if kind:
                _split(nodes, place, kind)
    return made


def _split(nodes: Any, place: int, kind: int) -> None:
    node = nodes[place]
    wanted, plain = node.output[0], f"{node.output[0]}/eye"
    kept = [attribute for attribute in node.attribute if attribute.name != "dtype"]
    del node.attribute[:]
    node.attribute.extend(kept)
    node.output[0] = plain
    cast = onnx.NodeProto(op_type="Cast", input=[plain], output=[wanted], name=f"{wanted}/cast")
    cast.attribute.add(name="to", i=kind, type=onnx.AttributeProto.INT)
    nodes.insert(place + 1, cast)


def _type_of(node: onnx.NodeProto) -> int:
    """Of an EyeLike that has one; 0 for any other node."""
    if node.op_type != "EyeLike" or node.domain not in ("", "ai.onnx") or not node.output:
        return 0
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == "dtype"), 0)


def _node_lists(proto: onnx.ModelProto) -> Iterator[Any]:
    """Of the graph, its functions and all subgraphs."""
    pending: list[Any] = [proto.graph, *proto.functions]
    while pending:
        nodes = pending.pop().node
        yield nodes
        for node in nodes:
            for attribute in node.attribute:
                pending += [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]
