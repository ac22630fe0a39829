"""Whether the rows of a model's inputs are samples of their own."""

from __future__ import annotations

import numpy as np
import pytest
from quant_models import proto_of

from ridgeline.frontend.from_onnx import load
from ridgeline.precision.row_joining import has_independent_rows
from ridgeline.verify.reference import Reference

RNG = np.random.default_rng(0)
WEIGHTS = {
    "w": RNG.normal(size=(3, 5)).astype(np.float32),
    "places": RNG.normal(size=(4, 5)).astype(np.float32),
    "zero": np.array(0, np.int64),
    "axes": np.array([0], np.int64),
}


@pytest.mark.parametrize(
    ("tail", "independent"),
    [
        ("y = Relu (h)", True),
        ("y = Softmax (h)", True),
        ("y = Add (h, places)", False),  # where a row stands
        ("y = CumSum (h, zero)", False),  # those before it
        ("y = CumSum <reverse = 1> (h, zero)", False),  # those behind it
        ("m = ReduceMax (h, axes) y = Sub (h, m)", False),  # all of them
        ("y = Transpose (h)", False),
    ],
)
def test_rows_are_independent_if_others_and_their_place_change_nothing(tail: str, independent: bool) -> None:
    used = {name: array for name, array in WEIGHTS.items() if name in f"w {tail}"}
    shape = "5,4" if "Transpose" in tail else "4,5"
    text = f"g (float[4,3] x) => (float[{shape}] y) {{ h = MatMul (x, w) {tail} }}"
    reference = Reference(load(proto_of(text, **used)), threads=1)

    def draw(seed: int) -> dict[str, np.ndarray]:
        return {"x": np.random.default_rng(seed).normal(size=(4, 3)).astype(np.float32)}

    assert has_independent_rows(reference, draw) == independent
