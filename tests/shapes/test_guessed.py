"""Shapes that nobody gave: the model's own demands decide."""

from __future__ import annotations

import onnx

import ridgeline


def test_a_larger_guess_is_better_than_an_empty_value() -> None:
    text = """<ir_version: 9, opset_import: ["" : 20]> g (float[1,T] x) => (float[1,A] y)
    <int64[1] b = {100}, int64[1] e = {9999}, int64[1] a = {1}> { p = Slice(x, b, e, a) y = Relu(p) }"""
    engine = ridgeline.build(onnx.parser.parse_model(text), level=0)
    assert engine.plan.planned_shapes["x"].shape[1] > 100
