"""No-ops, pairs that cancel, duplicates: what goes, and what only looks as if it could."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from text_graphs import assert_same, ops, parse, random_feeds, run

from ridgeline.passes.clean import remove_duplicates, remove_noops, remove_unused

CONSTS = """<float zero = {0.0}, float one = {1.0}, float[1,1,1] ones = {1.0}, int64[1] a1 = {1},
    int64[1] s0 = {0}, int64[1] big = {9223372036854775807}, int64[1] m1 = {-1}, int64[4] pads = {0, 0, 0, 0},
    int64[2] e = {1, 4}, int64[2] ab = {2, -1}, int64[2] same = {0, 4}, int64[1] flat = {-1}>"""


def cleaned(lines: str, out: str = "B,4", inputs: str = "") -> ir.Model:
    model = parse(f"g (float[B,4] x{inputs}) => (float[{out}] y) {CONSTS} {{\n{lines}\n}}")
    feeds = random_feeds(model, {"B": 6})
    before = run(model, feeds)
    remove_noops(model)
    remove_unused(model)
    remove_duplicates(model)
    remove_unused(model)
    assert [value.name for value in model.graph.outputs] == ["y"]
    assert_same(before, run(model, feeds), roundings=0.0)
    return model


@pytest.mark.parametrize("line", [
    "b = Identity(a)",
    "b = Dropout(a)",
    "b = Cast<to = 1>(a)",
    "b = Add(a, zero)", "b = Add(zero, a)", "b = Sub(a, zero)", "b = Mul(one, a)",
    "b = Div(a, one)", "b = Pow(a, one)",
    "b = Reshape(a, same)",
    "b = Transpose<perm = [0, 1]>(a)",
    "b = Slice(a, s0, big, a1)",
    "b = Pad(a, pads)",
    "b = Expand(a, e)",
    "b = Concat<axis = 0>(a)",
    "b = Max(a)",
    "t = Transpose<perm = [1, 0]>(a)\n b = Transpose<perm = [1, 0]>(t)",
    "u = Unsqueeze(a, a1)\n b = Squeeze(u, a1)",
    "u = Cast<to = 11>(a)\n b = Cast<to = 1>(u)",
    "sh = Shape(x)\n b = Reshape(a, sh)",
    "sh = Shape(x)\n b = Expand(a, sh)",
])  # fmt: skip
def test_goes(line: str) -> None:
    assert ops(cleaned(f"a = Relu(x)\n {line}\n y = Neg(b)")) == ["Relu", "Neg"]


@pytest.mark.parametrize("line", [
    "b = Transpose<perm = [1, 0]>(a)",
    "b = Slice(a, s0, m1, a1)",
    "b = Slice(a, a1, big, a1)",
    "u = Cast<to = 10>(a)\n b = Cast<to = 1>(u)",
    "b = Mul(a, ones)",
    "b = Sub(zero, a)",
    "c = Exp(a)\n b = Div(one, c)",
])  # fmt: skip
def test_stays(line: str) -> None:
    model = cleaned(f"a = Relu(x)\n {line}\n y = Neg(b)", "P,Q,R" if "ones" in line else "P,Q")
    assert len(ops(model)) >= 3


def test_a_slice_along_an_axis_given_at_run_time_stays() -> None:
    model = cleaned("y = Slice(x, s0, big, axis)", inputs=", int64[1] axis")
    assert ops(model) == ["Slice"]


def test_an_output_takes_the_place_of_its_copy() -> None:
    assert ops(cleaned("a = Relu(x)\n y = Identity(a)")) == ["Relu"]
    assert ops(cleaned("y = Identity(x)")) == ["Identity"]


def test_reshapes_merge() -> None:
    model = cleaned("a = Relu(x)\n b = Reshape(a, flat)\n y = Reshape(b, ab)", "P,Q")
    assert ops(model) == ["Relu", "Reshape"]


def test_transposes_merge() -> None:
    model = parse("""g (float[2,3,4] x) => (float[4,2,3] y) {
        a = Transpose<perm = [1, 2, 0]>(x)
        y = Transpose<perm = [1, 2, 0]>(a)
    }""")
    feeds = random_feeds(model)
    before = run(model, feeds)
    remove_noops(model)
    remove_unused(model)
    assert ops(model) == ["Transpose"]
    assert_same(before, run(model, feeds), roundings=0.0)
    assert model.graph[0].metadata_props["ridgeline.sources"] == "a;y"


def test_duplicates_merge() -> None:
    model = cleaned("a = Exp(x)\n b = Exp(x)\n y = Add(a, b)")
    assert ops(model) == ["Exp", "Add"]


def test_equal_weights_are_kept_once() -> None:
    model = parse("""g (float[2] x) => (float[2] y)
        <float[2] u = {1., 2.}, float[2] v = {1., 2.}, float[2] w = {2., 1.}> {
        a = Mul(x, u)
        b = Sub(a, v)
        y = Add(b, w)
    }""")
    remove_duplicates(model)
    remove_unused(model)
    assert set(model.graph.initializers) == {"u", "w"}


def test_dead_nodes_and_weights_go() -> None:
    model = parse("g (float[2] x) => (float[2] y) <float[2] u = {1., 2.}> { d = Mul(x, u) y = Neg(x) }")
    remove_unused(model)
    assert ops(model) == ["Neg"]
    assert not model.graph.initializers
