"""Quantised builds of models that are unusual: names that mislead, branches that stay float, odd operands."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from quant_models import proto_of

import ridgeline
from ridgeline.errors import BuildError, OptionError
from ridgeline.precision.emulate import Emulator
from ridgeline.precision.quantised import Quantiser
from ridgeline.precision.samples import _is_held_back, row_digest

RNG = np.random.default_rng(0)
QUICK: dict[str, Any] = {"level": 0, "progress": False}


def drawn(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) * 0.1).astype(np.float32)


def rows(count: int, *shape: int) -> list[dict[str, np.ndarray]]:
    return [{"x": RNG.standard_normal((1, *shape)).astype(np.float32)} for _ in range(count)]


def chain(*names: str) -> onnx.ModelProto:
    """Three products with these names of nodes."""
    made = proto_of(
        """g (float[N,64] x) => (float[N,64] y) {
            a = MatMul(x, w1) t = Tanh(a) b = MatMul(t, w2) u = Tanh(b) y = MatMul(u, w3) }""",
        w1=drawn(64, 64), w2=drawn(64, 64), w3=drawn(64, 64),
    )  # fmt: skip
    products = [node for node in made.graph.node if node.op_type == "MatMul"]
    for node, name in zip(products, names, strict=True):
        node.name = name
    return made


@pytest.mark.parametrize("names", [("MatMul", "MatMul_1", "MatMul_2"), ("same", "same", "same")])
def test_names_that_are_op_types_or_of_several_nodes(names: tuple[str, ...]) -> None:
    """What one product does is decided, stored and reported for it alone."""
    proto, data = chain(*names), rows(40, 64)
    engine = ridgeline.build(proto, precision="w8", data=data, budget=0.5, verify="off", **QUICK)
    found = engine.report.precision
    assert found.nodes == {"w8": 3}
    assert 1e-4 < found.error < 0.05
    assert sum(step.op_types.count("DequantizeLinear") for step in engine.plan.steps) == 3


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_nodes_are_kept_by_op_type(precision: str) -> None:
    """Also of a type that a rewrite took away: what became of the node stays."""
    proto = proto_of(
        """g (float[N,64] x) => (float[N,64] y) {
            a = MatMul(x, w1) d = Div(a, r) e = Erf(d) o = Add(e, one) m = Mul(a, o) t = Mul(m, half)
            y = Gemm(t, w2) }""",
        w1=drawn(64, 64), w2=drawn(64, 64), r=np.float32(2**0.5).reshape(()),
        one=np.ones((), np.float32), half=np.full((), 0.5, np.float32),
    )  # fmt: skip
    engine = ridgeline.build(
        proto, precision=precision, keep=["fp32:Gemm", "fp32:Erf"], data=rows(40, 64), verify="off", **QUICK
    )
    kept = {row.node: row.why for row in engine.report.precision.kept}
    assert kept.pop("y") in ("asked for", "excluded by 'y'")
    assert [why for node, why in kept.items() if "e" in node.split(", ")] == ["asked for"] * len(kept)


def test_a_node_that_was_rewritten_away_may_be_named() -> None:
    proto = proto_of(
        "g (float[N,64] x) => (float[N,64] y) { i = Identity(x) y = MatMul(i, w) }", w=drawn(64, 64)
    )
    for pattern in ("i", "Identity"):
        ridgeline.build(
            proto, precision="fp16", keep=f"fp32:{pattern}", data=rows(8, 64), verify="off", **QUICK
        )


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "int8", "auto"])
def test_every_precision_refuses_wrong_patterns_and_data(precision: str) -> None:
    proto, data = chain("first", "b", "c"), rows(40, 64)
    with pytest.raises(OptionError, match=r"(?s)match no node.*near: first"):
        ridgeline.build(proto, precision=precision, keep="fp32:frist", data=data, verify="off", **QUICK)
    data[7]["x"][0, 3] = np.nan
    with pytest.raises(OptionError, match="sample 7 has NaN in 'x'"):
        ridgeline.build(proto, precision=precision, data=data, verify="off", **QUICK)


def test_one_product_left_in_float_leaves_the_others_quantised(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    before = Quantiser.without

    def without(self: Quantiser, floats: Any) -> Any:
        made = before(self, floats)
        seen.append((len(set(floats)), sum(node.op_type == "DequantizeLinear" for node in made.graph)))
        return made

    monkeypatch.setattr(Quantiser, "without", without)
    data = [{"x": row["x"] * (1 + 99 * (np.arange(64) == 3)).astype(np.float32)} for row in rows(40, 64)]
    proto = chain("MatMul", "MatMul_1", "MatMul_2")
    ridgeline.build(proto, precision="int8", data=data, budget=0.02, verify="off", **QUICK)
    assert seen
    assert all(2 * (3 - floats) == pairs for floats, pairs in seen), seen


def test_a_residual_whose_convolution_stays_float(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other branch was never quantised at the sum, and has no range there."""
    quantisers: list[Quantiser] = []
    before = Quantiser.nearer
    monkeypatch.setattr(Quantiser, "nearer", lambda self, *a: (quantisers.append(self), before(self, *a))[1])
    weights = {f"w{i}": drawn(24, 24, 1, 1) for i in (1, 2, 3, 4)}
    weights["w1"][0] *= 300
    weights["w2"][:, 0] /= 300
    proto = proto_of(
        """g (float[N,24,4,4] x) => (float[N,24,4,4] y) {
            a = Conv(x, w1) ar = Relu(a) b = Conv(ar, w2) d = Conv(x, w3)
            s = Add(b, d) sr = Relu(s) y = Conv(sr, w4) }""",
        **weights,
    )  # fmt: skip
    data = rows(24, 24, 4, 4)
    engine = ridgeline.build(proto, precision="int8", data=data, budget=0.05, verify="off", **QUICK)
    assert engine.report.precision.error <= 0.05
    quantiser = quantisers[-1]
    for floats in combinations(quantiser.products, 2):
        Emulator(quantiser.without(floats)).run(data[0])


