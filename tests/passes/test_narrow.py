"""Rows that nobody reads: how far a selection moves up, where it stops, and the same results."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from text_graphs import assert_same, count, ops, random_feeds, run, with_weights

from ridgeline.base.spec import Body, Op, Site, Target, TensorSpec
from ridgeline.ir.views import views_of
from ridgeline.passes.shapes import infer_shapes
from ridgeline.passes.unread_rows import drop_unread_rows

WEIGHTS = ("w", "b", "n", "p")
INPUTS = "float[B,5,8] x, float[8,8] w, float[8] b, float[8] n, float[1,5,8] p"
HEAD = "i = Constant<value_int = {}>()\n y = Gather<axis = 1>(h, i)"
LAYER = """a = Attention<q_num_heads = 2, kv_num_heads = 2>({q}, x, x)
    o = MatMul(a, w)
    c = Add(o, b)
    r = Add(c, x)
    l = LayerNormalization(r, n)
    u = MatMul(l, w)
    g = Gelu(u)
    h = Add(g, r)
"""


def narrowed(lines: str, outputs: str = "float[B,8] y", extra: str = "") -> ir.Model:
    model = with_weights(f"g ({INPUTS}{extra}) => ({outputs}) {{ {lines} }}", *WEIGHTS)
    feeds = random_feeds(model, {"B": 2})
    names = [value.name for value in model.graph.outputs]
    before = run(model, feeds)
    drop_unread_rows(model)
    infer_shapes(model)
    assert [value.name for value in model.graph.outputs] == names
    assert_same(before, run(model, feeds))
    return model


def rows(model: ir.Model, op_type: str) -> list[int]:
    return [node.outputs[0].shape[1] for node in model.graph if node.op_type == op_type]


@pytest.mark.parametrize("token", [0, 3, -1])
def test_a_layer_read_at_one_token_is_computed_for_it(token: int) -> None:
    model = narrowed(LAYER.format(q="x") + HEAD.format(token))
    assert rows(model, "MatMul") == [1, 1]
    assert rows(model, "Attention") == [1]
    # one for the queries and the residual sum together; keys and values stay whole
    assert count(model, "Slice") == 1
    assert ops(model)[-1] == "Squeeze"


def test_a_slice_of_several_rows_moves_up_too() -> None:
    bounds = "s = Constant<value_ints = [1]>()\n e = Constant<value_ints = [3]>()\n"
    model = narrowed(LAYER.format(q="x") + bounds + "y = Slice(h, s, e, s)", "float[B,2,8] y")
    assert rows(model, "MatMul") == [2, 2]
    assert ops(model)[-1] == "Add"
    assert model.graph.outputs[0].name == "y"


@pytest.mark.parametrize(("reader", "output"), [
    ("y = Relu(t)", "float[B,2,8] y"),
    ("y = ReduceMean<keepdims = 0>(t, s)", "float[B,8] y"),
    ("m = ReduceMean<keepdims = 0>(t, s)\n z = Softmax<axis = -1>(m)\n y = Relu(z)", "float[B,8] y"),
    ("v = MatMul(t, w)\n i = Constant<value_int = 1>()\n y = Gather<axis = 1>(v, i)", "float[B,8] y"),
    ("f = Constant<value_ints = [0]>()\n y = Slice(t, f, s, s)", "float[B,1,8] y"),
])  # fmt: skip
def test_readers_of_a_selection_stay(reader: str, output: str) -> None:
    bounds = "s = Constant<value_ints = [1]>()\n e = Constant<value_ints = [3]>()\n"
    model = narrowed(LAYER.format(q="x") + bounds + "t = Slice(h, s, e, s)\n" + reader, output)
    assert rows(model, "LayerNormalization") == [2]
    for op_type in ("Relu", "ReduceMean", "Softmax"):
        assert count(model, op_type) == reader.count(op_type)


def test_two_outputs_that_select_the_same_rows_keep_their_names() -> None:
    bounds = "s = Constant<value_ints = [1]>()\n e = Constant<value_ints = [2]>()\n"
    both = "y = Slice(h, s, e, s)\n z = Gather<axis = 1>(h, s)"
    model = narrowed(LAYER.format(q="x") + bounds + both, "float[B,1,8] y, float[B,1,8] z")
    assert rows(model, "LayerNormalization") == [1]


def test_constants_lose_the_same_rows() -> None:
    model = narrowed("t = Add(x, p)\n h = MatMul(t, w)\n" + HEAD.format(2))
    assert rows(model, "Add") == [1]
    assert list(next(n for n in model.graph if n.op_type == "Add").inputs[1].shape) == [1, 1, 8]


@pytest.mark.parametrize(("lines", "outputs"), [
    ("h = MatMul(x, w)\n z = Relu(h)\n" + HEAD.format(0), "float[B,8] y, float[B,5,8] z"),
    ("h = MatMul(x, w)\n" + HEAD.format(0), "float[B,8] y, float[B,5,8] h"),
    ("h = MatMul(x, w)\n j = Constant<value_int = 1>()\n z = Gather<axis = 1>(h, j)\n" + HEAD.format(0),
     "float[B,8] y, float[B,8] z"),
    ("h = Softmax<axis = 1>(x)\n" + HEAD.format(0), "float[B,8] y"),
    ("h = CumSum(x, d)\n" + HEAD.format(0), "float[B,8] y"),
])  # fmt: skip
def test_rows_that_others_need_or_that_meet_stay(lines: str, outputs: str) -> None:
    model = narrowed("d = Constant<value_int = 1>()\n" + lines, outputs)
    assert count(model, "Slice") == 0
    assert count(model, "Gather") == outputs.count("[B,8]")


def test_a_causal_attention_is_where_it_stops() -> None:
    lines = LAYER.format(q="x").replace("kv_num_heads = 2>", "kv_num_heads = 2, is_causal = 1>")
    model = narrowed(lines + HEAD.format(1))
    assert rows(model, "Attention") == [5]
    assert rows(model, "MatMul") == [1, 1]


def test_a_selection_of_columns_stays() -> None:
    model = narrowed(
        "h = MatMul(x, w)\n i = Constant<value_int = 0>()\n y = Gather<axis = 2>(h, i)", "float[B,5] y"
    )
    assert ops(model) == ["MatMul", "Gather"]


def test_a_selection_with_nothing_to_gain_stays() -> None:
    model = narrowed("h = Relu(x)\n" + HEAD.format(0))
    assert ops(model) == ["Relu", "Gather"]


def site(batch: int, start: int, dtype: str = "float16", kind: str = "cuda") -> Site:
    op = Op("Slice", ("x", "s", "e", "a"), ("y",))
    specs = {"x": TensorSpec(dtype, (batch, 5, 8)), "y": TensorSpec(dtype, (batch, 1, 8))}
    values = {n: np.array([i]) for n, i in (("s", start), ("e", start + 1 or 9), ("a", 1))}
    return Site(Body(op.inputs, ("y",), (op,)), specs, frozenset(), values, Target(kind))


def test_outermost_rows_are_a_view() -> None:
    assert views_of(site(1, 2)) == (("y", "x", 16),)
    assert views_of(site(1, -1)) == (("y", "x", 32),)
    assert views_of(site(2, 2)) == (), "rows of two batches do not lie side by side"
    assert views_of(site(1, 1, "int8")) == (), "8 bytes in is not aligned"
    assert views_of(site(1, 2, kind="cpu")) == ()
