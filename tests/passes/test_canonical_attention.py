"""The attention rules: the forms exporters write, the refusals, the meaning of masks."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from text_graphs import assert_same, count, ops, parse, random_feeds, rewritten, run

from ridgeline.passes.canonical_attention import RULES
from ridgeline.passes.pipeline import canonicalise
from ridgeline.passes.rule import apply_rules

SIZES = {"B": 2, "S": 5, "T": 7}
CONSTS = """<float root = {2.0}, float scale = {0.5}, float part = {0.70710677}, float zero = {0.0},
    float low = {-3.4e38}>"""
INPUTS = "float[B,3,S,4] q, float[B,3,T,4] k, float[B,3,T,4] v"
KT = "kt = Transpose<perm = [0, 1, 3, 2]>(k)\n"
OUT = "y = MatMul(p, v)"


def graph(lines: str, extra: str = "", inputs: str = INPUTS) -> str:
    return f"g ({inputs}{extra}) => (float[B,3,S,4] y) {CONSTS} {{\n{lines}\n}}"


EAGER = KT + "s = MatMul(q, kt)\n d = Div(s, root)\n p = Softmax(d)\n" + OUT
MASKED = EAGER.replace("p = Softmax(d)", "a = Add(d, m)\n p = Softmax(a)")


@pytest.mark.parametrize("lines", [
    EAGER,
    EAGER.replace("Div(s, root)", "Mul(scale, s)"),
    KT + "a = Mul(q, part)\n b = Mul(kt, part)\n s = MatMul(a, b)\n p = Softmax(s)\n" + OUT,
    KT + "a = Mul(q, scale)\n s = MatMul(a, kt)\n p = Softmax<axis = 3>(s)\n" + OUT,
    KT + "s = MatMul(q, kt)\n p = Softmax(s)\n" + OUT,
])  # fmt: skip
def test_scale_spellings(lines: str) -> None:
    model, refusals = rewritten(graph(lines), RULES, SIZES)
    assert ops(model) == ["Attention"]
    assert refusals == []


def test_keys_transposed_straight_from_the_projection() -> None:
    inputs = INPUTS.replace("float[B,3,T,4] k", "float[B,T,3,4] k")
    lines = EAGER.replace("[0, 1, 3, 2]", "[0, 2, 3, 1]")
    assert ops(rewritten(graph(lines, inputs=inputs), RULES, SIZES)[0]) == ["Transpose", "Attention"]


@pytest.mark.parametrize("shape", ["B,1,S,T", "B,3,S,T", "S,T", "1,1,S,T"])
def test_additive_mask(shape: str) -> None:
    lines = EAGER.replace("p = Softmax(d)", "a = Add(d, mask)\n p = Softmax(a)")
    model = rewritten(graph(lines, f", float[{shape}] mask"), RULES, SIZES)[0]
    assert ops(model) == ["Attention"]


def test_mask_that_broadcasts_over_the_queries() -> None:
    # onnxruntime 1.31 refuses this legal mask, so the ONNX reference is the judge
    lines = EAGER.replace("p = Softmax(d)", "a = Add(d, mask)\n p = Softmax(a)")
    model = parse(graph(lines, ", float[B,1,1,T] mask"))
    feeds = random_feeds(model, SIZES)
    before = run(model, feeds)
    apply_rules(model, RULES)
    assert count(model, "Attention") == 1
    assert_same(before, ReferenceEvaluator(ir.to_proto(model)).run(None, feeds))


@pytest.mark.parametrize("where", ["Where(ok, d, off)", "Where(bad, off, d)"])
def test_boolean_mask(where: str) -> None:
    body = graph(
        EAGER.replace(
            "p = Softmax(d)", f"off = Constant<value_float = -1e30>()\n a = {where}\n p = Softmax(a)"
        )
    )
    body = body.replace(INPUTS, INPUTS + ", bool[B,1,S,T] " + ("ok" if "ok" in where else "bad"))
    model = parse(body)
    off = next(node for node in model.graph if node.op_type == "Constant")
    (refusal,) = apply_rules(model, RULES)
    assert "want -inf" in refusal.reason
    off.attributes["value_float"] = ir.AttrFloat32("value_float", -np.inf)
    feeds = random_feeds(model, SIZES)
    name = model.graph.inputs[3].name
    feeds[name] = np.tile(np.arange(7) % 2 == (0 if name == "ok" else 1), (2, 1, 5, 1))
    before = run(model, feeds)
    apply_rules(model, RULES)
    assert count(model, "Attention") == 1
    assert_same(before, run(model, feeds))


GUARD = EAGER.replace(
    "p = Softmax(d)",
    """m = Where(ok, zero, low)
    a = Add(d, m)
    w = Softmax(a)
    nan = IsNaN(w)
    p = Where(nan, zero, w)""",
)


def test_guard_is_redundant_beside_a_finite_mask() -> None:
    model, refusals = rewritten(graph(GUARD, ", bool[B,1,S,T] ok"), RULES, SIZES)
    assert ops(model) == ["Where", "Attention"]
    assert refusals == []


def test_guard_stays_for_rows_masked_with_infinity() -> None:
    body = graph("low = Div(minus, zero)\n" + GUARD, ", bool[B,1,S,T] ok").replace(
        "low = {-3.4e38}", "minus = {-1.0}"
    )
    model = parse(body)
    feeds = random_feeds(model, SIZES)
    feeds["ok"][0, 0, 2] = False
    feeds["ok"][:, :, 3] = True
    before = run(model, feeds)
    assert not np.any(before[0][0, :, 2])
    canonicalise(model)
    assert count(model, "Attention") == 1
    assert_same(before, run(model, feeds))


def test_guard_beside_an_unknown_mask_is_refused() -> None:
    body = graph(GUARD.replace("m = Where(ok, zero, low)", "m = Identity(mask)"), ", float[B,1,S,T] mask")
    model, refusals = rewritten(body, RULES, SIZES)
    assert count(model, "Attention") == 0
    assert [refusal.reason for refusal in refusals] == [
        "rows masked everywhere give 0 here, NaN in Attention"
    ]


@pytest.mark.parametrize(("body", "reason"), [
    (graph(EAGER.replace("Softmax(d)", "Softmax<axis = 2>(d)")), "softmax is not over the keys"),
    (graph(EAGER, inputs=INPUTS.replace("B,3,T,4] k", "B,1,T,4] k")), "want one number"),
    (graph(EAGER, inputs=INPUTS.replace("B,3,T,4] k", "1,3,T,4] k")), "batch sizes are not known to agree"),
    (graph(EAGER.replace("(s, root)", "(s, r)"), ", float r"), "s_div is not a constant"),
    (graph(MASKED, ", float[B,1,S,1] m"),
     "mask broadcasts over the keys"),
    (graph(MASKED, ", float[T] m"),
     "has no axis of queries"),
])  # fmt: skip
def test_refusals(body: str, reason: str) -> None:
    model, refusals = rewritten(body, RULES, SIZES)
    assert count(model, "Attention") == 0
    assert any(reason in refusal.reason for refusal in refusals)


def test_weights_that_escape_are_refused() -> None:
    model, (refusal,) = rewritten(graph(EAGER).replace("] y)", "] y, float[B,3,S,T] p)"), RULES, SIZES)
    assert count(model, "Attention") == 0
    assert (refusal.reason, refusal.at) == ("Softmax result is used outside the pattern", "p")


HEADS = """g (float[B,S,12] q3, float[B,T,12] k3, float[B,T,12] v3) => (float[B,S,12] y)
    <int64[4] split = {0, 0, 3, 4}, int64[3] join = {0, 0, 12}, float root = {2.0}> {
    q4 = Reshape(q3, split)
    q = Transpose<perm = [0, 2, 1, 3]>(q4)
    k4 = Reshape(k3, split)
    k = Transpose<perm = [0, 2, 1, 3]>(k4)
    v4 = Reshape(v3, split)
    v = Transpose<perm = [0, 2, 1, 3]>(v4)
    o = Attention(q, k, v)
    t = Transpose<perm = [0, 2, 1, 3]>(o)
    y = Reshape(t, join)
}"""


def test_heads_move_into_the_op() -> None:
    model, _ = rewritten(HEADS, RULES, SIZES)
    assert ops(model) == ["Attention"]
    assert model.graph[0].attributes["q_num_heads"].as_int() == 3


def test_a_join_that_is_none_keeps_the_four_axes() -> None:
    body = HEADS.replace("join = {0, 0, 12}", "join = {0, 12, -1}").replace(
        "float[B,S,12] y", "float[B,12,S] y"
    )
    model, refusals = rewritten(body, RULES, SIZES)
    assert count(model, "Transpose") == 4
    assert refusals[0].reason == "does not join the heads again"


@pytest.mark.parametrize("pick", ["gather", "slice"])
def test_packed_projection_as_svtr_and_vit_write_it(pick: str) -> None:
    part = {
        "gather": "{n} = Gather<axis = 0>(packed, i{i})\n",
        "slice": "{n}s = Slice(packed, s{i}, s{j}, s0, s1)\n {n} = Squeeze({n}s, s0)\n",
    }[pick]
    parts = "".join(part.format(n=n, i=i, j=i + 1) for i, n in enumerate("qkv"))
    body = f"""g (float[B,S,36] x) => (float[B,S,12] y)
        <int64[5] split = {{0, -1, 3, 3, 4}}, int64[3] join = {{0, -1, 12}}, float scale = {{0.5}},
         int64 i0 = {{0}},         int64 i1 = {{1}}, int64 i2 = {{2}},
         int64[1] s0 = {{0}}, int64[1] s1 = {{1}}, int64[1] s2 = {{2}},
         int64[1] s3 = {{3}}> {{
        five = Reshape(x, split)
        packed = Transpose<perm = [2, 0, 3, 1, 4]>(five)
        {parts}
        a = Mul(q, scale)
        kt = Transpose<perm = [0, 1, 3, 2]>(k)
        s = MatMul(a, kt)
        p = Softmax(s)
        o = MatMul(p, v)
        t = Transpose<perm = [0, 2, 1, 3]>(o)
        y = Reshape(t, join)
    }}"""
    model = parse(body)
    feeds = random_feeds(model, SIZES)
    before = run(model, feeds)
    assert canonicalise(model) == []
    assert ops(model) == ["Slice", "Slice", "Slice", "Attention"]
    assert_same(before, run(model, feeds))
