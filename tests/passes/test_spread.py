"""Constants that are only spread over the batch: found behind masks and positions, read as they are."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from text_graphs import assert_same, count, ops, parse, random_feeds, run

from ridgeline.base.choices import Refusal
from ridgeline.base.spec import Target
from ridgeline.passes.broadcast import broadcast_values
from ridgeline.passes.canonical_attention import MASK_RULES
from ridgeline.passes.clean import remove_unused
from ridgeline.passes.fold_broadcast import fold_broadcast
from ridgeline.passes.pipeline import canonicalise
from ridgeline.passes.rule import apply_rules
from ridgeline.passes.shapes import infer_shapes

SIZES = {"B": 2, "S": 4}
# 4 queries and keys; positions are spread over the batch, and every mask is made of them
HEAD = """s = Shape<start = 0, end = 1>(x)
    one = Constant<value_ints = [1]>()
    to = Concat<axis = 0>(s, one)
    places = Constant<value = int64[1,4] {0, 1, 2, 3}>()
    spread = Expand(places, to)
"""
INPUTS = "float[B,4,8] x"
TAIL = "y = Attention<q_num_heads = 2, kv_num_heads = 2>(x, x, x, mask)"
CAUSAL = """a1 = Constant<value_ints = [1, 3]>()
    a2 = Constant<value_ints = [1, 2]>()
    rows = Unsqueeze(spread, a1)
    columns = Unsqueeze(spread, a2)
    mask = LessOrEqual(columns, rows)
