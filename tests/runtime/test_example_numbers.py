"""Inputs that ops read as sizes, axes and counts are drawn so that a build can run and verify with them."""

from __future__ import annotations

import onnx
import pytest

import ridgeline
from ridgeline.base.spec import TensorSpec
from ridgeline.errors import LimitError

GRAPHS = {
    "reshape": "(float[4,6] x, int64[3] s) => (float[a,b,c] y) { y = Reshape(x, s) }",
    "expand": "(float[4,6] x, int64[2] s) => (float[a,b] y) { y = Expand(x, s) }",
    "slice": "(float[4,6] x, int64[2] s, int64[2] e, int64[2] a, int64[2] t) => (float[c,d] y) "
    "{ y = Slice(x, s, e, a, t) }",
    "split": "(float[4,7] x, int64[3] s) => (float[4,a] p, float[4,b] q, float[4,c] r) "
    "{ p, q, r = Split<axis = 1>(x, s) }",
    "resize": "(float[1,2,4,6] x, float[4] s) => (float[a,b,c,d] y) { r = Identity(s) y = Resize(x, , r) }",
    "pad": "(float[4,6] x, int64[4] p) => (float[a,b] y) { y = Pad(x, p) }",
    "cumsum": "(float[6] x, int64 a) => (float[6] y) { y = CumSum(x, a) }",
    "reduce": "(float[4,6] x, int64[1] a) => (float[m,n] y) { y = ReduceSum(x, a) }",
    "range": "(int64 a, int64 b, int64 c) => (int64[n] y) { y = Range(a, b, c) }",
    "grid": "(float[2,2,3] t, int64[4] s) => (float[n,h,w,2] y) { y = AffineGrid(t, s) }",
    "squeeze": "(float[1,4,1] x, int64[2] a) => (float[4] y) { y = Squeeze(x, a) }",
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_model_that_is_told_numbers_builds_and_is_verified(name: str) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]> told {GRAPHS[name]}')
    engine = ridgeline.build(model, level=1, verify="full", without=("ort",))
    made = engine.run(engine.example_inputs())
    assert all(array.size for array in made.values())


def test_inputs_beyond_the_limit_are_not_drawn() -> None:
    model = '<ir_version: 9, opset_import: ["": 20]> g (float[N,16] x) => (float[N,16] y) { y = Relu(x) }'
    engine = ridgeline.build(onnx.parser.parse_model(model), verify="off", level=0)
    with pytest.raises(LimitError, match="inputs of x"):
        engine.example_inputs(0, {"x": TensorSpec("float32", (1 << 40, 16))})
