"""EyeLike nodes on which ONNX's own shape inference crashes the process.

It looks up the type of the input, to compare it with `dtype`, also where it knows none: behind a custom op,
or a node that contradicts itself. An identity of the input's type and a Cast say the same.
"""

from __future__ import annotations

import onnx

from ridgeline.frontend.functions import Holder, all_holders, all_nodes, copy_of, plain_domain


def without_typed_eyes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model, or a copy in which a Cast stands for `dtype`."""
    if not any(map(_type_of, all_nodes(proto))):
        return proto
    made = copy_of(proto)
    for holder in list(all_holders([made.graph, *made.functions])):
        for place, node in reversed(list(enumerate(holder.node))):
            kind = _type_of(node)
            if kind:
                _split(holder, place, kind)
    return made


def _split(holder: Holder, place: int, kind: int) -> None:
    node = holder.node[place]
    wanted, plain = node.output[0], f"{node.output[0]}/eye"
    kept = [attribute for attribute in node.attribute if attribute.name != "dtype"]
    del node.attribute[:]
    node.attribute.extend(kept)
    node.output[0] = plain
    cast = onnx.NodeProto(op_type="Cast", input=[plain], output=[wanted], name=f"{wanted}/cast")
    cast.attribute.add(name="to", i=kind, type=onnx.AttributeProto.INT)
    holder.node.insert(place + 1, cast)


def _type_of(node: onnx.NodeProto) -> int:
    """The `dtype` of an EyeLike that has one; 0 for any other node."""
    if node.op_type != "EyeLike" or plain_domain(node.domain) or not node.output:
        return 0
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == "dtype"), 0)
