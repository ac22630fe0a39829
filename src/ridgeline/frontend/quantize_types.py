"""QuantizeLinear as ONNX Runtime takes it: ONNX lets halves have a float32 scale, its kernels do not.

A half is a float32 number too, so reading both as float32 changes nothing.
"""

from __future__ import annotations

from itertools import count

import onnx

from ridgeline.frontend.functions import all_holders, copy_of

# what ONNX Runtime says when it meets one
STOPPED = "running QuantizeLinear node"


def with_float32_quantising(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with Casts to float32 before the numbers and scales of every QuantizeLinear."""
    made, places = copy_of(proto), count()
    for holder in all_holders([made.graph, *made.functions]):
        nodes: list[onnx.NodeProto] = []
        for old in holder.node:
            node = onnx.NodeProto()
            node.CopyFrom(old)
            if node.op_type == "QuantizeLinear" and not node.domain:
                casts = [_cast(name, next(places)) for name in node.input[:2]]
                node.input[:2] = [cast.output[0] for cast in casts]
                nodes += casts
            nodes.append(node)
        del holder.node[:]
        holder.node.extend(nodes)
    return made


def _cast(name: str, place: int) -> onnx.NodeProto:
    to = onnx.AttributeProto(name="to", type=onnx.AttributeProto.INT, i=onnx.TensorProto.FLOAT)
    return onnx.NodeProto(op_type="Cast", input=[name], output=[f"ridgeline.float32.{place}"], attribute=[to])
