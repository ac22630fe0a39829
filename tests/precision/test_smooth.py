"""Smoothing keeps what the model computes, helps where channels are unequal, and never makes it worse."""

from __future__ import annotations

import numpy as np
import pytest
from quant_models import proto_of

from ridgeline.errors import OptionError
from ridgeline.options import DEFAULT_LIMITS
from ridgeline.precision.emulate import Emulator
from ridgeline.precision.quantize import prepared, quantize, samples_of
from ridgeline.precision.schemes import scheme_named
from ridgeline.precision.smooth import smoothed_copy

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
    samples = samples_of(DATA, made)
    made, rows = smoothed_copy(before, made, scheme_named(fmt), samples)
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
    source = model()
    plain = quantize(source, format=fmt, data=DATA, method="max")
    smoothed = quantize(source, format=fmt, data=DATA, method="max", smooth=True)
    assert smoothed.errors["y"] < plain.errors["y"] / 2
    assert smoothed.smoothed[0].alpha is not None


def test_convolutions_are_smoothed_by_their_input_channels() -> None:
    """A depthwise one takes any scale, in front of a Mul; through a Relu the convolution before divides."""
    gain = np.exp(RNG.uniform(-3, 3, 32)).astype(np.float32).reshape(32, 1, 1, 1)
    first = drawn(32, 16, 1, 1) * gain
    text = """g (float[N,16,6,6] x) => (float[N,32,6,6] y) {
        a = Conv(x, first, bias) r = %s d = Conv<group = 32, pads = [1, 1, 1, 1]>(r, deep)
        t = Conv<group = 2>(d, pairs) y = ConvTranspose(t, back) }"""
    weights = {
        "first": first, "bias": drawn(32), "deep": drawn(32, 1, 3, 3) / gain, "pairs": drawn(32, 16, 3, 3),
        "back": drawn(32, 32, 3, 3),
    }  # fmt: skip
    data = [{"x": RNG.standard_normal((2, 16, 6, 6)).astype(np.float32)} for _ in range(8)]
    for act, muls in (("Relu(a)", 0), ("HardSwish(a)", 1)):
        source = proto_of(text % act, **weights)
        plain = quantize(source, format="int8", data=data, method="max")
        smoothed = quantize(source, format="int8", data=data, method="max", smooth=True)
        assert smoothed.errors["y"] < plain.errors["y"] / 2
        assert sum(row.into.startswith("r_smooth") for row in smoothed.smoothed) == muls


def test_weights_alone_gain_too() -> None:
    """By the whole error over rows that no search saw."""
    fresh = {"x": np.random.default_rng(8).standard_normal((64, 5, K)).astype(np.float32)}
    source = model()
    want = Emulator(prepared(source, DEFAULT_LIMITS)[0]).run(fresh)["y"]
    made = [quantize(source, format="w4", data=DATA, smooth=smooth) for smooth in (False, True)]
    plain, scaled = (float((Emulator(q.model).run(fresh)["y"] - want).square().sum()) for q in made)
    assert scaled < plain
    assert any(row.alpha is not None for row in made[1].smoothed)


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
    with pytest.raises(OptionError, match="smooth searches"):
        quantize(model(), format="w4", smooth=True)
