"""Codes that make up for one another's rounding: nearer products, the same scales, the same codes."""

from __future__ import annotations

import numpy as np
import pytest
from quant_models import proto_of

from ridgeline.base.scales import Encoded
from ridgeline.options import DEFAULT_LIMITS
from ridgeline.precision.compensate import compensated
from ridgeline.precision.emulate import Emulator
from ridgeline.precision.place import place
from ridgeline.precision.quantize import prepared, samples_of, stored_weights
from ridgeline.precision.schemes import scheme_named

K, N = 64, 40
Rows = list[dict[str, np.ndarray]]


def rows(count: int, seed: int, *, share: float) -> Rows:
    """Channels that go together but for a share of each."""
    rng = np.random.default_rng(seed)
    mixed = np.random.default_rng(1).standard_normal((6, K))
    made = [
        rng.standard_normal((1, 24, 6)) @ mixed + share * rng.standard_normal((1, 24, K))
        for _ in range(count)
    ]
    return [{"x": x.astype(np.float32)} for x in made]


def stored_and_made(fmt: str, data: Rows, weight: np.ndarray) -> tuple[Encoded, Encoded]:
    graph = f"m (float[1, 24, {K}] x) => (float[1, 24, {N}] y) {{ y = MatMul(x, w) }}"
    model, _ = prepared(proto_of(graph, w=weight), DEFAULT_LIMITS)
    placement = place(model, scheme_named(fmt))
    stored = stored_weights(placement, {})
    samples = samples_of(data, model)
    made = compensated(placement, stored, Emulator(model), samples)
    (edge,) = stored
    return stored[edge], made[edge]


def product_error(encoded: Encoded, weight: np.ndarray, data: Rows) -> float:
    x = np.concatenate([row["x"][0] for row in data]).astype(np.float64)
    want = x @ weight
    return float(np.linalg.norm(x @ encoded.decoded() - want) / np.linalg.norm(want))


WEIGHT = np.random.default_rng(2).standard_normal((K, N)).astype(np.float32)


@pytest.mark.parametrize("fmt", ["int8", "uint8", "fp8", "w8", "wfp8", "w4", "nvfp4", "mxfp8"])
def test_products_are_nearer_on_data_that_was_not_seen(fmt: str) -> None:
    seen, held_out = rows(16, 3, share=0.2), rows(8, 4, share=0.2)
    stored, made = stored_and_made(fmt, seen, WEIGHT)
    assert product_error(made, WEIGHT, held_out) < 0.6 * product_error(stored, WEIGHT, held_out)
    np.testing.assert_array_equal(made.scale, stored.scale)
    assert made.codes.dtype == stored.codes.dtype
    assert np.isfinite(made.decoded()).all()


def test_the_order_of_the_data_does_not_matter() -> None:
    data = rows(12, 5, share=0.2)
    first, second = (stored_and_made("w4", each, WEIGHT)[1] for each in (data, data[::-1]))
    np.testing.assert_array_equal(first.codes.astype(np.int8), second.codes.astype(np.int8))


def test_codes_stay_where_nothing_can_be_made_up_for() -> None:
    """A weight that the format holds exactly, and channels that are always zero."""
    exact = np.random.default_rng(6).integers(-7, 8, (K, N)).astype(np.float32)
    exact[0] = 7.0
    stored, made = stored_and_made("w4", rows(4, 7, share=0.2), exact)
    np.testing.assert_array_equal(made.decoded(), stored.decoded())
    nothing = [{"x": np.zeros((1, 24, K), np.float32)}] * 2
    stored, made = stored_and_made("w4", nothing, WEIGHT)
    np.testing.assert_array_equal(made.decoded(), stored.decoded())


def test_channels_that_are_seldom_used_do_no_harm() -> None:
    data = rows(8, 8, share=0.2)
    for row in data:
        row["x"][..., 10:20] = 0.0
    stored, made = stored_and_made("w4", data, WEIGHT)
    assert product_error(made, WEIGHT, data) < product_error(stored, WEIGHT, data)
    np.testing.assert_array_equal(made.decoded()[10:20], stored.decoded()[10:20])
