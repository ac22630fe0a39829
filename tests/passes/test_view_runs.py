"""Runs of movement ops as views: which element of the source lies where, at any batch."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import pytest
from text_graphs import parse, run

from ridgeline.passes.view_runs import View, is_movement, views_of_run, whole

CONSTANTS = """
    i0 = Constant<value = int64[1] {0}>() i1 = Constant<value = int64[1] {1}>()
    i2 = Constant<value = int64[1] {2}>() i3 = Constant<value = int64[1] {3}>()
    last = Constant<value = int64[1] {-1}>() two = Constant<value = int64 {2}>()
    back = Constant<value = int64 {-1}>() list = Constant<value = int64[2] {0, 2}>()
    heads = Constant<value = int64[4] {0, 0, 2, 3}>() flat = Constant<value = int64[2] {0, -1}>()
    across = Constant<value = int64[3] {0, 8, 3}>() five = Constant<value = int64[4] {1, 5, 1, 1}>()
    sizes = Constant<value = int64[3] {1, 2, 3}>()
"""
# of x, float[B, 4, 6]
RUNS = {
    "turned": "y = Transpose<perm = [2, 0, 1]>(x)",
    "turned round": "y = Transpose(x)",
    "into heads": "y = Reshape(x, heads)",
    "heads first": "r = Reshape(x, heads) y = Transpose<perm = [0, 2, 1, 3]>(r)",
    "joined": "y = Reshape(x, flat)",
    "joined after a turn": "t = Transpose<perm = [0, 2, 1]>(x) y = Reshape(t, flat)",
    "some columns": "y = Slice(x, i1, i3, i2)",
    "columns counted from the end": "y = Slice(x, i1, last, last)",
    "a head of columns": "r = Reshape(x, heads) y = Slice(r, i1, i2, i2)",
    "one place": "y = Gather<axis = 1>(x, two)",
    "the last place": "y = Gather<axis = 2>(x, back)",
    "a part": "a, y, c = Split<axis = 2>(x, sizes)",
    "axes of one": "u = Unsqueeze(x, i1) t = Transpose<perm = [1, 0, 3, 2]>(u) y = Squeeze(t, i0)",
    "repeated": "u = Unsqueeze(x, i1) y = Expand(u, five)",
    "all of it": """r = Reshape(x, heads) t = Transpose<perm = [2, 0, 1, 3]>(r) g = Gather<axis = 0>(t, back)
        s = Slice(g, i1, i3, i1) y = Reshape(s, flat)""",
}


def value_named(model: ir.Model, name: str) -> ir.Value:
    return next(value for node in model.graph for value in node.outputs if value.name == name)


def graph(lines: str, name: str = "y") -> ir.Model:
    """The run, with its result as the output, whatever shape inference finds."""
    model = parse(f"g (float[B,4,6] x) => (float[B,4,6] out) {{ {CONSTANTS} {lines} out = Identity(x) }}")
    model.graph.outputs[0] = value_named(model, name)
    return model


def elements(view: View, source: np.ndarray) -> np.ndarray:
    """The view as an array: the place of every element along every axis of the source."""
    batch = {"B": source.shape[0]}
    pieces = [piece for axis in view.axes for piece in axis]
    counts = [batch[p.size] if isinstance(p.size, str) else p.size for p in pieces]
    counters = np.indices(counts) if counts else np.zeros((0,), int)
    places = [np.full(counts, start) for start in view.starts]
    for piece, counter in zip(pieces, counters, strict=False):
        if piece.axis is not None:
            places[piece.axis] = places[piece.axis] + piece.step * counter
    shape = [
        math.prod(batch[p.size] if isinstance(p.size, str) else p.size for p in axis) for axis in view.axes
    ]
    return source[tuple(places)].reshape(shape)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("batch", [1, 3])
def test_a_run_is_a_view_of_its_source(name: str, batch: int) -> None:
    model = graph(RUNS[name])
    (view, *nearer) = views_of_run(model.graph.outputs[0])
    assert view.source.name == "x"
    assert [node.op_type for node in view.run] == [
        node.op_type for node in model.graph if node.op_type not in ("Constant", "Identity")
    ][: len(view.run)]
    assert len(nearer) == len(view.run) - 1
    x = np.arange(batch * 24, dtype=np.float32).reshape(batch, 4, 6)
    np.testing.assert_array_equal(elements(view, x), run(model, {"x": x})[0])


BROKEN = {
    "every second column": "y = Slice(x, i0, i3, i2, i2)",
    "bounds that only the run knows": """n = NonZero(x) s = ReduceMax<keepdims = 0>(n, i0)
        y = Slice(x, s, i3, i2)""",
    "two places": "y = Gather<axis = 1>(x, list)",
    "a reshape across axes": "t = Transpose<perm = [0, 2, 1]>(x) y = Reshape(t, across)",
    "columns of several heads": """t = Transpose<perm = [0, 2, 1]>(x) r = Reshape(t, flat)
        y = Slice(r, i1, i3, i1)""",
    "axes that are not known": "y = Squeeze(x)",
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_view_ends_the_run(name: str) -> None:
    views = views_of_run(graph(BROKEN[name]).graph.outputs[0])
    assert all(view.source.name != "x" for view in views)


def test_a_run_goes_on_behind_what_is_no_view() -> None:
    (view,) = views_of_run(
        graph("g = Gather<axis = 1>(x, list) y = Transpose<perm = [2, 1, 0]>(g)").graph.outputs[0]
    )
    assert view.source.name == "g"


def test_other_ops_end_a_run() -> None:
    model = graph("n = Neg(x) y = Transpose(n)")
    (view,) = views_of_run(model.graph.outputs[0])
    assert view.source.name == "n"
    assert not is_movement(next(node for node in model.graph if node.op_type == "Neg"))


def test_inner_values_that_others_read_do_not_matter() -> None:
    """Only the graph is read: whoever rewrites looks at the readers."""
    model = graph("r = Reshape(x, heads) n = Neg(r) y = Transpose<perm = [0, 2, 1, 3]>(r)")
    (view, _) = views_of_run(model.graph.outputs[0])
    assert view.source.name == "x"


def test_a_value_is_a_view_of_itself() -> None:
    x = parse("g (float[B,4,1] x) => (float[B,4,1] y) { y = Neg(x) }").graph.inputs[0]
    view = whole(x)
    assert view.starts == (0, 0, 0)
    assert [len(axis) for axis in view.axes] == [1, 1, 0]
