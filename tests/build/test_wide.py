"""Half models are verified against the same graph in single precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest

import ridgeline
from ridgeline.frontend.from_onnx import load
from ridgeline.reference import Reference
from ridgeline.wide import Wide, half_type

GRAPH = """
<ir_version: 10, opset_import: ["" : 21]>
half ({kind}[4, 64] x) => ({kind}[4, 64] y)
{{
    a = MatMul(x, w)
    b = Add(a, one)
    c = Cast<to = {number}>(b)
    y = Softmax(c)
}}
"""
NUMBERS = {"float16": 10, "bfloat16": 16}


def half_model(kind: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(GRAPH.format(kind=kind, number=NUMBERS[kind]))
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((64, 64)).astype(getattr(ml_dtypes, kind, np.float16))
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(1, weight.dtype), "one"))
    return model


@pytest.fixture
def feeds() -> dict[str, Any]:
    return {"x": np.random.default_rng(1).standard_normal((4, 64)).astype(np.float16)}


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_the_reference_computes_in_float32(kind: str, feeds: dict[str, Any]) -> None:
    model = half_model(kind)
    dtype = np.dtype(getattr(ml_dtypes, kind, np.float16))
    x = feeds["x"].astype(dtype)
    reference = Reference(load(model), threads=1)
    (got,) = reference.run({"x": x}).values()
    weight = onnx.numpy_helper.to_array(model.graph.initializer[0]).astype(np.float64)
    scores = x.astype(np.float64) @ weight + 1
    want = np.exp(scores - scores.max(-1, keepdims=True))
    want /= want.sum(-1, keepdims=True)
    assert got.dtype == dtype
    # one rounding, that of the output itself
    assert np.abs(got.astype(np.float64) - want).max() <= 2**-8 * want.max()
    limit = reference.tolerance({"x": x}, {"y": got})["y"]
    assert 0 < limit.distance < want.max()


def test_every_half_tensor_is_widened() -> None:
    model = half_model("float16")
    assert half_type(model) == "float16"
    wide = Wide(model, "")
    assert wide.weights["w"].dtype == np.float32
    assert half_type(wide.proto) == ""
    onnx.checker.check_model(half_model("float16"))
    kinds = {a.i for n in wide.proto.graph.node for a in n.attribute if a.name == "to"}
    assert kinds == {onnx.TensorProto.FLOAT}


def test_a_half_model_builds_and_is_verified(tmp_path: Path, feeds: dict[str, Any]) -> None:
    engine = ridgeline.build(half_model("float16"), level=1)
    assert "float32" in engine.report.reference
    assert all(check.passed for check in engine.report.checks)
    assert engine.run(feeds)["y"].dtype == np.float16
