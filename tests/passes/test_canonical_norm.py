"""The normalisation rules: spellings, refusals, meaning."""

from __future__ import annotations

import pytest
from text_graphs import count, ops, rewritten

from ridgeline.passes.canonical_norm import RULES

HEAD = """ax = Constant<value = int64[1] {-1}>()
    eps = Constant<value = float {1e-5}>()
    two = Constant<value = float {2.0}>()
    one = Constant<value = float {1.0}>()
    nhalf = Constant<value = float {-0.5}>()
"""
MEAN = """mu = ReduceMean(x, ax)
    d = Sub(x, mu)
    sq = Pow(d, two)
    var = ReduceMean(sq, ax)
    g = Add(var, eps)
"""
DIVIDE = "s = Sqrt(g)\n n = Div(d, s)\n"


def graph(lines: str, shape: str = "B,3,8") -> str:
    return f"g (float[{shape}] x, float[8] gamma) => (float[{shape}] y) {{\n{HEAD}{lines}\n}}"


@pytest.mark.parametrize("lines", [
    MEAN + DIVIDE + "m = Mul(n, gamma)\n y = Add(m, gamma)",
    MEAN + "s = Sqrt(g)\n i = Reciprocal(s)\n n = Mul(d, i)\n m = Mul(gamma, n)\n y = Add(gamma, m)",
    MEAN + "i = Pow(g, nhalf)\n n = Mul(d, i)\n m = Mul(gamma, n)\n y = Add(gamma, m)",
    MEAN.replace("Pow(d, two)", "Mul(d, d)") + DIVIDE + "m = Mul(n, gamma)\n y = Add(m, gamma)",
    MEAN + DIVIDE + "y = Mul(n, gamma)",
    MEAN + DIVIDE + "y = Identity(n)",
    MEAN.replace("(x, ax)", "(x, last)").replace("mu =", "last = Constant<value = int64[1] {2}>()\n mu =")
    + DIVIDE + "y = Mul(n, gamma)",
])  # fmt: skip
def test_layer_norm(lines: str) -> None:
    model, refusals = rewritten(graph(lines), RULES, {"B": 2})
    assert [op for op in ops(model) if op != "Identity"] == ["LayerNormalization"]
    assert refusals == []


def test_layer_norm_followed_by_a_residual_keeps_the_sum() -> None:
    model, refusals = rewritten(graph(MEAN + DIVIDE + "m = Mul(n, gamma)\n y = Add(m, x)"), RULES, {"B": 2})
    assert ops(model) == ["LayerNormalization", "Add"]
    assert refusals == []


@pytest.mark.parametrize(("old", "new", "reason"), [
    ("{-1}", "{1}", "not over the last axis only"),
    ("{1e-5}", "{2.5}", "epsilon is 2.5"),
    ("eps = Constant<value = float {1e-5}>", "eps = Constant<value = float[1,1,1,1] {1e-5}>", "the rank"),
])  # fmt: skip
def test_layer_norm_refusals(old: str, new: str, reason: str) -> None:
    body = graph(MEAN + DIVIDE + "y = Mul(n, gamma)").replace(old, new)
    body = body.replace("float[B,3,8] y", "float[1,B,3,8] y") if "rank" in reason else body
    model, refusals = rewritten(body, RULES, {"B": 2})
    assert count(model, "LayerNormalization") == 0
    assert any(reason in refusal.reason for refusal in refusals)


def test_layer_norm_needs_the_width() -> None:
    body = graph(MEAN + DIVIDE + "y = Identity(n)", "B,3,W")
    _, refusals = rewritten(body.replace("float[8] gamma", "float[8] unused"), RULES, {"B": 2, "W": 8})
    assert {refusal.reason for refusal in refusals} == {"size of the normalised axis is unknown"}


def test_layer_norm_whose_deviation_escapes_is_refused() -> None:
    body = graph(MEAN + DIVIDE + "y = Mul(n, gamma)").replace("] y)", "] y, float[B,3,1] s)")
    model, refusals = rewritten(body, RULES, {"B": 2})
    assert count(model, "LayerNormalization") == 0
    assert {refusal.reason for refusal in refusals} == {"Sqrt result is used outside the pattern"}


RMS = "sq = Mul(x, x)\n v = ReduceMean(sq, ax)\n g = Add(v, eps)\n s = Sqrt(g)\n"


@pytest.mark.parametrize("lines", [
    RMS + "n = Div(x, s)\n y = Mul(n, gamma)",
    RMS + "i = Reciprocal(s)\n n = Mul(x, i)\n y = Mul(gamma, n)",
    RMS + "i = Div(one, s)\n n = Mul(x, i)\n y = Mul(gamma, n)",
    RMS + "y = Div(x, s)",
])  # fmt: skip
def test_rms_norm(lines: str) -> None:
    model, refusals = rewritten(graph(lines), RULES, {"B": 2})
    assert ops(model) == ["RMSNormalization"]
    assert refusals == []


