"""Shapes that nobody gave: the model's own demands decide, and what its file declares is not believed."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import ridgeline
from ridgeline.surgery.lint import lint


def test_a_larger_guess_is_better_than_an_empty_value() -> None:
    text = """<ir_version: 9, opset_import: ["" : 20]> g (float[1,T] x) => (float[1,A] y)
    <int64[1] b = {100}, int64[1] e = {9999}, int64[1] a = {1}> { p = Slice(x, b, e, a) y = Relu(p) }"""
    engine = ridgeline.build(onnx.parser.parse_model(text), level=0)
    assert engine.plan.planned_shapes["x"].shape[1] > 100


def test_one_name_for_two_sizes() -> None:
    """Exporters name the axes of all inputs alike: what an axis must be follows from the weights."""
    text = """<ir_version: 9, opset_import: ["" : 20]>
    g (float[batch,height,width] x, int64[batch,height,width] places) => (float[batch,height,8] y) {
      one = Constant<value_int = 1>()
      rows = Gather<axis = 2>(places, one)
      table = Gather(places_table, rows)
      s = Add(x, table)
      y = MatMul(s, w)
    }"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in (("places_table", (20, 48)), ("w", (48, 8))):
        array = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    engine = ridgeline.build(model, level=0)
    assert engine.plan.planned_shapes["x"].shape[2] == 48


@pytest.mark.parametrize(
    ("declared", "body", "dims"),
    [
        ("float[1,N,7]", "a = Relu(x) y = Reshape(a, s)", None),
        ("float[N,5]", "a = Relu(x) y = Reshape(a, s)", ("N", "y.1")),
        ("float[7,4]", "y = Relu(x)", ("y.0", 4)),
        ("int64[1,1,K]", "a = Relu(x) y = NonZero(a)", None),
        ("float[N,4]", "y = Relu(x)", ("N", 4)),
    ],
)
def test_outputs_that_are_declared_wrongly(declared: str, body: str, dims: tuple[str, ...] | None) -> None:
    text = f"""<ir_version: 9, opset_import: ["" : 20]> g (float[N,4] x) => ({declared} y)
    <int64[2] s = {{-1, 2}}> {{ {body} }}"""
    model = onnx.parser.parse_model(text)
    engine = ridgeline.build(model, level=0)
    assert engine.outputs[0].dims == dims
    assert ("declared" in " ".join(engine.report.warnings)) == (declared != "float[N,4]")
    assert not lint(model).errors, "what is built with a warning is no error to lint"


def test_one_name_for_two_sizes_that_are_given() -> None:
    text = """<ir_version: 9, opset_import: ["" : 20]>
    g (float[unk,unk,unk] x, float[unk,unk] w) => (float[a,b,c] y) { y = MatMul(x, w) }"""
    engine = ridgeline.build(onnx.parser.parse_model(text), level=0, profiles={"x": "1x5x8", "w": "8x3"})
    made = engine.run({"x": np.ones((1, 5, 8), np.float32), "w": np.ones((8, 3), np.float32)})
    assert made["y"].shape == (1, 5, 3)
