"""Matrix products between reshapes."""

from __future__ import annotations

import pytest
from text_graphs import ops, rewritten

from ridgeline.passes.canonical_linear import RULES

GPT2 = """g (float[B,S,2] x) => (float[B,S,3] y)
    <float[2,3] w = {1., 2., 3., 4., 5., 6.}, float[3] b = {1., 2., 3.},
     int64[2] flat = {-1, 2}, int64[1] n = {3}> {
    r = Reshape(x, flat)
    g = Gemm(r, w, b)
    sh = Shape<start = 0, end = 2>(x)
    back = Concat<axis = 0>(sh, n)
    y = Reshape(g, back)
}"""


def test_gemm_between_reshapes() -> None:
    model, _ = rewritten(GPT2, RULES, {"B": 2, "S": 4})
    assert ops(model) == ["MatMul", "Add"]


def test_gemm_with_transposed_weight() -> None:
    body = GPT2.replace("float[2,3] w", "float[3,2] w").replace("Gemm(r", "Gemm<transB = 1>(r")
    assert ops(rewritten(body, RULES, {"B": 2, "S": 4})[0]) == ["MatMul", "Add"]


@pytest.mark.parametrize(("old", "new", "reason"), [
    ("sh = Shape<start = 0, end = 2>(x)",
     "s2 = Shape(x)\n i = Constant<value = int64[2] {1, 0}>()\n sh = Gather(s2, i)",
     "but for the last axis"),
    ("flat = {-1, 2}", "flat = {2, -1}", None),
    ("g = Gemm(r, w, b)", "g = Gemm<alpha = 2.0>(r, w, b)", None),
])  # fmt: skip
def test_misses(old: str, new: str, reason: str | None) -> None:
    body = GPT2.replace(old, new)
    sizes = {"B": 2, "S": 4}
    if "i = " in new:
        body = body.replace("(float[B,S,3] y)", "(float[S,B,3] y)")
    if "{2, -1}" in new:
        sizes = {"B": 2, "S": 2}
        body = body.replace("g = Gemm(r, w, b)", "g = Gemm<transA = 1>(r, w, b)")
    model, refusals = rewritten(body, RULES, sizes)
    assert "Gemm" in ops(model)
    assert reason is None or reason in refusals[0].reason


def test_transpose_of_the_last_axes_through_three_dims() -> None:
    body = """g (float[B,2,S,4] x) => (float[B,2,4,S] y)
        <int64[1] m = {-1}, int64[1] i2 = {2}, int64[1] i3 = {3},
        int64[2] i01 = {0, 1}> {
        sh = Shape(x)
        s2 = Gather(sh, i2)
        s3 = Gather(sh, i3)
        s01 = Gather(sh, i01)
        flat = Concat<axis = 0>(m, s2, s3)
        r = Reshape(x, flat)
        t = Transpose<perm = [0, 2, 1]>(r)
        back = Concat<axis = 0>(s01, s3, s2)
        y = Reshape(t, back)
    }"""
    assert ops(rewritten(body, RULES, {"B": 2, "S": 4})[0]) == ["Transpose"]
    swapped = body.replace("(s01, s3, s2)", "(s01, s2, s3)").replace(
        "(float[B,2,4,S] y)", "(float[B,2,S,4] y)"
    )
    model, (refusal,) = rewritten(swapped, RULES, {"B": 2, "S": 4})
    assert refusal.reason == "does not restore the leading axes"
    assert "Reshape" in ops(model)
