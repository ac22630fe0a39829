"""Smoothing keeps what the model computes, helps where channels are unequal, and never makes it worse."""

from __future__ import annotations

import numpy as np
import pytest
from quant_models import proto_of

from ridgeline.errors import OptionError
from ridgeline.frontend.ports import ports
from ridgeline.options import DEFAULT_LIMITS
from ridgeline.precision.emulate import Emulator
from ridgeline.precision.place import place
from ridgeline.precision.quantize import prepared, quantize
from ridgeline.precision.samples import Samples
from ridgeline.precision.schemes import scheme_named
from ridgeline.precision.smooth import smooth_channels

RNG = np.random.default_rng(3)
K = 48
OUTLIERS = np.ones(K, np.float32)
OUTLIERS[[3, 17]] = 60


def drawn(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


def model(tail: str = "y = Add(a, b)", gamma: np.ndarray = OUTLIERS):
    """A norm whose gain makes two large channels, read by two products."""
    return proto_of(
        f"""g (float[N,S,{K}] x) => (float[N,S,64] y) {{
            n = LayerNormalization(x, gamma, beta) a = MatMul(n, w1) b = MatMul(n, w2) {tail} }}""",
        gamma=gamma, beta=drawn(K), w1=drawn(K, 64), w2=drawn(K, 64), w3=drawn(K, 64),
    )  # fmt: skip


DATA = [{"x": RNG.standard_normal((2, 5, K)).astype(np.float32)} for _ in range(12)]
SHARED = "f = Relu(n) c = MatMul(f, w3) d = Add(a, b) y = Add(c, d)"


@pytest.mark.parametrize("fmt", ["int8", "uint8", "w4", "fp8"])
@pytest.mark.parametrize("tail", ["y = Add(a, b)", SHARED])
def test_the_float_model_stays_the_same(fmt: str, tail: str) -> None:
    made, _ = prepared(model(tail), DEFAULT_LIMITS)
    before = Emulator(made)
    samples = Samples.of(DATA, ports(made.graph.inputs, what="inputs"))
    rows = smooth_channels(made, place(made, scheme_named(fmt)), before, samples)
    after = Emulator(made)
    for row in DATA:
        want, got = before.run(row)["y"].numpy(), after.run(row)["y"].numpy()
        np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())
    assert all(row.error_after <= row.error_before for row in rows)
    into = next(row.into for row in rows if row.tensor == "n")
    muls = [node for node in made.graph if node.op_type == "Mul"]
    # the norm takes the division if only these products read it
    assert ("Mul" in into.title() and muls) if tail == SHARED else not muls


@pytest.mark.parametrize("fmt", ["int8", "uint8"])
def test_large_channels_cost_less(fmt: str) -> None:
    plain = quantize(model(), format=fmt, data=DATA, method="max")
    smoothed = quantize(model(), format=fmt, data=DATA, method="max", smooth=True)
    assert smoothed.errors["y"] < plain.errors["y"] / 2
    assert smoothed.smoothed[0].alpha is not None


def test_weights_alone_gain_too() -> None:
    plain = quantize(model(), format="w4", data=DATA)
    scaled = quantize(model(), format="w4", data=DATA, smooth=True)
    assert scaled.errors["y"] < plain.errors["y"]


def test_equal_channels_are_left_alone_or_get_no_worse() -> None:
    made = quantize(model(gamma=np.ones(K, np.float32)), format="int8", data=DATA, method="max", smooth=True)
    assert all(row.error_after <= row.error_before for row in made.smoothed)


def test_channels_that_are_always_zero_are_safe() -> None:
    gamma = OUTLIERS.copy()
    gamma[5] = 0
    text = model(gamma=gamma)
    beta = next(t for t in text.graph.initializer if t.name == "beta")
    beta.raw_data = np.zeros(K, np.float32).tobytes()
    made = quantize(text, format="int8", data=DATA, method="max", smooth=True)
    assert np.isfinite(made.errors["y"])
    assert made.errors["y"] < 0.05


def test_smoothing_needs_data() -> None:
    with pytest.raises(OptionError, match="--smooth searches"):
        quantize(model(), format="w4", smooth=True)
