"""Merged products: what is merged, what is not and why, and the same meaning before and after."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from text_graphs import assert_same, count, ops, random_feeds, run, with_weights

from ridgeline.base.choices import Refusal
from ridgeline.ir.provenance import RULE, SOURCES
from ridgeline.passes.merge_linear import merge_linear
from ridgeline.passes.shapes import infer_shapes

WEIGHTS = ("wq", "wk", "wv", "bq", "bk", "bv", "deep")
INPUTS = """float[B,S,8] x, float[8,8] wq, float[8,4] wk, float[8,4] wv, float[8] bq, float[4] bk,
    float[1,1,4] bv"""
QKV = """
    q0 = MatMul(x, wq)
    q = Add(q0, bq)
    k0 = MatMul(x, wk)
    k = Add(bk, k0)
    v0 = MatMul(x, wv)
    v = Add(v0, bv)
"""
MEET = "y = Attention<q_num_heads = 2, kv_num_heads = 1>(q, k, v)"


def merged(lines: str, extra: str = "", outputs: str = "float[B,S,8] y") -> tuple[ir.Model, list[Refusal]]:
    """The graph after the merge, checked against itself before."""
    model = with_weights(f"g ({INPUTS}{extra}) => ({outputs}) {{ {lines} }}", *WEIGHTS)
    feeds = random_feeds(model, {"B": 2, "S": 3})
    before = run(model, feeds)
    refusals = merge_linear(model)
    infer_shapes(model)
    assert_same(before, run(model, feeds))
    return model, refusals


def test_projections_that_meet_in_an_attention_become_one() -> None:
    model, refusals = merged(QKV + MEET)
    assert ops(model) == ["MatMul", "Add", "Split", "Attention"]
    assert refusals == []
    product = model.graph[0]
    assert list(product.inputs[1].shape) == [8, 16]
    assert product.metadata_props[RULE] == "MergeLinear"
    assert set(product.metadata_props[SOURCES].split(";")) == {"q0", "q", "k0", "k", "v0", "v"}
    assert product.name == "q0/MergeLinear/MatMul"


def test_parts_keep_their_names() -> None:
    model, _ = merged(QKV + MEET)
    split = next(node for node in model.graph if node.op_type == "Split")
    assert [out.name for out in split.outputs] == ["q", "k", "v"]


def test_a_product_without_bias_gets_zeros() -> None:
    model, _ = merged(QKV.replace("k = Add(bk, k0)", "k = Identity(k0)") + MEET)
    assert ops(model) == ["MatMul", "Add", "Split", "Identity", "Attention"]


def test_gate_and_up_meet_in_the_next_product() -> None:
    lines = "g = MatMul(x, wk)\n u = MatMul(x, wv)\n s = Sigmoid(g)\n t = Mul(g, s)\n h = Mul(t, u)\n"
    model, _ = merged(lines + "y = MatMul(h, wo)", ", float[4,8] wo")
    assert ops(model) == ["MatMul", "Split", "Sigmoid", "Mul", "Mul", "MatMul"]


def test_gemms_are_brought_to_one_order() -> None:
    body = """g (float[M,8] x, float[6,8] wq, float[8,4] wk, float[6] bq, float[6,4] wo) => (float[M,4] y) {
        a = Gemm<transB = 1>(x, wq, bq)
        b = MatMul(x, wk)
        m = MatMul(a, wo)
        n = Add(m, b)
        y = MatMul(n, e)
    }""".replace("float[6,4] wo", "float[6,4] wo, float[4,4] e")
    model = with_weights(body, "wq", "wk", "bq", "wo", "e")
    feeds = random_feeds(model, {"M": 3})
    before = run(model, feeds)
    assert merge_linear(model) == []
    # a meets the product with wo, b the one after it: nothing to merge
    assert count(model, "Split") == 0
    assert_same(before, run(model, feeds))


def test_two_gemms_meet() -> None:
    body = """g (float[M,8] x, float[4,8] wq, float[8,4] wk, float[4] bq, float[4,4] e) => (float[M,4] y) {
        a = Gemm<transB = 1>(x, wq, bq)
        b = Gemm(x, wk)
        n = Add(a, b)
        y = MatMul(n, e)
    }"""
    model = with_weights(body, "wq", "wk", "bq", "e")
    feeds = random_feeds(model, {"M": 3})
    before = run(model, feeds)
    assert merge_linear(model) == []
    assert ops(model) == ["MatMul", "Add", "Split", "Add", "MatMul"]
    assert_same(before, run(model, feeds))


def test_layers_that_read_one_input_stay_apart() -> None:
    layer = """k{0} = MatMul(x, wk)
        v{0} = MatMul(x, wv)
        a{0} = Attention<q_num_heads = 2, kv_num_heads = 1>({1}, k{0}, v{0})
    """
    lines = layer.format(1, "x") + layer.format(2, "a1") + "y = Identity(a2)"
    model, _ = merged(lines)
    assert count(model, "Split") == 2


def test_queries_here_and_keys_over_there_become_one() -> None:
    side = """q{0} = MatMul({0}, wq)
        k{0} = MatMul({0}, wk)
        v{0} = MatMul({0}, wv)
    """
    attend = "a{0} = Attention<q_num_heads = 2, kv_num_heads = 1>(q{0}, k{1}, v{1})\n"
    lines = side.format("x") + side.format("o") + attend.format("x", "o") + attend.format("o", "x")
    model, refusals = merged(lines + "y = Add(ax, ao)", ", float[B,S,8] o")
    assert ops(model) == ["MatMul", "Split", "MatMul", "Split", "Attention", "Attention", "Add"]
    assert refusals == []


@pytest.mark.parametrize(("old", "new", "reason"), [
    ("MatMul(x, wk)", "MatMul(x, dynamic)", "weight 'dynamic' is not a constant"),
    ("MatMul(x, wk)", "MatMul(x, deep)", "weight 'deep' has 3 axes, want two"),
])  # fmt: skip
def test_misses(old: str, new: str, reason: str) -> None:
    extra = ", float[8,4] dynamic, float[1,8,4] deep"
    model, refusals = merged(QKV.replace(old, new) + MEET, extra)
    assert [r.reason for r in refusals] == [reason]
    assert count(model, "MatMul") == 2, "the other two are merged all the same"


@pytest.mark.parametrize(("attribute", "reason"), [
    ("transA = 1", "Gemm transposes its input: its K is another axis"),
    ("alpha = 0.5", "Gemm scales by 0.5 and 1.0, want 1"),
])  # fmt: skip
def test_a_gemm_that_does_more_is_left(attribute: str, reason: str) -> None:
    body = f"""g (float[8,8] x, float[8,4] wq, float[8,4] wk) => (float[8,8] y) {{
        a = Gemm<{attribute}>(x, wq)
        b = MatMul(x, wk)
        y = Gemm<transB = 1>(a, b)
    }}"""
    model = with_weights(body, "wq", "wk")
    assert [(r.reason, r.at) for r in merge_linear(model)] == [(reason, "a")]
    assert count(model, "Split") == 0


def test_an_output_of_the_model_is_left() -> None:
    model, refusals = merged(QKV + MEET, outputs="float[B,S,8] y, float[B,S,4] k")
    assert [r.reason for r in refusals] == ["'k' is an output of the model"]
    assert count(model, "MatMul") == 2


def test_a_value_that_others_read_is_left() -> None:
    model, refusals = merged(QKV + MEET + "\n z = Relu(v)", outputs="float[B,S,8] y, float[B,S,4] z")
    assert [(r.at, r.reason) for r in refusals] == [("v0", "'v' is read by z too")]
    assert count(model, "MatMul") == 2


def test_a_product_read_before_its_bias_keeps_the_add() -> None:
    model, _ = merged(QKV + MEET + "\n z = Relu(q0)", outputs="float[B,S,8] y, float[B,S,8] z")
    assert ops(model) == ["MatMul", "Add", "Split", "Add", "Attention", "Relu"]