"""


def graph(lines: str, extra: str = "") -> str:
    return f"g ({INPUTS}{extra}) => (float[B,4,8] y) {{ {HEAD} {lines} }}"


def folded(lines: str, extra: str = "") -> tuple[ir.Model, list[Refusal]]:
    """After the spread constants and the rules for masks, checked against itself before."""
    model = parse(graph(lines, extra))
    feeds = random_feeds(model, SIZES)
    before = run(model, feeds)
    fold_broadcast(model)
    refusals = apply_rules(model, MASK_RULES)
    remove_unused(model)
    infer_shapes(model)
    assert_same(before, run(model, feeds))
    return model, refusals


def test_a_triangle_of_positions_is_causal() -> None:
    model, _ = folded(CAUSAL + TAIL)
    assert ops(model) == ["Attention"]
    assert model.graph[0].attributes["is_causal"].as_int() == 1
    assert len([v for v in model.graph[0].inputs if v is not None]) == 3


@pytest.mark.parametrize("low", ["-3.4028235e38", "-inf"])
def test_a_triangle_in_floats_is_causal(low: str) -> None:
    number = {"-inf": -np.inf}.get(low, np.finfo(np.float32).min)
    lines = CAUSAL.replace("mask =", "allowed =") + "mask = Where(allowed, zero, low)\n" + TAIL
    model = parse(graph(lines, ", float zero, float low"))
    for value, number_of in ((model.graph.inputs[1], 0.0), (model.graph.inputs[2], number)):
        value.const_value = ir.tensor(np.array(number_of, np.float32), name=value.name)
    for value in list(model.graph.inputs)[1:]:
        model.graph.inputs.remove(value)
        model.graph.register_initializer(value)
    feeds = random_feeds(model, SIZES)
    before = run(model, feeds)
    canonicalise(model, target=Target("cuda"))
    assert ops(model) == ["Attention"]
    assert_same(before, run(model, feeds))


def test_a_window_of_positions_stays_a_mask_but_a_constant_one() -> None:
    lines = CAUSAL.replace("LessOrEqual(columns, rows)", "Equal(columns, rows)") + TAIL
    model, _ = folded(lines)
    assert ops(model) == ["Attention"]
    assert model.graph[0].inputs[3].const_value is not None
    assert "is_causal" not in model.graph[0].attributes


def test_a_mask_that_bars_nothing_is_gone() -> None:
    lines = CAUSAL.replace("LessOrEqual(columns, rows)", "Equal(rows, rows)")
    lines += "full = Expand(mask, square)\n" + TAIL.replace("mask)", "full)")
    model, _ = folded("square = Constant<value_ints = [1, 1, 1, 4]>()\n" + lines)
    assert ops(model) == ["Attention"]
    assert len([v for v in model.graph[0].inputs if v is not None]) == 3
    assert "is_causal" not in model.graph[0].attributes


def test_a_mask_from_the_input_stays() -> None:
    model, _ = folded(TAIL, ", bool[B,1,4,4] mask")
    assert [v.name for v in model.graph[-1].inputs] == ["x", "x", "x", "mask"]


def test_steps_between_positions_are_followed() -> None:
    """As models write them that look for packed sequences: differences, then a running sum."""
    lines = (
        """z = Constant<value_ints = [0]>()
        l = Constant<value_ints = [1]>()
        last = Constant<value_ints = [-1]>()
        far = Constant<value_ints = [9]>()
        axis = Constant<value_int = -1>()
        head = Slice(spread, z, l, last, l)
        before = Sub(head, l)
        all = Concat<axis = -1>(before, spread)
        a = Slice(all, z, last, last, l)
        b = Slice(all, l, far, last, l)
        d = Sub(b, a)
        same = Equal(d, l)
        jump = Not(same)
        n = Cast<to = 7>(jump)
        spread2 = CumSum(n, axis)
    """
        + CAUSAL.replace("spread", "spread2").replace("LessOrEqual", "Equal")
        + TAIL
    )
    model, _ = folded(lines)
    assert len([v for v in model.graph[-1].inputs if v is not None]) == 3


def test_a_table_read_at_known_places_is_added_as_it_is() -> None:
    lines = """table = Constant<value = float[4,8] {{{}}}>()
        row = Gather(table, spread)
        y = Add(x, row)""".format(", ".join(str(i) for i in range(32)))
    model, _ = folded(lines)
    assert ops(model) == ["Add"]
    assert list(model.graph[0].inputs[1].shape) == [1, 4, 8]


def test_elements_gathered_from_constants_are_constant() -> None:
    lines = """table = Constant<value = int64[1,4] {3, 2, 1, 0}>()
        picked = GatherElements<axis = 1>(table, places)
        wide = Cast<to = 1>(picked)
        a = Constant<value_ints = [2]>()
        column = Unsqueeze(wide, a)
        y = Add(x, column)"""
    model, _ = folded(lines)
    assert ops(model) == ["Add"]


def test_a_reader_that_would_shrink_keeps_the_spread_value() -> None:
    body = """g (float[B,1] x) => (float[B,4] y) {
        s = Shape<start = 0, end = 1>(x)
        one = Constant<value_ints = [1]>()
        to = Concat<axis = 0>(s, one)
        places = Constant<value = float[1,4] {0., 1., 2., 3.}>()
        spread = Expand(places, to)
        y = Add(x, spread)
    }"""
    model = parse(body)
    (core,) = [c for v, c in broadcast_values(model.graph).items() if v.name == "spread"]
    assert core.tolist() == [[0.0, 1.0, 2.0, 3.0]]
    fold_broadcast(model)
    assert model.graph[-1].inputs[1].const_value is not None, "x still gives the batch"
    lone = parse(body.replace("Add(x, spread)", "Sub(spread, bias)").replace("x) =>", "x, float[4] bias) =>"))
    fold_broadcast(lone)
    assert lone.graph[-1].inputs[0].name == "spread", "nothing else would give the batch"


SPREAD = """g (float[B,4] x, float[1,4] row, float[B,1] n) => (float[B,4] y) {{
    s = Shape(x)
    e = Expand(n, s)
    y = Div({}, e)
}}"""


def test_what_is_expanded_for_an_op_that_broadcasts_is_read_as_it_was() -> None:
    for other, expected in (("x", ["Div"]), ("row", ["Div"]), ("n", ["Shape", "Expand", "Div"])):
        model = parse(SPREAD.format(other))
        feeds = random_feeds(model, SIZES)
        before = run(model, feeds)
        fold_broadcast(model)
        remove_unused(model)
        assert_same(before, run(model, feeds))
        assert ops(model) == expected


PADDED = "t = Cast<to = 9>(m)\n a = Constant<value_ints = [1, 2]>()\n u = Unsqueeze(t, a)\n"
ONES = "true = Constant<value = bool[1,1,4,1] {1, 1, 1, 1}>()\n"


@pytest.mark.parametrize("spread", [
    ONES + "mask = And(true, u)\n",
    "size = Constant<value_ints = [1, 1, 4, 1]>()\n mask = Expand(u, size)\n",
])  # fmt: skip
def test_padding_is_tested_and_spread_in_one_step(spread: str) -> None:
    model, _ = folded(PADDED + spread + TAIL, ", int64[B,4] m")
    assert [op for op in ops(model) if op != "Unsqueeze"] == ["Equal", "Not", "Attention"]


def test_padding_beside_a_mask_that_bars_is_left() -> None:
    bars = ONES.replace("{1, 1, 1, 1}", "{1, 0, 1, 1}") + "both = And(true, u)\n"
    model = parse(graph(PADDED + bars + "mask = Or(both, true)\n" + TAIL, ", int64[B,4] m"))
    refusals = apply_rules(model, MASK_RULES)
    assert count(model, "And") == 1
    assert any(r.reason == "the other operand bars something" for r in refusals)


def test_a_choice_between_zero_and_minus_infinity_is_boolean() -> None:
    lines = "z = Constant<value_float = 0.0>()\n off = Constant<value_float = -1.0>()\n"
    model = parse(graph(lines + "mask = Where(ok, z, off)\n" + TAIL, ", bool[B,1,4,4] ok"))
    (refusal,) = apply_rules(model, MASK_RULES)
    assert "want -inf" in refusal.reason
    fill = next(node for node in model.graph if node.outputs[0].name == "off")
    fill.attributes["value_float"] = ir.AttrFloat32("value_float", -np.inf)
    feeds = random_feeds(model, SIZES)
    feeds["ok"][..., 0] = True
    before = run(model, feeds)
    apply_rules(model, MASK_RULES)
    assert model.graph[-1].inputs[3].name == "ok"
    assert_same(before, run(model, feeds))
