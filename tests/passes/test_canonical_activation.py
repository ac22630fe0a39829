"""Each activation rule: its spellings, its refusals, its meaning."""

from __future__ import annotations

import re

import numpy as np
import pytest
from text_graphs import count, ops, parse, random_feeds, rewritten, run

from ridgeline.passes.canonical_activation import LATE_RULES, RULES
from ridgeline.passes.fold import fold_constants
from ridgeline.passes.rule import apply_rules

CONSTS = """<float half = {0.5}, float one = {1.0}, float two = {2.0}, float three = {3.0},
    float zero = {0.0},
    float six = {6.0}, float sixth = {0.16666667}, float root = {1.4142135}, float inv = {0.70710677},
    float cubic = {0.044715}, float slope = {0.7978846}>"""


def graph(lines: str, shape: str = "B,5", inputs: str = "") -> str:
    return f"g (float[{shape}] x{inputs}) => (float[{shape}] y) {CONSTS} {{\n{lines}\n}}"


ERF = "s = Div(x, root)\n e = Erf(s)\n c = Add(e, one)\n"
CUBE = "p = Pow(x, three)\n q = Mul(cubic, p)\n a = Add(x, q)\n s = Mul(a, slope)\n"
GATE = "a = Add(x, three)\n c = Clip(a, zero, six)\n"


@pytest.mark.parametrize("lines", [
    ERF + "h = Mul(half, c)\n y = Mul(x, h)",
    ERF + "h = Mul(x, half)\n y = Mul(h, c)",
    ERF.replace("Div(x, root)", "Mul(inv, x)").replace("(e, one)", "(one, e)")
    + "h = Mul(x, half)\n y = Mul(c, h)",
])  # fmt: skip
def test_gelu_by_erf(lines: str) -> None:
    model, refusals = rewritten(graph(lines), RULES, {"B": 3})
    assert ops(model) == ["Gelu"]
    assert refusals == []


@pytest.mark.parametrize("lines", [
    CUBE,
    CUBE.replace("p = Pow(x, three)", "r = Mul(x, x)\n p = Mul(r, x)"),
    "r = Mul(x, x)\n t = Mul(cubic, r)\n u = Add(one, t)\n a = Mul(x, u)\n s = Mul(a, slope)\n",
    "r = Mul(x, x)\n t = Mul(cubic, r)\n u = Add(one, t)\n a = Mul(x, slope)\n s = Mul(a, u)\n",
])  # fmt: skip
def test_gelu_by_tanh(lines: str) -> None:
    model, _ = rewritten(
        graph(lines + "t2 = Tanh(s)\n c = Add(t2, one)\n h = Mul(x, half)\n y = Mul(h, c)"), RULES, {"B": 3}
    )
    assert ops(model) == ["Gelu"]
    assert model.graph[0].attributes["approximate"].as_string() == "tanh"


def test_gelu_of_two_values_is_none() -> None:
    model, _ = rewritten(
        graph(ERF + "h = Mul(z, half)\n y = Mul(h, c)", inputs=", float[B,5] z"), RULES, {"B": 3}
    )
    assert count(model, "Gelu") == 0


def test_gelu_whose_erf_escapes_is_refused() -> None:
    body = graph(ERF + "h = Mul(x, half)\n y = Mul(h, c)").replace("] y)", "] y, float[B,5] e)")
    model, (refusal,) = rewritten(body, RULES, {"B": 3})
    assert count(model, "Gelu") == 0
    assert (refusal.rule, refusal.at) == ("GeluErf", "e")


PRODUCT_FIRST = [
    ERF + "h = Mul(x, c)\n y = Mul(h, half)",
    ERF + "h = Mul(c, x)\n y = Div(h, two)",
    CUBE + "t2 = Tanh(s)\n c = Add(t2, one)\n h = Mul(x, c)\n y = Mul(h, half)",
    GATE + "m = Mul(x, c)\n y = Div(m, six)",
    GATE + "m = Mul(c, x)\n y = Mul(m, sixth)",
]


@pytest.mark.parametrize("lines", PRODUCT_FIRST)
def test_a_product_that_is_scaled_down_last_overflows_as_before(lines: str) -> None:
    """It is infinite for x of 3e38, where the activation is not."""
    model = parse(graph(lines))
    feeds = random_feeds(model, {"B": 3})
    feeds["x"][0, :3] = 3e38, np.inf, np.nan
    (before,) = run(model, feeds)
    assert before[0, 0] == np.inf
    assert apply_rules(model, RULES) == []
    assert ops(model) in (["Gelu", "Mul", "Div"], ["HardSwish", "Mul", "Div"])
    np.testing.assert_allclose(run(model, feeds)[0], before, atol=1e-6)


@pytest.mark.parametrize("lines", PRODUCT_FIRST[:3])
def test_half_types_may_avoid_that_overflow(lines: str) -> None:
    names = re.findall(r"float (\w+) =", CONSTS)
    casts = "".join(f"{name} = Cast<to = 10>({name}32)\n" for name in names)
    body = graph(casts + lines).replace("float[", "float16[")
    for name in names:
        body = body.replace(f"float {name} =", f"float {name}32 =")
    model = parse(body)
    fold_constants(model)
    assert apply_rules(model, RULES) == []
    assert ops(model) == ["Gelu"]


