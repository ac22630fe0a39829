"""Models of integer products as other tools write them: what becomes a float product computes the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from quant_models import proto_of

import ridgeline

RNG = np.random.default_rng(0)
QUICK: dict[str, Any] = {"level": 0, "progress": False}


def scales(*shape: int) -> np.ndarray:
    return RNG.uniform(0.01, 0.05, shape).astype(np.float32)


def dynamic(product: str, x: str, rank: int, **weights: np.ndarray) -> onnx.ModelProto:
    dims = ", ".join("abcdef"[:rank])
    return proto_of(
        f"""g (float[{x}] x) => (float[{dims}] y) {{
            q, s, z = DynamicQuantizeLinear(x) i = {product} c = Cast<to = 1>(i)
            k = Mul(s, ws) y = Mul(c, k) }}""",
        **weights,
    )


# scales, whether integers become a float product
MATMUL_SCALES = [((), True), ((1, 1), True), ((1, 4), True), ((1, 1, 4), False)]
CONV_SCALES = [((1, 1, 1, 1), True), ((4, 1, 1), True), ((1, 1, 1, 1, 1), False)]


@pytest.mark.parametrize(("shape", "rewritten"), MATMUL_SCALES)
def test_scales_of_a_matmul_with_any_number_of_axes(shape: tuple[int, ...], rewritten: bool) -> None:
    """Those that have more axes than the product give them to the result."""
    weight = RNG.integers(-100, 100, (8, 4)).astype(np.int8)
    proto = dynamic("MatMulInteger(q, w, z)", "3, 8", max(2, len(shape)), w=weight, ws=scales(*shape))
    require_same(proto, RNG.standard_normal((3, 8)), "MatMulInteger", rewritten)


@pytest.mark.parametrize(("shape", "rewritten"), CONV_SCALES)
def test_scales_of_a_convolution_with_any_number_of_axes(shape: tuple[int, ...], rewritten: bool) -> None:
    weight, zero = RNG.integers(0, 255, (4, 2, 3, 3)).astype(np.uint8), np.array(120, np.uint8)
    proto = dynamic(
        "ConvInteger(q, w, z, wz)", "1, 2, 5, 5", max(4, len(shape)), w=weight, wz=zero, ws=scales(*shape)
    )
    require_same(proto, RNG.standard_normal((1, 2, 5, 5)), "ConvInteger", rewritten)


def test_a_vector_times_a_matrix_with_a_scale_of_two_axes() -> None:
    weight = RNG.integers(-100, 100, (8, 4)).astype(np.int8)
    proto = dynamic("MatMulInteger(q, w, z)", "8", 2, w=weight, ws=scales(1, 1))
    require_same(proto, RNG.standard_normal(8), "MatMulInteger", rewritten=False)


def require_same(proto: onnx.ModelProto, x: np.ndarray, op: str, rewritten: bool) -> None:
    feeds = {"x": x.astype(np.float32)}
    # ONNX Runtime fuses the products and drops axes of their scales
    engine = ridgeline.build(proto, without=("ort",), verify="off", **QUICK)
    assert all(op not in step.op_types for step in engine.plan.steps) == rewritten
    (want,) = ReferenceEvaluator(proto).run(None, feeds)
    got = engine.run(feeds)["y"]
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("step", [0.0002, 0.05])
def test_levels_are_exact_where_a_bias_cancels_the_sum(step: float) -> None:
    """Sums of 10^7 leave a float32 with no place for single levels."""
    weight = RNG.integers(50, 127, (8, 64, 3, 3)).astype(np.int8)
    x = RNG.integers(100, 255, (1, 64, 3, 3)).astype(np.uint8)
    sums = (weight.astype(np.int64) * x).sum((1, 2, 3))
    left = RNG.integers(-100, 100, 8)
    one = {"xs": 0.02, "ws": 0.01, "ys": step}
    proto = proto_of(
        """g (uint8[1, 64, 3, 3] x) => (uint8[1, 8, 1, 1] y) {
            y = QLinearConv(x, xs, xz, w, ws, wz, ys, yz, b) }""",
        w=weight, b=(left - sums).astype(np.int32), xz=np.zeros((1, 1), np.uint8), wz=np.zeros((), np.int8),
        yz=np.full(1, 128, np.uint8), **{name: np.array(value, np.float32) for name, value in one.items()},
    )  # fmt: skip
    engine = ridgeline.build(proto, without=("ort", "cpp", "onednn"), verify="off", **QUICK)
    want = np.rint(left * 0.02 * 0.01 / step) + 128
    np.testing.assert_array_equal(engine.run({"x": x})["y"].reshape(-1), want)
