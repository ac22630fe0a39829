"""Runs of movement ops in their shortest form: what is written, what stays, at any batch."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from text_graphs import assert_same, ops, parse, random_feeds, run

from ridgeline.passes.clean import remove_unused
from ridgeline.passes.shapes import infer_shapes
from ridgeline.passes.simplify_views import simplify_views

# S sequence, B batch: x is [S, B, 3·H·D] with H = 2, D = 4
SELECT = """
    s4 = Constant<value = int64[4] {5, -1, 3, 8}>()
    zero = Constant<value = int64[1] {0}>()
    gone = Constant<value = int64[1] {-2}>()
    one = Constant<value = int64 {1}>()
    r = Reshape(x, s4)
    u = Unsqueeze(r, zero)
    t = Transpose<perm = [3, 1, 2, 0, 4]>(u)
    packed = Squeeze(t, gone)
    k = Gather<axis = 0>(packed, one)
"""
HEADS = """
    joined = Constant<value = int64[3] {5, -1, 4}>()
    split = Constant<value = int64[4] {-1, 2, 5, 4}>()
    flat = Reshape(k, joined)
    turned = Transpose<perm = [1, 0, 2]>(flat)
    h = Reshape(turned, split)
    y = Relu(h)
"""


def simplified(body: str, batch: int = 3) -> ir.Model:
    """The model after the pass, with the same results and legality."""
    model = parse(body)
    feeds = random_feeds(model, {"B": batch})
    names = [value.name for value in model.graph.outputs]
    before = run(model, feeds)
    simplify_views(model)
    remove_unused(model)
    infer_shapes(model)
    assert [value.name for value in model.graph.outputs] == names
    assert_same(before, run(model, feeds), roundings=0)
    return model


@pytest.mark.parametrize("size", ["B", "3", "1"])
def test_a_selected_part_split_into_heads_is_slice_reshape_transpose(size: str) -> None:
    body = f"g (float[5,{size},24] x) => (float[{size},2,5,4] y) {{ {SELECT} {HEADS} }}"
    model = simplified(body)
    assert ops(model) == ["Slice", "Reshape", "Transpose", "Relu"]


def test_parts_of_one_run_are_cut_from_the_source() -> None:
    body = f"""g (float[5,B,24] x) => (float[5,B,8] y, float[5,B,8] z) {{ {SELECT}
        two = Constant<value = int64 {{-1}}>()
        v = Gather<axis = 0>(packed, two)
        y = Relu(k)
        z = Neg(v)
    }}"""
    assert ops(simplified(body)) == ["Slice", "Slice", "Relu", "Neg"]


def test_parts_that_lie_interleaved_stay() -> None:
    """[S, B, H, 3, D]: the columns of one part do not lie side by side."""
    body = """g (float[5,B,24] x) => (float[5,B,2,4] y) {
        s5 = Constant<value = int64[5] {5, -1, 2, 3, 4}>()
        one = Constant<value = int64 {1}>()
        r = Reshape(x, s5)
        k = Gather<axis = 3>(r, one)
        y = Relu(k)
    }"""
    assert ops(simplified(body)) == ["Reshape", "Gather", "Relu"]


def test_a_value_inside_that_others_read_stays() -> None:
    body = f"""g (float[5,B,24] x) => (float[B,2,5,4] y, float[5,B,8] z) {{
        {SELECT} {HEADS} z = Neg(k) }}"""
    assert sorted(ops(simplified(body))) == sorted(["Slice", "Reshape", "Transpose", "Relu", "Slice", "Neg"])


def test_a_slice_of_joined_rows_that_begins_within_one_stays() -> None:
    body = """g (float[2,3,4] x) => (float[2,4] y) {
        shape = Constant<value = int64[2] {6, 4}>()
        start = Constant<value = int64[1] {2}>()
        end = Constant<value = int64[1] {4}>()
        axis = Constant<value = int64[1] {0}>()
        t = Transpose<perm = [1, 0, 2]>(x)
        back = Transpose<perm = [1, 0, 2]>(t)
        r = Reshape(back, shape)
        s = Slice(r, start, end, axis)
        y = Relu(s)
    }"""
    assert ops(simplified(body)) == ["Transpose", "Transpose", "Reshape", "Slice", "Relu"]


def test_moves_that_cancel_are_gone() -> None:
    body = """g (float[2,3,4] x) => (float[2,3,4] y) {
        flat = Constant<value = int64[3] {3, 8, 1}>()
        shape = Constant<value = int64[3] {3, 2, 4}>()
        t = Transpose<perm = [1, 0, 2]>(x)
        r = Reshape(t, flat)
        u = Reshape(r, shape)
        b = Transpose<perm = [1, 0, 2]>(u)
        y = Relu(b)
    }"""
    assert ops(simplified(body)) == ["Relu"]


def test_an_output_keeps_a_node_of_its_own() -> None:
    body = """g (float[2,3] x) => (float[2,3] y) {
        t = Transpose<perm = [1, 0]>(x)
        y = Transpose<perm = [1, 0]>(t)
    }"""
    assert "Transpose" in ops(simplified(body))


def test_an_output_that_another_run_comes_back_to_keeps_its_name() -> None:
    body = """g (float[2,1,6] x) => (float[2,1,1,6] y, float[2,1,1,6] z) {
        a = Relu(x)
        heads = Constant<value_ints = [2, 1, 1, 6]>()
        y = Reshape(a, heads)
        t = Transpose<perm = [0, 2, 1, 3]>(y)
        z = Tanh(t)
    }"""
    assert ops(simplified(body)) == ["Relu", "Reshape", "Tanh"]


def test_a_run_that_ends_in_an_output_is_shortened_too() -> None:
    body = f"g (float[5,B,24] x) => (float[5,B,8] k) {{ {SELECT} }}"
    assert ops(simplified(body)) == ["Slice"]


def test_a_part_of_a_split_is_cut_from_its_source() -> None:
    body = f"""g (float[5,B,24] x) => (float[B,2,5,4] y, float[5,B,16] z) {{
        parts = Constant<value = int64[2] {{8, 16}}>()
        k, rest = Split<axis = 2>(x, parts)
        {HEADS}
        z = Neg(rest)
    }}"""
    assert ops(simplified(body)) == ["Split", "Slice", "Reshape", "Transpose", "Relu", "Neg"]


def test_a_node_that_stays_for_another_output_keeps_names_for_all() -> None:
    """A name was taken from an output whose node is still read: such a model could not be written."""
    body = """g (float[2,3,8] x) => (float[2,3,8] y, float[2,3,0] w) {
        sizes = Constant<value = int64[2] {8, 0}>()
        n = Neg(x)
        a, z = Split<axis = -1>(n, sizes)
        y = Relu(a)
        w = Relu(z)
    }"""
    model = parse(body)
    simplify_views(model)
    assert all(out.name for node in model.graph for out in node.outputs)
    assert len({out.name for node in model.graph for out in node.outputs}) == 6
    ir.to_proto(model)
