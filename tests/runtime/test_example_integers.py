"""Integers that are data are drawn so that the ops that read them can work with them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import ridgeline
from ridgeline.base.spec import TensorSpec
from ridgeline.runtime.examples import OTHER_FLOATS

CONSTANTS = "<int64[1] zeros = {0}, int64[1] ones = {1}, int64 zero = {0}, int64 one = {1}, int64 four = {4}>"
GRAPHS = {
    "scatter elements": ("float[N,6] x, int64[M,6] i, float[M,6] u",
        "a = Relu(x) y = ScatterElements<axis = 0>(a, i, u)"),
    "scatter rows": ("float[N,6] x, int64[K,1] i, float[K,6] u", "a = Relu(x) y = ScatterND(a, i, u)"),
    "scatter points": ("float[N,M] x, int64[K,2] i, float[K] u", "a = Relu(x) y = ScatterND(a, i, u)"),
    "gather of a computed table": ("float[N,6] x, int64[K] i", "a = Relu(x) y = Gather(a, i)"),
    "index moved by a constant": ("float[10,6] x, int64[K] i", "j = Add(i, four) y = Gather(x, j)"),
    "index moved back": ("float[10,6] x, int64[K] i",
        "j = Sub(i, four) k = Unsqueeze(j, zeros) l = Squeeze(k, zeros) a = Relu(x) y = Gather(a, l)"),
    "joined indices": ("float[5,6] x, int64[K] i, int64[J] j",
        "k = Concat<axis = 0>(i, j) y = Gather(x, k)"),
    "length": ("float[B,T] x, int64[B] n",
        "s = Shape<start = 1>(x) t = Squeeze(s) r = Range(zero, t, one) l = Unsqueeze(n, ones) "
        "m = Less(r, l) w = Cast<to = 1>(m) c = ReduceSum(w, ones) v = Mul(x, w) y = Div(v, c)"),
}  # fmt: skip


def model_of(name: str) -> onnx.ModelProto:
    inputs, body = GRAPHS[name]
    return onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 20]> told ({inputs}) => (float[P,Q] y) {CONSTANTS} {{ {body} }}'
    )


@pytest.mark.parametrize("name", GRAPHS)
def test_a_model_that_reads_integers_builds_and_is_verified(name: str) -> None:
    engine = ridgeline.build(model_of(name), level=0)
    assert engine.report.verified
    made = engine.run(engine.example_inputs())
    assert np.isfinite(made["y"]).all()


def test_no_two_indices_write_to_one_place() -> None:
    engine = ridgeline.build(model_of("scatter points"), level=0)
    shapes = {"x": (5, 4), "i": (16, 2), "u": (16,)}
    specs = {n: TensorSpec("int64" if n == "i" else "float32", shape) for n, shape in shapes.items()}
    drawn = engine.example_inputs(1, specs)["i"]
    assert len(np.unique(drawn, axis=0)) == 16
    assert (drawn < (5, 4)).all()


def test_lengths_are_those_of_the_rows() -> None:
    engine = ridgeline.build(model_of("length"), level=0)
    specs = {"x": TensorSpec("float32", (3, 40)), "n": TensorSpec("int64", (3,))}
    drawn = engine.example_inputs(1, specs)["n"]
    assert drawn[0] == 40
    assert all(20 < length <= 40 for length in drawn)


def test_a_length_by_name_is_that_of_its_neighbours() -> None:
    text = """<ir_version: 9, opset_import: ["" : 20]> told (float[B,T,80] x, int64[B] x_lens)
    => (float[B,T,80] y, int64[B] n) { y = Relu(x) n = Neg(x_lens) }"""
    engine = ridgeline.build(onnx.parser.parse_model(text), level=0)
    specs = {"x": TensorSpec("float32", (3, 40, 80)), "x_lens": TensorSpec("int64", (3,))}
    assert engine.example_inputs(1, specs)["x_lens"][0] == 40


@pytest.mark.parametrize("kind", OTHER_FLOATS)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3)])
def test_other_floats_have_every_shape(kind: str, shape: tuple[int, ...]) -> None:
    assert np.shape(OTHER_FLOATS[kind](np.random.default_rng(0), shape)) == shape
