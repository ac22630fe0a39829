"""A region whose operands contradict one another is refused by our own rules, before any kernel is made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper, parser

import ridgeline
from ridgeline.base.spec import Op
from ridgeline.errors import InputError, ModelError
from ridgeline.ir.op_given import Given, MisfitError
from ridgeline.ir.ops import OPS
from ridgeline.kernels.floor import FLOOR
from ridgeline.kernels.scalar.moves import MOVES
from ridgeline.kernels.scalar.ops import POINTWISE
from ridgeline.kernels.scalar.reductions import REDUCTIONS

ANCHORS = ("MatMul", "Gemm", "Conv", "ConvTranspose", "Attention", "LSTM", "GRU", "RNN")
HEAD = '<ir_version: 10, opset_import: ["" : 23]>\n'


def model(text: str, **weights: tuple[int, ...]) -> bytes:
    made = parser.parse_model(HEAD + text)
    for name, shape in weights.items():
        made.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    content: bytes = made.SerializeToString()
    return content


def test_every_op_that_writes_planned_memory_has_a_rule() -> None:
    written = {key for key, entry in FLOOR.items() if entry.out is not None}
    known = {*POINTWISE, *REDUCTIONS, *MOVES, *ANCHORS, *written}
    assert not known - {key for key, row in OPS.items() if row.check is not None}


# what ONNX's own inference lets through
CONTRADICTIONS = {
    "a bias that would make the result larger": (
        "m (float[1, 40] x) => (float[1, 40] y) { y = LayerNormalization <axis = -1> (x, s, b) }",
        {"s": (40,), "b": (7, 40)},
    ),
    "a scale that would make the result larger": (
        "m (float[1, 40] x) => (float[1, 40] y) { y = RMSNormalization <axis = -1> (x, s) }",
        {"s": (7, 40)},
    ),
    "a scale of another number of channels": (
        "m (float[1, 4, 5] x) => (float[1, 4, 5] y) { y = InstanceNormalization (x, s, b) }",
        {"s": (9, 4), "b": (4,)},
    ),
    "a slope of higher rank": ("m (float[4] x) => (float[4] y) { y = PRelu (x, s) }", {"s": (5, 4)}),
    "fewer hidden units than the weights have": (
        "m (float[5, 2, 6] x) => (float[5, 1, 2, 3] y) { y, h, c = LSTM <hidden_size = 3> (x, w, r) }",
        {"w": (1, 32, 6), "r": (1, 32, 8)},
    ),
    "one direction, and weights of two": (
        "m (float[5, 2, 6] x) => (float[5, 1, 2, 8] y) { y, h, c = LSTM <hidden_size = 8> (x, w, r) }",
        {"w": (2, 32, 6), "r": (2, 32, 8)},
    ),
    "a weight of the wrong depth": (
        "m (float[5, 2, 6] x) => (float[5, 1, 2, 8] y) { y, h, c = LSTM <hidden_size = 8> (x, w, r) }",
        {"w": (1, 32, 3), "r": (1, 32, 8)},
    ),
    "swapped weights": (
        "m (float[5, 2, 6] x) => (float[5, 1, 2, 8] y) { y, h, c = LSTM <hidden_size = 8> (x, r, w) }",
        {"w": (1, 32, 6), "r": (1, 32, 8)},
    ),
    "a kernel for fewer channels": (
        "m (float[1, 3, 8, 8] x) => (float[1, 16, 6, 6] y) { y = Conv (x, w) }",
        {"w": (16, 1, 3, 3)},
    ),
    "heads that do not divide": (
        "m (float[1, 3, 5, 8] q, float[1, 2, 5, 8] k) => (float[1, 3, 5, 8] y) { y = Attention (q, k, k) }",
        {},
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_contradiction_is_refused(name: str) -> None:
    text, weights = CONTRADICTIONS[name]
    with pytest.raises((ModelError, InputError)) as caught:
        ridgeline.build(model(text, **weights), level=0, verify="off", without="ort")
    assert "do not fit" in str(caught.value)


def given(
    op_type: str, *shapes: tuple[int, ...], values: dict[int, tuple[int, ...]] | None = None, **attrs: object
) -> Given:
    op = Op(op_type, tuple(f"x{i}" for i in range(len(shapes))), ("y",), attrs)
    return Given(op, shapes, (None,), values or {})


# by op: inputs, attributes, known values, and what must come out
SHAPES = [
    ("Add", [(3, 1), (4,)], {}, {}, (3, 4)),
    ("Reshape", [(2, 6), (2,)], {}, {1: (5, -1)}, None),
    ("Reshape", [(2, 6), (2,)], {}, {1: (0, -1)}, (2, 6)),
    ("Slice", [(6, 9), (1,), (1,), (1,), (1,)], {}, {1: (5,), 2: (-7,), 3: (0,), 4: (-2,)}, (3, 9)),
    ("Split", [(5, 2)], {"num_outputs": 1}, {}, (5, 2)),
    ("Pad", [(2, 3), (4,)], {}, {1: (0, 1, 0, -1)}, (2, 3)),
    ("Gather", [(5, 7), (2, 2)], {"axis": 1}, {}, (5, 2, 2)),
    ("MatMul", [(4,), (4,)], {}, {}, ()),
    ("MatMul", [(2, 1, 3, 4), (5, 4, 6)], {}, {}, (2, 5, 3, 6)),
    (
        "Conv",
        [(1, 4, 9, 9), (8, 2, 3, 3)],
        {"group": 2, "strides": (2, 2), "dilations": (2, 1)},
        {},
        (1, 8, 3, 4),
    ),
    ("Conv", [(1, 4, 9), (8, 4, 3)], {"auto_pad": "SAME_UPPER", "strides": (2,)}, {}, (1, 8, 5)),
    ("ConvTranspose", [(1, 4, 5), (4, 3, 2)], {"strides": (2,), "output_padding": (1,)}, {}, (1, 3, 11)),
    ("ReduceSum", [(2, 3, 4), (1,)], {"keepdims": 0}, {1: (-1,)}, (2, 3)),
    ("Unsqueeze", [(2, 3), (2,)], {}, {1: (0, -1)}, (1, 2, 3, 1)),
    ("Attention", [(2, 6, 16), (2, 5, 8), (2, 5, 8)], {"q_num_heads": 4, "kv_num_heads": 2}, {}, (2, 6, 16)),
]


@pytest.mark.parametrize(("op_type", "shapes", "attrs", "values", "want"), SHAPES)
def test_rules_say_what_comes_out(
    op_type: str, shapes: list[Any], attrs: dict[str, Any], values: dict[int, Any], want: Any
) -> None:
    check = OPS[op_type].check
    assert check is not None
    if want is None:
        with pytest.raises(MisfitError):
            check(given(op_type, *shapes, values=values, **attrs))
    else:
        assert check(given(op_type, *shapes, values=values, **attrs))[0] == want