def test_a_constant_first_operand_is_left_alone() -> None:
    proto = proto_of(
        "g (float[N,40] x) => (float[33,N] y) { a = Gemm<transB = 1>(w, x) y = Relu(a) }", w=drawn(33, 40)
    )
    with pytest.raises(BuildError, match="first operand"):
        ridgeline.quantize(proto, format="int8", data=[{"x": drawn(16, 40)}] * 8)


def test_rows_that_fill_up_a_batch_are_not_judged_twice() -> None:
    data = rows(40, 64)
    engine = ridgeline.build(
        chain("a", "b", "c"), precision="fp16", data=data, verify="off", profiles={"x": ["1..7..8", "64"]},
        metric=lambda got, want, feeds: 0.0, budget=1.0, **QUICK,
    )  # fmt: skip
    assert engine.report.precision.samples == sum(_is_held_back(row_digest(row)) for row in data)


@pytest.mark.parametrize(("precision", "io"), [("int8", "fp16"), ("auto", "bf16")])
def test_half_ports_of_an_engine_in_float_or_codes(precision: str, io: str) -> None:
    """A CPU leaves nodes in float32 where codes or half do not pay; the ports are what was asked for."""
    proto, dtype = chain("a", "b", "c"), {"fp16": "float16", "bf16": "bfloat16"}[io]
    engine = ridgeline.build(proto, precision=precision, io=io, data=rows(40, 64), verify="off", **QUICK)
    assert [port.dtype for port in (*engine.plan.inputs, *engine.plan.outputs)] == [dtype, dtype]


def test_half_ports_that_are_over_the_budget() -> None:
    large = [{"x": row["x"] * np.float32(1e6)} for row in rows(40, 64)]
    with pytest.raises(BuildError, match="ports of fp16 are over the budget"):
        ridgeline.build(chain("a", "b", "c"), precision="int8", io="fp16", data=large, verify="off", **QUICK)


def test_a_metric_may_overwrite_what_it_is_given() -> None:
    seen: list[tuple[float, float]] = []

    def metric(
        got: dict[str, np.ndarray], want: dict[str, np.ndarray], feeds: dict[str, np.ndarray]
    ) -> float:
        error = float(np.abs(got["y"] - want["y"]).max())
        seen.append((float(want["y"].sum()), float(feeds.pop("x").sum())))
        got["y"][:], want["y"][:] = 7, np.nan
        return error

    options = {"data": rows(8, 64), "budget": 0.5, "verify": "off", "metric": metric, **QUICK}
    engine = ridgeline.build(chain("a", "b", "c"), precision="fp16", **options)
    assert engine.report.precision.error < 0.01
    assert np.isfinite(seen).all()


def test_outputs_that_are_nan_are_no_perfect_score() -> None:
    proto = proto_of(
        """g (float[N,64] x) => (float[N,64] y, float[N,64] v) {
            m = MatMul(x, w) a = Abs(m) n = Neg(a) r = Sqrt(n) y = Sub(r, a) s = Sqrt(m) v = Neg(s) }""",
        w=drawn(64, 64),
    )
    data = rows(40, 64)
    engine = ridgeline.build(proto, precision="fp16", data=data, budget=0.5, verify="off", **QUICK)
    found = " ".join([*engine.report.warnings, *ridgeline.quantize(proto, data=data).notes])
    assert found.count("output 'y' of the original is NaN or infinite throughout") == 2
    assert found.count("output 'v' of the original is NaN in") == 2


