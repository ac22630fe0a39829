"""Repeated keys and values of grouped-query attention are read once, in the order that ONNX counts heads."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from text_graphs import assert_same, ops, parse, random_feeds, run

from ridgeline.base.choices import Refusal
from ridgeline.passes.canonical_groups import group_heads
from ridgeline.passes.clean import remove_unused
from ridgeline.passes.shapes import infer_shapes

# four query heads over two heads of keys and values
REPEAT = """
    axis = Constant<value = int64[1] {2}>()
    times = Constant<value = int64[5] {1, 1, 2, 1, 1}>()
    split = Constant<value = int64[4] {0, 4, 5, 8}>()
    {0}u = Unsqueeze({0}, axis)
    {0}e = Expand({0}u, times)
    {0}r = Reshape({0}e, split)
"""
BOTH = REPEAT.replace("{0}", "k") + "".join(
    line + "\n" for line in REPEAT.replace("{0}", "v").splitlines() if "Constant" not in line
)
HEAD = "float[B,4,3,8] q, float[B,2,5,8] k, float[B,2,5,8] v"


def grouped(lines: str, more: str = "", inputs: str = "") -> tuple[ir.Model, list[Refusal]]:
    model = parse(f"g ({HEAD}{inputs}) => (float[B,4,3,8] y{more}) {{ {lines} }}")
    feeds = random_feeds(model, {"B": 2})
    before = run(model, feeds)
    refusals = group_heads(model)
    remove_unused(model)
    infer_shapes(model)
    assert_same(before, run(model, feeds))
    return model, refusals


def test_repeated_keys_and_values_are_read_once() -> None:
    model, refusals = grouped(BOTH + "y = Attention(q, kr, vr)")
    assert ops(model) == ["Attention"]
    assert refusals == []


def test_a_mask_for_each_query_head_stays() -> None:
    model, _ = grouped(BOTH + "y = Attention(q, kr, vr, m)", inputs=", float[B,4,3,5] m")
    assert ops(model) == ["Attention"]
    assert [value.name for value in model.graph[-1].inputs] == ["q", "k", "v", "m"]


def test_a_repetition_that_others_read_stays_for_them() -> None:
    model, _ = grouped(BOTH + "y = Attention(q, kr, vr)\nz = Relu(kr)", ", float[B,4,5,8] z")
    attention = next(node for node in model.graph if node.op_type == "Attention")
    assert [value.name for value in attention.inputs] == ["q", "k", "v"]


@pytest.mark.parametrize(("lines", "reason"), [
    # all heads one after the other, twice: head h reads h % 2
    (BOTH.replace("{2}", "{1}").replace("{1, 1, 2, 1, 1}", "{1, 2, 1, 1, 1}"), "another order"),
    (BOTH.replace("vr = Reshape(ve, split)", "vr = Concat<axis = 1>(v, v)"), "different ways"),
])  # fmt: skip
def test_refusals(lines: str, reason: str) -> None:
    model, (refusal,) = grouped(lines + "y = Attention(q, kr, vr)")
    assert reason in refusal.reason
    assert "Expand" in ops(model)


def test_heads_that_are_not_repeated_are_no_refusal() -> None:
    _, refusals = grouped("y = Attention(q, k, v)")
    assert refusals == []
