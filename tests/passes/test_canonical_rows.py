"""A transpose of rows passes a linear layer where something takes it up, and stays where nothing does."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from text_graphs import assert_same, ops, random_feeds, run, with_weights

from ridgeline.base.choices import Refusal
from ridgeline.passes.canonical_rows import RULES
from ridgeline.passes.clean import remove_unused
from ridgeline.passes.rule import apply_rules
from ridgeline.passes.shapes import infer_shapes

LINEAR = "p = MatMul(t, w)\nl = Add(p, b)\n"
BEFORE = "t = Transpose<perm = [1, 0, 2]>(x)\n"
HEADS = "n = Constant<value = int64[4] {0, 0, 2, 3}>()\nh = Reshape(l, n)\ny = Relu(h)\n"


def moved(lines: str, out: str = "float[3,B,2,3] y", more: str = "") -> tuple[ir.Model, list[Refusal]]:
    body = f"g (float[B,3,4] x, float[4,6] w, float[6] b{more}) => ({out}) {{ {lines} }}"
    model = with_weights(body, "w", "b")
    feeds = random_feeds(model, {"B": 2})
    before = run(model, feeds)
    refusals = apply_rules(model, RULES)
    remove_unused(model)
    infer_shapes(model)
    assert_same(before, run(model, feeds))
    return model, refusals


def test_the_transpose_goes_behind_the_layer_to_other_moves() -> None:
    model, _ = moved(BEFORE + LINEAR + HEADS)
    assert ops(model) == ["MatMul", "Add", "Transpose", "Reshape", "Relu"]


def test_a_layer_without_bias() -> None:
    model, _ = moved(BEFORE + "l = MatMul(t, w)\n" + HEADS)
    assert ops(model) == ["MatMul", "Transpose", "Reshape", "Relu"]


def test_the_transpose_goes_before_the_layer_to_other_moves() -> None:
    lines = "n = Constant<value = int64[3] {0, 3, 4}>()\nt = Reshape(x, n)\n" + LINEAR
    model, _ = moved(lines + "s = Transpose<perm = [1, 0, 2]>(l)\ny = Relu(s)", "float[3,B,6] y")
    assert ops(model) == ["Reshape", "Transpose", "MatMul", "Add", "Relu"]


def test_a_transpose_that_others_read_stays_for_them() -> None:
    model, _ = moved(BEFORE + LINEAR + HEADS + "z = Relu(t)", "float[3,B,2,3] y, float[3,B,4] z")
    assert ops(model).count("Transpose") == 2


@pytest.mark.parametrize(("lines", "out", "reason"), [
    (BEFORE + LINEAR + "y = Relu(l)", "float[3,B,6] y", "nothing behind it"),
    (BEFORE + LINEAR + HEADS + "z = Relu(l)", "float[3,B,2,3] y, float[3,B,6] z", "nothing behind it"),
    (BEFORE + LINEAR.replace("l =", "y ="), "float[3,B,6] y", "nothing behind it"),
    (
        "m = Constant<value = int64[3] {0, 4, 3}>()\nr = Reshape(x, m)\nt = Transpose<perm = [0, 2, 1]>(r)\n"
        + LINEAR + HEADS, "float[B,3,2,3] y", "turns columns",
    ),
    (
        "t = Relu(x)\n" + LINEAR + "s = Transpose<perm = [1, 0, 2]>(l)\ny = Relu(s)", "float[3,B,6] y",
        "nothing before it",
    ),
])  # fmt: skip
def test_refusals(lines: str, out: str, reason: str) -> None:
    model, refusals = moved(lines, out)
    assert any(reason in refusal.reason for refusal in refusals)
    assert ops(model).count("MatMul") == 1


def test_an_inner_product_that_others_read_is_refused() -> None:
    model, refusals = moved(BEFORE + LINEAR + HEADS + "z = Relu(p)", "float[3,B,2,3] y, float[3,B,6] z")
    assert any("used outside" in refusal.reason for refusal in refusals)
    assert ops(model)[0] == "Transpose"


def layer(bias: str) -> str:
    inputs = f"float[B,3,4] x, float[4,6] w, float[{bias}] b"
    return f"g ({inputs}) => (float[3,B,2,3] y) {{ {BEFORE + LINEAR + HEADS} }}"


def test_a_bias_of_several_rows_is_refused() -> None:
    refusals = apply_rules(with_weights(layer("3,1,6"), "w", "b"), RULES)
    assert any("bias is not one row" in refusal.reason for refusal in refusals)


def test_weights_that_are_computed_are_another_structure() -> None:
    model = with_weights(layer("6"), "b")
    assert apply_rules(model, RULES) == []
    assert ops(model)[0] == "Transpose"
