"""Einsum as MatMul: which equations are written so, which are not and why, with the same results."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from text_graphs import assert_same, count, ops, parse, random_feeds, run, why_not, with_weights

from ridgeline.base.choices import Refusal
from ridgeline.passes.canonical_einsum import RULES
from ridgeline.passes.clean import remove_unused
from ridgeline.passes.rule import apply_rules
from ridgeline.passes.shapes import infer_shapes


def graph(equation: str, x: str, w: str, y: str, *, kind: str = "float", more: str = "") -> str:
    outputs = f"{kind}[{y}] y" + (f", {kind}[{y}] z" if more else "")
    product = f'y = Einsum<equation = "{equation}">(x, w)'
    return f"g ({kind}[{x}] x, {kind}[{w}] w) => ({outputs}) {{ {product} {more} }}"


def written(body: str, *weights: str) -> tuple[ir.Model, list[Refusal]]:
    """The model after the rules, with the same results at two batches."""
    model = with_weights(body, *weights)
    feeds = [random_feeds(model, {"B": batch, "S": 3}) for batch in (1, 4)]
    before = [run(model, each) for each in feeds]
    refusals = apply_rules(model, RULES)
    remove_unused(model)
    infer_shapes(model)
    for each, want in zip(feeds, before, strict=True):
        assert_same(want, run(model, each))
    return model, refusals


LINEAR = {
    "a matrix": ("bsd,df->bsf", "B,S,6", "6,5", "B,S,5", ["MatMul"]),
    "a matrix, transposed": ("bsd,fd->bsf", "B,S,6", "5,6", "B,S,5", ["MatMul"]),
    "columns in two axes": ("bsd,dhk->bshk", "B,S,6", "6,2,4", "B,S,2,4", ["MatMul", "Reshape"]),
    "two axes are summed": ("bshk,hkd->bsd", "B,S,2,4", "2,4,6", "B,S,6", ["Reshape", "MatMul"]),
    "the summed axis first": ("dbs,df->bsf", "6,B,S", "6,5", "B,S,5", ["Transpose", "MatMul"]),
    "another order of the result": ("bsd,df->bfs", "B,S,6", "6,5", "B,5,S", ["MatMul", "Transpose"]),
    "spaces in the equation": ("b s d , d f -> b s f", "B,S,6", "6,5", "B,S,5", ["MatMul"]),
}


@pytest.mark.parametrize("name", LINEAR)
def test_weights_become_a_matrix(name: str) -> None:
    equation, x, w, y, wanted = LINEAR[name]
    model, refusals = written(graph(equation, x, w, y), "w")
    assert ops(model) == wanted
    assert refusals == []


PRODUCTS = {
    "scores": ("bhqd,bhkd->bhqk", "B,2,3,4", "B,2,5,4", "B,2,3,5", ["Transpose", "MatMul"]),
    "values": ("bhqk,bhkd->bhqd", "B,2,3,5", "B,2,5,4", "B,2,3,4", ["MatMul"]),
    "heads behind places": (
        "bqhd,bkhd->bhqk", "B,3,2,4", "B,5,2,4", "B,2,3,5", ["Transpose", "Transpose", "MatMul"],
    ),
    "operands in the other order": (
        "bhkd,bhqd->bhqk", "B,2,5,4", "B,2,3,4", "B,2,3,5", ["Transpose", "MatMul"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_two_values(name: str) -> None:
    equation, x, w, y, wanted = PRODUCTS[name]
    model, _ = written(graph(equation, x, w, y))
    assert ops(model) == wanted


def test_a_result_that_others_read_is_still_written_so() -> None:
    """Nothing lies inside the pattern, so nothing can escape it."""
    model, _ = written(graph("bsd,df->bsf", "B,S,6", "6,5", "B,S,5", more="z = Neg(y)"), "w")
    assert ops(model) == ["MatMul", "Neg"]


MISSES = {
    "MatMul takes no": ("ij,jk->ik", "3,4", "4,5", "3,5", "int8"),
    "is no plain product": ("...j,jk->...k", "3,4", "4,5", "3,5", "float"),
    "takes a diagonal": ("ii,ik->ik", "4,4", "4,5", "4,5", "float"),
    "sums one operand": ("ijl,jk->ik", "3,4,2", "4,5", "3,5", "float"),
    "of size one meets a longer one": ("ij,jk->ik", "3,1", "4,5", "3,5", "float"),
    "are not one axis each": ("ij,kl->ijkl", "3,4", "4,5", "3,4,4,5", "float"),
}


@pytest.mark.parametrize("reason", MISSES)
def test_what_is_no_product_stays(reason: str) -> None:
    *shapes, kind = MISSES[reason]
    model = parse(graph(*shapes, kind=kind))
    assert reason in why_not(model, RULES[1])
    apply_rules(model, RULES[1:])
    assert ops(model) == ["Einsum"]


@pytest.mark.parametrize(
    ("reason", "shapes", "weights"),
    [
        ("both operands are constants", ("ij,jk->ik", "3,4", "4,5", "3,5"), ("x", "w")),
        ("weights have a batch", ("bij,bjk->bik", "2,3,4", "2,4,5", "2,3,5"), ("w",)),
        ("no rows, or nothing to sum", ("i,j->ij", "3", "4", "3,4"), ("w",)),
        ("weights hold nothing", ("ij,jk->ik", "3,4", "4,0", "3,0"), ("w",)),
    ],
)
def test_weights_that_make_no_matrix(
    reason: str, shapes: tuple[str, str, str, str], weights: tuple[str, ...]
) -> None:
    assert why_not(with_weights(graph(*shapes), *weights), RULES[0]) == reason


def test_three_operands_are_left() -> None:
    body = """g (float[2,3] a, float[3,4] b, float[4,5] c) => (float[2,5] y) {
        y = Einsum<equation = "ij,jk,kl->il">(a, b, c) }"""
    model = parse(body)
    apply_rules(model, RULES)
    assert count(model, "Einsum") == 1
