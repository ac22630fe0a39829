"""Quantised engines: inside the budget, only where they pay, and each product left out with its reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from fragile import model, weight
from test_lowered import off

import ridgeline
from ridgeline.errors import BuildError
from ridgeline.frontend.from_onnx import load
from ridgeline.frontend.ports import ports
from ridgeline.options import DEFAULT_LIMITS
from ridgeline.passes.pipeline import canonicalise
from ridgeline.precision.quantised import Quantiser
from ridgeline.precision.quantised_build import saved_us
from ridgeline.precision.samples import Samples
from ridgeline.precision.schemes import scheme_named


def network() -> onnx.ModelProto:
    made = model(
        """g (float[N,64] x) => (float[N,32] y) {
            h = MatMul(x, w)
            a = Add(h, b)
            r = Relu(a)
            k = MatMul(r, v)
            n = LayerNormalization<axis = -1>(k, g)
            y = MatMul(n, u)
        }""",
        w=weight(64, 128), b=weight(128), v=weight(128, 64), g=np.ones(64, np.float32), u=weight(64, 32),
    )  # fmt: skip
    for node in made.graph.node:
        node.name = f"net/{node.output[0]}"
    return made


def inputs(count: int = 64) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(3)
    return [{"x": rng.standard_normal((1, 64)).astype(np.float32)} for _ in range(count)]


def quantiser(scheme: str) -> Quantiser:
    loaded = load(network())
    canonicalise(loaded.model)
    samples = Samples.of(inputs(), ports(loaded.model.graph.inputs, what="input"))
    return Quantiser(loaded.model, scheme_named(scheme), samples, DEFAULT_LIMITS)


@pytest.mark.parametrize("precision", ["int8", "uint8", "w8", "fp8"])
def test_a_quantised_build_is_inside_its_budget_or_left_alone_with_the_reason(precision: str) -> None:
    engine = ridgeline.build(
        network(), precision=precision, data=inputs(), level=1, progress=False, profiles={"x": "16x64"}
    )
    assert engine.report.verified
    found = engine.report.precision
    if precision not in found.nodes:  # measured to be no faster on this machine, as busy as it is
        assert any("no faster" in line for line in engine.report.warnings)
        assert {kept.node for kept in found.kept} == {"net/h", "net/k", "net/y"}
    else:
        assert found.nodes[precision] >= 1
        assert 0 < found.error <= 0.05
    batch = {"x": np.concatenate([each["x"] for each in [*inputs(), *inputs()][:16]])}
    assert off(engine, network(), [batch]) <= 0.05


def test_products_that_break_the_budget_stay_float() -> None:
    """With a budget between the error of the whole and of its parts."""
    made = quantiser("w4")
    rows = inputs(2)
    whole = made.search(rows, 1e9, {}, lambda *_: None).error
    found = made.search(rows, whole * 0.8, {}, lambda *_: None)
    assert found.error <= whole * 0.8
    assert 0 < len(found.raised) < 3
    assert set(found.alone) == set(made.products)
    mixed = [node.op_type for node in made.without(found.raised).graph]
    assert mixed.count("DequantizeLinear") == 3 - len(found.raised)
    assert "DequantizeLinear" not in [node.op_type for node in made.model.graph]


def test_an_impossible_budget_names_the_worst_products() -> None:
    with pytest.raises(BuildError, match="no mixture of precisions keeps the budget") as caught:
        ridgeline.build(network(), precision="w4", budget=1e-5, data=inputs(), level=0, progress=False)
    assert len(caught.value.rows) == 3
    assert "net/" in caught.value.rows[0]


def test_kept_nodes_are_not_quantised() -> None:
    made = quantiser("int8")
    made.exclude = ("net/k",)
    assert set(made.products) == {"net/h", "net/y"}


def test_time_saved_counts_the_conversions_that_a_product_needs() -> None:
    class Step:
        def __init__(self, ops: str, sources: str, reads: str, writes: str, us: float) -> None:
            self.op_types, self.sources = ops.split(), sources.split()
            self.inputs, self.outputs, self.median_us = reads.split(), writes.split(), us

    class Plan:
        def __init__(self, *steps: Step) -> None:
            self.steps = steps

    plain: Any = Plan(Step("MatMul Add", "a b", "x", "h", 10.0), Step("MatMul", "c", "h", "y", 10.0))
    coarse: Any = Plan(
        Step("QuantizeLinear", "q", "x", "xq", 7.0),
        Step("DequantizeLinear MatMul Add QuantizeLinear", "a b", "xq", "hq", 4.0),
        Step("DequantizeLinear MatMul", "c", "hq", "y", 6.0),
    )
    assert saved_us({"a": ("a",), "c": ("c",)}, plain, coarse) == {"a": -1.0, "c": 4.0}
