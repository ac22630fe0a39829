"""Models that round to levels: values are moved by as much as rounding does, just before they are rounded.

A level flips where its value lies within rounding of a tie, and nowhere else. A right engine may differ there
by whole steps. Which values those are depends on the inputs, so they are not listed: the reference runs
twice, with values moved up at random places and down at the others, and the other way round. Each value that
may flip does so in one of the two. Where none lies near a tie, nothing flips and the tolerance stays small.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import numpy_helper

from ridgeline.base.spec import EPSILON
from ridgeline.frontend.functions import all_nodes, copy_of

# ops that round their first input to levels
ROUNDS_INPUT = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})
# ops that round a result to levels, with the place of its scale
ROUNDS_RESULT = {"QLinearConv": 6, "QLinearMatMul": 6}
PREFIX = "ridgeline.moved."
# what is larger has no neighbours that rounding could lead to, and would hide the others in their mean
LARGEST = 1e30


def rounds_to_levels(proto: onnx.ModelProto) -> bool:
    return any(node.op_type in ROUNDS_INPUT or node.op_type in ROUNDS_RESULT for node in all_nodes(proto))


def outputs_of_levels(proto: onnx.ModelProto) -> set[str]:
    """The outputs that are computed from what was rounded to levels."""
    reached: set[str] = set()
    for node in proto.graph.node:
        inside = [node, *(each for a in node.attribute for g in (a.g, *a.graphs) for each in g.node)]
        rounds = any(each.op_type in ROUNDS_INPUT or each.op_type in ROUNDS_RESULT for each in inside)
        if rounds or any(name in reached for each in inside for name in each.input):
            reached.update(node.output)
    return reached & {port.name for port in proto.graph.output}


def with_moved_levels(proto: onnx.ModelProto, steps: float, seed: int) -> onnx.ModelProto:
    """A copy in which every value of the main graph that is rounded to levels is moved first.

    It moves by `steps eps (|x| + mean|x|)`: a sum rounds by as much as its own size and that of its like.
    Even and odd seeds move the same places in opposite directions. A result that an integer op rounds has
    been summed up exactly, so only its factor rounds: its scale is moved.
    """
    made = copy_of(proto)
    nodes = list(made.graph.node)
    del made.graph.node[:]
    mover = _Mover(steps * EPSILON["float32"] * (-1) ** seed, seed // 2)
    made.graph.initializer.extend(mover.constants())
    for i, node in enumerate(nodes):
        place = 0 if node.op_type in ROUNDS_INPUT else ROUNDS_RESULT.get(node.op_type, -1)
        if node.domain in ("", "ai.onnx") and 0 <= place < len(node.input):
            target = f"{PREFIX}{i}"
            move = mover.scaled if place else mover.moved
            made.graph.node.extend(move(node.input[place], target))
            node.input[place] = target
        made.graph.node.append(node)
    return made


class _Mover:
    """The nodes that move a value. Constants are shared."""

    def __init__(self, reach: float, draw: int) -> None:
        # the sign of a fast wave of the value itself: no state, any shape, and equal values move together
        self._values = {
            "zero": 0.0, "largest": LARGEST, "least": 1e-30, "wave": 5e3 * (draw + 1), "reach": reach,
            "factor": 1 + reach,
        }  # fmt: skip

    def constants(self) -> Iterator[onnx.TensorProto]:
        for name, value in self._values.items():
            yield numpy_helper.from_array(np.asarray(value, np.float32), PREFIX + name)

    def scaled(self, source: str, target: str) -> Iterator[onnx.NodeProto]:
        yield onnx.NodeProto(op_type="Mul", input=[source, f"{PREFIX}factor"], output=[target])

    def moved(self, source: str, target: str) -> Iterator[onnx.NodeProto]:
        def node(op: str, *inputs: str, to: str) -> onnx.NodeProto:
            names = [n if n == source or n.startswith(PREFIX) else f"{target}.{n}" for n in inputs]
            return onnx.NodeProto(
                op_type=op, input=names, output=[target if to == target else f"{target}.{to}"]
            )

        constant = {name: PREFIX + name for name in self._values}
        yield node("Abs", source, to="abs")
        yield node("Less", "abs", constant["largest"], to="moves")
        yield node("Where", "moves", "abs", constant["zero"], to="size")
        mean = node("ReduceMean", "size", to="mean")
        mean.attribute.add(name="keepdims", type=onnx.AttributeProto.INT, i=0)
        yield mean
        yield node("Add", "mean", constant["least"], to="unit")
        yield node("Div", source, "unit", to="turns")
        yield node("Mul", "turns", constant["wave"], to="phase")
        yield node("Sin", "phase", to="sine")
        yield node("Sign", "sine", to="sign")
        yield node("Add", "size", "mean", to="room")
        yield node("Mul", "room", "sign", to="way")
        yield node("Mul", "way", constant["reach"], to="step")
        yield node("Where", "moves", "step", constant["zero"], to="finite")
        yield node("Add", source, "finite", to=target)
