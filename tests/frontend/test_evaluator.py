"""The onnx evaluator in doubles: as exact as they are, in functions and in folded constants too."""

from __future__ import annotations

import math

import numpy as np
import onnx.parser
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
