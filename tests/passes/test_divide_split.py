"""A Split whose parts go to different kernels becomes slices; one that a single kernel takes stays."""

from __future__ import annotations

import pytest
from text_graphs import assert_same, ops, parse, random_feeds, run

from ridgeline.passes.divide_split import divide_splits

PARTS = "parts = Constant<value_ints = [8, 4, 4]>()\nq, k, v = Split<axis = -1>(x, parts)\n"
ATTEND = "y = Attention<q_num_heads = 2, kv_num_heads = 1>({})\n"


def divided(lines: str, out: str = "float[B,3,8] y") -> list[str]:
    model = parse(f"g (float[B,3,16] x) => ({out}) {{ {PARTS} {lines} }}")
    feeds = random_feeds(model, {"B": 2})
    before = run(model, feeds)
    divide_splits(model)
    assert_same(before, run(model, feeds), roundings=0)
    return ops(model)


def test_a_part_that_is_computed_with_goes_its_own_way() -> None:
    found = divided("p = Relu(q)\n" + ATTEND.format("p, k, v"))
    assert found == ["Slice", "Slice", "Slice", "Relu", "Attention"]


def test_parts_of_two_attentions_go_their_own_ways() -> None:
    first = ATTEND.format("q, k, k").replace("y =", "p =")
    found = divided(first + ATTEND.format("p, v, v"))
    assert found == ["Slice", "Slice", "Slice", "Attention", "Attention"]


def test_one_attention_takes_the_split_whole() -> None:
    assert divided(ATTEND.format("q, k, v")) == ["Split", "Attention"]


def test_other_kernels_take_the_split_whole() -> None:
    lines = "a = Sigmoid(k)\nb = Mul(a, v)\nc = Concat<axis = -1>(b, b)\ny = Add(q, c)"
    assert divided(lines)[0] == "Split"


@pytest.mark.parametrize("also", ["z = Neg(v)", "z = Identity(v)"])
def test_a_part_that_two_kernels_read_keeps_the_split(also: str) -> None:
    found = divided("p = Relu(q)\n" + ATTEND.format("p, k, v") + also, "float[B,3,8] y, float[B,3,4] z")
    assert found[0] == "Split"


def test_a_part_that_is_an_output_keeps_the_split() -> None:
    found = divided("p = Relu(q)\n" + ATTEND.format("p, k, v"), "float[B,3,8] y, float[B,3,4] v")
    assert found[0] == "Split"
