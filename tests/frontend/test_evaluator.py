"""The onnx evaluator in doubles: as exact as they are, in functions and in folded constants too."""

from __future__ import annotations

import math

import numpy as np
import onnx.parser
import onnxruntime as ort
import pytest

import ridgeline
from ridgeline.frontend.evaluator import Evaluator

X = np.linspace(-2, 2, 9)
ERF = np.array([math.erf(x) for x in X])
HEAD = '<ir_version: 10, opset_import: ["": 20, "own": 1]> g (double[9] x) => (double[9] y)'
FUNCTION = '<domain: "own", opset_import: ["": 20]> f (p) => (q) { q = Erf (p) }'


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (HEAD + "{ y = Erf (x) }", ERF),
        (HEAD + "{ y = own.f (x) }" + FUNCTION, ERF),
        (HEAD + "{ y = Gelu (x) }", [0.5 * x * (1 + math.erf(x / math.sqrt(2))) for x in X]),
    ],
    ids=["op", "function", "expanded"],
)
def test_doubles_stay_doubles(text: str, want: np.ndarray) -> None:
    (made,) = Evaluator(onnx.parser.parse_model(text)).run(None, {"x": X})
    assert np.abs(made - want).max() < 1e-15


def test_a_gelu_in_doubles_passes_verification() -> None:
    engine = ridgeline.build(onnx.parser.parse_model(HEAD + "{ y = Gelu (x) }"), level=0, threads=1)
    assert engine.report.verified


def test_a_folded_constant_is_as_exact() -> None:
    text = HEAD + "{ c = Constant <value = double[1] {0.3}> () e = Erf (c) y = Mul (x, e) }"
    engine = ridgeline.build(onnx.parser.parse_model(text), level=0, threads=1)
    assert np.abs(engine.run({"x": X})["y"] - X * math.erf(0.3)).max() < 1e-15


@pytest.mark.parametrize(("axis", "size"), [(0, 200), (1, 200), (-1, 3), (0, 1)])
def test_elements_are_gathered_along_axes_of_any_size(axis: int, size: int) -> None:
    """onnx's own takes at most 64 of them; along the other axis the indices may end before the data does."""
    rng = np.random.default_rng(0)
    shape, fewer = [5, 5], [3, 3]
    shape[axis], fewer[axis] = size, 7
    data, indices = rng.standard_normal(shape).astype(np.float32), rng.integers(-size, size, fewer)
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[A,B] x, int64[C,D] i) => (float[C,D] y)
        {{ y = GatherElements<axis = {axis}>(x, i) }}"""
    model = onnx.parser.parse_model(text)
    (got,) = Evaluator(model).run(None, {"x": data, "i": indices})
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(got, session.run(None, {"x": data, "i": indices})[0])
