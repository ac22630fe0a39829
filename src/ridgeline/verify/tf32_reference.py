"""A model with what its products read cut to TF32, to measure how far that may carry its outputs.

Tensor cores take the upper digits of a float32 and drop the rest; libraries that round to nearest first are
nearer to the exact result. So dropping is the measure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, numpy_helper

from ridgeline.base.spec import EPSILON, TF32_EPSILON
from ridgeline.frontend.functions import copy_of, names_read_by
from ridgeline.ir.provenance import KEEP
from ridgeline.verify.float32_reference import value_types
from ridgeline.verify.rounding import Probe, jitter_feeds

Run: TypeAlias = Callable[[Any], dict[str, np.ndarray]]
Open: TypeAlias = Callable[[onnx.ModelProto], Run]

DIGITS = 11  # of a TF32 number, the leading one among them
FLOAT_DIGITS = 24
# operands by op; those of Attention are queries, keys and values
OPERANDS = {"MatMul": 2, "Gemm": 2, "Conv": 2, "ConvTranspose": 2, "Attention": 3}
VALUES = 2
# beyond it, products with the constants below would overflow; masks hold such numbers
LARGE = 1e30
PREFIX = "ridgeline.tf32"


class RoundingProducts:
    """The products of a model that may round: what they reach, and the model in which they do."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        kinds = value_types(model)
        self._found = [
            node
            for node in model.graph.node
            if _is_free(node) and all(kinds.get(name) == TensorProto.FLOAT for name in node.input[:2])
        ]
        known = {name for node in self._found for name in node.output}
        for node in model.graph.node:
            if not known.isdisjoint(names_read_by(node)):
                known.update(node.output)
        self.outputs = frozenset(port.name for port in model.graph.output if port.name in known)

    def probe(self, session: Open, evaluator: Open, *, first: int) -> Probe:
        """Runs the model with its products rounded.

        After the first draw the inputs move by as much, or all draws would be alike.
        """
        proto = self.model()
        try:
            run = session(proto)
        except Exception:  # ONNX Runtime lacks an op, as in the model itself
            run = evaluator(proto)
        steps = TF32_EPSILON / EPSILON["float32"]
        return lambda feeds, seed: run(feeds if seed == first else jitter_feeds(feeds, steps, seed))

    def model(self) -> onnx.ModelProto:
        """The model with the operands of these products cut."""
        proto = copy_of(self._model)
        free = {node.output[0] for node in self._found}
        nodes = list(proto.graph.node)
        del proto.graph.node[:]
        made: dict[tuple[str, int], str] = {}
        for node in nodes:
            for place in range(OPERANDS.get(node.op_type, 0)) if node.output[0] in free else ():
                is_values = node.op_type == "Attention" and place == VALUES
                # the weights of the values are rounded inside the op, which is as if these were once more
                digits, name = DIGITS - is_values, node.input[place]
                if (name, digits) not in made:
                    made[name, digits] = f"{PREFIX}/{name}/{digits}"
                    proto.graph.node.extend(_cut(name, made[name, digits], digits))
                node.input[place] = made[name, digits]
            proto.graph.node.append(node)
        for digits in {digits for _, digits in made}:
            proto.graph.initializer.extend(_constants(digits))
        return proto


def _is_free(node: NodeProto) -> bool:
    """A product that was not asked to keep its type; attention over a cache is computed exactly."""
    is_kept = any(prop.key == KEEP for prop in node.metadata_props)
    has_past = node.op_type == "Attention" and any(node.input[4:])
    return node.op_type in OPERANDS and not node.domain and not is_kept and not has_past


def _constants(digits: int) -> Iterator[TensorProto]:
    values = {"split": 2.0 ** (FLOAT_DIGITS - digits) + 1, "below": 1 - 2.0**-digits, "large": LARGE}
    for name, value in values.items():
        yield numpy_helper.from_array(np.array(value, np.float32), f"{PREFIX}/{name}/{digits}")


def _cut(x: str, y: str, digits: int) -> Iterator[NodeProto]:
    """y = x without its last digits, by operations that every runtime has.

    t = x · (2^s + 1); t - (t - x) is x rounded to nearest (Veltkamp). Where that is further from zero than x,
    the next number towards zero is wanted. What is large, infinite or NaN stays.
    """

    def name(step: str) -> str:
        return f"{y}/{step}"

    def constant(which: str) -> str:
        return f"{PREFIX}/{which}/{digits}"

    def node(op: str, inputs: list[str], output: str) -> NodeProto:
        return NodeProto(op_type=op, input=inputs, output=[output])

    def nearest(given: str, made: str) -> Iterator[NodeProto]:
        yield node("Mul", [given, constant("split")], f"{made}/t")
        yield node("Sub", [f"{made}/t", given], f"{made}/low")
        yield node("Sub", [f"{made}/t", f"{made}/low"], made)

    yield from nearest(x, name("near"))
    yield node("Mul", [name("near"), constant("below")], name("less"))
    yield from nearest(name("less"), name("next"))
    yield node("Abs", [x], name("size"))
    yield node("Abs", [name("near")], name("near_size"))
    yield node("Greater", [name("near_size"), name("size")], name("is_above"))
    yield node("Where", [name("is_above"), name("next"), name("near")], name("cut"))
    yield node("Less", [name("size"), constant("large")], name("is_plain"))
    yield node("Where", [name("is_plain"), name("cut"), x], y)