@pytest.mark.parametrize("lines", [
    GATE + "d = Div(c, six)\n y = Mul(x, d)",
    "a = Add(x, three)\n b = Relu(a)\n c = Min(b, six)\n d = Mul(c, sixth)\n y = Mul(d, x)",
    "h = HardSigmoid<alpha = 0.1666667, beta = 0.5>(x)\n y = Mul(x, h)",
])  # fmt: skip
def test_hard_swish(lines: str) -> None:
    assert ops(rewritten(graph(lines), RULES, {"B": 3})[0]) == ["HardSwish"]


def test_hard_sigmoid() -> None:
    assert ops(rewritten(graph(GATE + "y = Div(c, six)"), RULES, {"B": 3})[0]) == ["HardSigmoid"]


def test_hard_sigmoid_of_another_slope_is_no_hard_swish() -> None:
    lines = "h = HardSigmoid<alpha = 0.2, beta = 0.5>(x)\n y = Mul(x, h)"
    assert ops(rewritten(graph(lines), RULES, {"B": 3})[0]) == ["HardSigmoid", "Mul"]


def test_clip_from_min_and_max() -> None:
    assert ops(rewritten(graph("a = Max(x, zero)\n y = Min(a, six)"), RULES, {"B": 3})[0]) == ["Clip"]
    model, (refusal,) = rewritten(graph("a = Max(x, six)\n y = Min(a, zero)"), RULES, {"B": 3})
    assert ops(model) == ["Max", "Min"]
    assert "bounds cross" in refusal.reason


def test_bounds_are_compared_in_their_own_type() -> None:
    body = """g (int64[B] x) => (int64[B] y)
        <int64 lo = {4611686018427387904}, int64 hi = {4611686018427387903}> {
        a = Max(x, lo)
        y = Min(a, hi)
    }"""
    assert ops(rewritten(body, RULES, {"B": 3})[0]) == ["Max", "Min"]


AXES = "ax = Constant<value = int64[1] {-1}>()\n"


SHIFT = "m = ReduceMax(x, ax)\n d = Sub(x, m)\n"
SHARE = "e = Exp(d)\n s = ReduceSum(e, ax)\n y = Div(e, s)"


def test_softmax_from_exp() -> None:
    assert ops(rewritten(graph(AXES + SHIFT + SHARE), RULES, {"B": 3})[0]) == ["Softmax"]


def test_exponentials_that_may_overflow_are_no_softmax() -> None:
    model, refusals = rewritten(graph(AXES + SHARE.replace("Exp(d)", "Exp(x)")), RULES, {"B": 3})
    assert ops(model) == ["Exp", "ReduceSum", "Div"]
    assert refusals == []


@pytest.mark.parametrize("top", ["m = ReduceMax(x, a0)\n", "m = ReduceMax(x)\n"])
def test_softmax_with_a_maximum_over_other_axes_is_refused(top: str) -> None:
    lines = AXES + "a0 = Constant<value = int64[1] {0}>()\n" + top + "d = Sub(x, m)\n" + SHARE
    model, (refusal,) = rewritten(graph(lines), RULES, {"B": 3})
    assert count(model, "Softmax") == 0
    assert refusal.reason in ("maximum and sum run over different axes", "max_axes is not a constant")


def test_softmax_over_two_axes_is_refused() -> None:
    both = "ax = Constant<value = int64[2] {0, 1}>()\n" + SHIFT + SHARE
    _, (refusal,) = rewritten(graph(both), RULES, {"B": 3})
    assert "want one" in refusal.reason


def test_softmax_over_flattened_rows() -> None:
    lines = "sh = Shape(x)\n f = Flatten<axis = 2>(x)\n s = Softmax<axis = -1>(f)\n y = Reshape(s, sh)"
    assert ops(rewritten(graph(lines, "B,4,5"), RULES, {"B": 3})[0]) == ["Softmax"]
    wrong = lines.replace("axis = 2", "axis = 1")
    model, (refusal,) = rewritten(graph(wrong, "B,4,5"), RULES, {"B": 3})
    assert refusal.reason == "rows are not the last axis"
    assert "Flatten" in ops(model)


@pytest.mark.parametrize(("axes", "fires"), [("2, 3", True), ("-1, -2", True), ("1, 2", False)])
def test_global_average(axes: str, fires: bool) -> None:
    body = f"""g (float[B,4,5,6] x) => (float[B,p,q,r] y) {{
        ax = Constant<value = int64[2] {{{axes}}}>()
        y = ReduceMean(x, ax)
    }}"""
    assert ops(rewritten(body, RULES, {"B": 2})[0]) == ["GlobalAveragePool" if fires else "ReduceMean"]


@pytest.mark.parametrize(("by", "op"), [("two", "Mul"), ("three", "Div")])
def test_division_becomes_a_product_only_when_exact(by: str, op: str) -> None:
    assert ops(rewritten(graph(f"y = Div(x, {by})"), LATE_RULES, {"B": 2})[0]) == [op]
