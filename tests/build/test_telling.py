"""Outputs that tell nothing, since the model makes NaN or always the same of what is drawn, are said."""

from __future__ import annotations

import onnx
import pytest

import ridgeline

NAN = """<ir_version: 10, opset_import: ["": 20]>
g (float[1,64] x) => ({outputs}) {{
  r = Sqrt(x) y = ReduceSum<keepdims = 0>(r) z = Relu(x) d = Sub(x, x) n = Div(d, d)
}}"""


@pytest.mark.parametrize("outputs", ["float y", "float y, float[1,64] z"])
def test_nan_of_the_models_own_is_a_warning_and_other_values_are_drawn(outputs: str) -> None:
    engine = ridgeline.build(onnx.parser.parse_model(NAN.format(outputs=outputs)), level=0)
    assert any("'y' of the original model is NaN" in warning for warning in engine.report.warnings)
    assert "planned shapes, positive values" in {check.name for check in engine.report.checks}
    assert engine.report.verified


def test_an_output_that_is_always_nan_is_said_and_the_others_verified() -> None:
    model = onnx.parser.parse_model(NAN.format(outputs="float[1,64] n, float[1,64] z"))
    engine = ridgeline.build(model, level=0)
    assert any("'n' of the original model is NaN throughout" in line for line in engine.report.warnings)
    assert engine.report.verified


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("z = Abs(x) p = Add(z, one) y = Div(p, zero)", "infinite or NaN throughout"),
        ("z = Abs(x) y = Mul(z, zero)", "0.0 throughout"),
        ("z = Abs(x) p = Add(z, one) y = Greater(p, zero)", "True throughout"),
        ("i = Shape(x) y = Expand(w, i)", "the same"),
        ("z = Less(x, x) p = NonZero(z) y = Cast<to = 1>(p)", "empty"),
    ],
)
def test_an_output_that_is_always_the_same_is_said_to_compare_little(body: str, why: str) -> None:
    kind = "bool[8,4]" if "Greater" in body else "float[A,B]"
    text = f"""<ir_version: 9, opset_import: ["": 20]> g (float[8,4] x) => (float[8,4] r, {kind} y)
    <float one = {{1}}, float zero = {{0}}, float[4] w = {{1, 2, 3, 4}}> {{ r = Relu(x) {body} }}"""
    engine = ridgeline.build(onnx.parser.parse_model(text), level=0)
    untold = [line for line in engine.report.warnings if "compares little" in line]
    assert len(untold) == 1
    assert f"'y' of the original model is {why} for every input" in untold[0]
    assert engine.report.verified