def test_shared_weights_keep_their_own_scales() -> None:
    weight = np.full((64, 32), 0.95 / 7, np.float32)
    weight[0] = 1
    first = np.zeros((1, 64), np.float32)
    first[0, 0] = 1
    proto = proto_of(
        """g (float[N,64] x, float[N,64] z) => (float[N,32] y, float[N,32] v) {
            y = MatMul(x, w) v = MatMul(z, w) }""",
        w=weight,
    )
    data = [{"x": first * (1 + 0.1 * i), "z": (1 - first) * (1 + 0.1 * i)} for i in range(8)]
    errors = ridgeline.quantize(proto, format="w4", data=data).errors
    assert max(errors.values()) < 0.01


def test_levels_are_quantised_anew_where_the_numbers_between_round() -> None:
    proto = proto_of(
        """g (int16[3] q) => (int16[3] y) {
            a = DequantizeLinear<output_dtype = 10>(q, s) y = QuantizeLinear<output_dtype = 5>(a, s) }""",
        opset=23, s=np.float32(1).reshape(()),
    )  # fmt: skip
    proto.ir_version = 11
    engine = ridgeline.build(proto, **QUICK)
    got = engine.run({"q": np.array([1, 2049, 3001], np.int16)})["y"]
    np.testing.assert_array_equal(got, [1, 2048, 3000])


def of_tactic(proto: onnx.ModelProto, without: str, x: np.ndarray) -> np.ndarray:
    """What the model makes in ONNX Runtime, or without it."""
    engine = ridgeline.build(proto, without=(without,), verify="off", **QUICK)
    assert all((step.tactic == "ort") == (without != "ort") for step in engine.plan.steps)
    made: np.ndarray = engine.run({"x": x})["y"]
    return made


@pytest.mark.parametrize("without", ["ort", "cpp"])
def test_an_infinity_among_the_levels_saturates(without: str) -> None:
    """The second QuantizeLinear makes the largest number of it; the pair is no identity."""
    proto = proto_of(
        """g (float[3] x) => (float[3] y) {
            q = QuantizeLinear<saturate = 0>(x, s, z) k = DequantizeLinear(q, s, z)
            p = QuantizeLinear(k, s, z) y = DequantizeLinear(p, s, z) }""",
        s=np.float32(1).reshape(()), z=np.zeros((), ml_dtypes.float8_e5m2),
    )  # fmt: skip
    got = of_tactic(proto, without, np.array([1, 1e6, -1e6], np.float32))
    np.testing.assert_array_equal(got, [1, 57344, -57344])


@pytest.mark.parametrize("without", ["ort", "cpp"])
def test_two_roundings_to_levels_stay_two(without: str) -> None:
    proto = proto_of(
        """g (float[3] x) => (float[3] y) {
            q = QuantizeLinear(x, s, z) k = DequantizeLinear(q, s, z)
            p = QuantizeLinear(k, t, z) y = DequantizeLinear(p, t, z) }""",
        s=np.float32(1).reshape(()), t=np.float32(0.3).reshape(()), z=np.zeros((), np.int8),
    )  # fmt: skip
    got = of_tactic(proto, without, np.array([1, 3.3, -7.4], np.float32))
    np.testing.assert_allclose(got, [0.9, 3.0, -6.9], rtol=1e-6)


def test_one_block_along_an_axis_that_a_view_takes_away() -> None:
    proto = proto_of(
        """g (float[32] x) => (float[32] y) {
            w = DequantizeLinear<axis = 1, block_size = 32>(q, s) v = Reshape(w, shape) y = Add(x, v) }""",
        opset=21, q=np.ones((1, 32), np.int8), s=np.full((1, 1), 0.5, np.float32), shape=np.array([32]),
    )  # fmt: skip
    x = drawn(32)
    np.testing.assert_allclose(ridgeline.build(proto, **QUICK).run({"x": x})["y"], x + 0.5, rtol=1e-6)


def test_blocks_that_are_joined_keep_their_own() -> None:
    proto = proto_of(
        """g (float[1, 64] x) => (float[1, 64] y) {
            a = DequantizeLinear<axis = 1, block_size = 32>(q, s)
            b = DequantizeLinear<axis = 1, block_size = 32>(r, s)
            w = Concat<axis = 1>(a, b) y = Add(x, w) }""",
        opset=21, q=np.ones((1, 32), np.int8), r=np.full((1, 32), 3, np.int8),
        s=np.full((1, 1), 0.5, np.float32),
    )  # fmt: skip
    x = drawn(1, 64)
    want = x + np.repeat([[0.5, 1.5]], 32, axis=1).astype(np.float32)
    np.testing.assert_allclose(ridgeline.build(proto, **QUICK).run({"x": x})["y"], want, rtol=1e-6)