def test_rms_norm_of_half_precision_widened_for_the_mean() -> None:
    body = f"""g (float16[B,8] h, float16[8] gamma) => (float16[B,8] y) {{
        {HEAD} x = Cast<to = 1>(h)
        {RMS} i = Reciprocal(s)
        n = Mul(x, i)
        c = Cast<to = 10>(n)
        y = Mul(gamma, c)
    }}"""
    assert ops(rewritten(body, RULES, {"B": 2})[0]) == ["RMSNormalization"]


def test_rms_norm_that_stays_wide_keeps_its_cast() -> None:
    body = f"""g (float16[B,8] h, float[8] gamma) => (float[B,8] y) {{
        {HEAD} x = Cast<to = 1>(h)
        {RMS} n = Div(x, s)
        y = Mul(gamma, n)
    }}"""
    assert ops(rewritten(body, RULES, {"B": 2})[0]) == ["Cast", "RMSNormalization"]


GROUP = """g (float[B,8,3,3] x) => (float[B,8,3,3] y) {
    sh = Constant<value = int64[3] {0, 4, -1}>()
    ones = Constant<value = float[4] {1., 1., 1., 1.}>()
    zeros = Constant<value = float[4] {0., 0., 0., 0.}>()
    w = Constant<value = float[8,1,1] {1., 2., 3., 4., 5., 6., 7., 8.}>()
    r = Reshape(x, sh)
    n = InstanceNormalization<epsilon = 1e-5>(r, ones, zeros)
    back = Shape(x)
    u = Reshape(n, back)
    m = Mul(u, w)
    y = Add(m, w)
}"""


def test_group_norm() -> None:
    model, _ = rewritten(GROUP, RULES, {"B": 2})
    assert ops(model) == ["GroupNormalization"]


@pytest.mark.parametrize("last", ["y = Mul(u, w)", "y = Add(u, w)", "y = Identity(u)"])
def test_group_norm_whose_ones_or_zeros_are_folded(last: str) -> None:
    body = GROUP.replace("m = Mul(u, w)", last).replace("y = Add(m, w)", "")
    model, _ = rewritten(body, RULES, {"B": 2})
    assert [op for op in ops(model) if op != "Identity"] == ["GroupNormalization"]


def test_group_norm_leaves_a_scale_that_is_not_per_channel() -> None:
    body = GROUP.replace("float[8,1,1] {1., 2., 3., 4., 5., 6., 7., 8.}", "float[1,1,1] {3.}")
    model, _ = rewritten(body, RULES, {"B": 2})
    assert ops(model) == ["GroupNormalization", "Mul", "Add"]


@pytest.mark.parametrize(("old", "new", "reason"), [
    ("{1., 1., 1., 1.}", "{1., 2., 1., 1.}", "groups are scaled"),
    ("{0., 0., 0., 0.}", "{0., 0., 1., 0.}", "groups are shifted"),
    ("8,3,3", "6,2,2", "not groups of channels"),
    ("back = Shape(x)", "back = Constant<value = int64[4] {-1, 8, 9, 1}>()", "return to the shape before"),
])  # fmt: skip
def test_group_norm_refusals(old: str, new: str, reason: str) -> None:
    body = GROUP.replace(old, new)
    body = body.replace("float[B,8,3,3] y", "float[B,8,9,1] y") if "9, 1" in new else body
    body = body.replace("[8,1,1]", "[6,1,1]").replace(", 7., 8.}", "}") if "6," in new else body
    model, refusals = rewritten(body, RULES, {"B": 2})
    assert reason in refusals[0].reason
    assert count(model, "GroupNormalization") == 0


@pytest.mark.parametrize("lines", [
    MEAN + DIVIDE + "y = Mul(n, gamma)",
    RMS + "n = Div(x, s)\n y = Mul(n, gamma)",
])  # fmt: skip
def test_double_keeps_its_own_state(lines: str) -> None:
    """The ops compute in float32 and hold epsilon as one: in double that is another model."""
    body = graph(lines).replace("float", "double")
    model, refusals = rewritten(body, RULES, {"B": 2})
    assert not [op for op in ops(model) if op.endswith("Normalization")]
    assert {refusal.reason for refusal in refusals} == {"input is DOUBLE, want float32 or a half type"}


def test_a_norm_between_casts_from_and_to_integers_is_one_of_floats() -> None:
    lines = "x = Cast<to = 1>(n)\n" + RMS + "r = Div(x, s)\n y = Cast<to = 7>(r)"
    body = f"g (int64[B,8] n) => (int64[B,8] y) {{\n{HEAD}{lines}\n}}"
    assert ops(rewritten(body, RULES, {"B": 2})[0]) == ["Cast", "RMSNormalization", "Cast"]
