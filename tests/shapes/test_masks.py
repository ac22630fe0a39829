"""Attention with masks whose open dims are 1 in some calls: right at every call, whoever runs it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from moving_models import close, expected, model_of, own, rand
from onnx.reference import ReferenceEvaluator

SPELLED = """g (float[1,2,S,8] q, float[1,2,8,T] k, float[1,2,T,8] v, float[{dims}] m)
  => (float[1,2,R,8] y) {{ s = MatMul(q, k) a = Add(s, m) p = Softmax<axis = -1>(a) y = MatMul(p, v) }}"""
# inference loses the sizes of a mask that is made so
LOST = """g (float[1,2,S,8] q, float[1,2,8,T] k, float[1,2,T,8] v, float[M,N] m)
  => (float[1,2,R,8] y, float[R,W] z) {{
  size = Shape(m) one = Constant<value_ints = [1, 1]>() most = Max(size, one) mask = Expand(m, most)
  s = MatMul(q, k) a = Add(s, mask) p = Softmax<axis = -1>(a) y = MatMul(p, v)
  rows = Shape<start = 2, end = 3>(y) rest = Constant<value_ints = [-1]>()
  shape = Concat<axis = 0>(rows, rest)
  first = Transpose<perm = [2, 0, 1, 3]>(y) z = Reshape(first, shape) }}"""
OP = """g (float[1,2,S,8] q, float[1,2,T,8] k, float[1,2,T,8] v, float[M,N] m) => (float[1,2,S,8] y) {
  y = Attention(q, k, v, m) }"""


@pytest.mark.parametrize("text", [SPELLED.format(dims="M,N"), SPELLED.format(dims="?,?"), LOST.format()])
@pytest.mark.parametrize("without", [(), ("ort",)], ids=["default", "no ort"])
def test_a_spelled_attention_is_right_at_every_size_of_its_mask(text: str, without: tuple[str, ...]) -> None:
    """One query is also spread over a mask of many rows, as MatMul and Add do."""
    model = model_of(text)
    engine = own(model, without=without, new_shapes="serve")
    assert engine.plan.planned_shapes["q"].shape[2] == engine.plan.planned_shapes["m"].shape[0] > 1
    for queries, keys, mask in ((3, 4, (3, 4)), (3, 4, (1, 4)), (3, 4, (1, 1)), (1, 4, (3, 4))):
        feeds = {
            "q": rand(1, 2, queries, 8), "k": rand(1, 2, 8, keys), "v": rand(1, 2, keys, 8), "m": rand(*mask),
        }  # fmt: skip
        want = expected(model, feeds)
        for _ in range(2):
            close(engine.run(feeds), want)
            engine.wait()


@pytest.mark.parametrize("keys", [4, 1])
def test_a_mask_of_one_row_is_right_after_its_plan(keys: int) -> None:
    """ONNX Runtime, which runs the planned shapes, refuses such a mask."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 23]> {OP}')
    profile = {"S": "1..3..9", "M": "1..3..9", "T": "1..4..9", "N": "1..4..9"}
    engine = own(model, without=(), new_shapes="serve", profiles=profile)
    assert [step.tactic for step in engine.plan.steps] == ["ort"]
    q, k, v, m = rand(1, 2, 3, 8), rand(1, 2, keys, 8), rand(1, 2, keys, 8), rand(1, keys, seed=3)
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(8) + m
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    want = {"y": weights / weights.sum(-1, keepdims=True) @ v}
    for _ in range(2):
        close(engine.run({"q": q, "k": k, "v": v, "m": m}), want)
        engine.wait()


def test_positions_for_one_row_are_right_for_many() -> None:
    """As the rows of a mask: ONNX Runtime refuses positions that are broadcast over the batch."""
    text = """g (float[B,2,S,8] x, int64[P,S] p) => (float[B,2,S,8] y)
      <float[4,4] c = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6}>
      { y = RotaryEmbedding(x, c, c, p) }"""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 23]> {text}')
    profile = {"B": "1..1..4", "S": "1..3..9", "P": "1..1..4"}
    engine = own(model, without=(), new_shapes="serve", profiles=profile)
    x, places = rand(2, 2, 3, 8), np.array([[0, 1, 3]])
    (want,) = ReferenceEvaluator(model).run(None, {"x": x, "p": places})
    for _ in range(2):
        close(engine.run({"x": x, "p": places}), {"y": want})
        engine.wait()
