"""Quantised engines: inside the budget, only where they pay, and each product left out with its reason."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fragile import model, weight
from test_lowered import off

import ridgeline
from ridgeline.analyze.show import summarise
from ridgeline.cli.draw_plan import _precision_text
from ridgeline.errors import BuildError
from ridgeline.frontend.from_onnx import load
from ridgeline.options import DEFAULT_LIMITS, Options
from ridgeline.passes.pipeline import canonicalise
from ridgeline.precision import quantised_build
from ridgeline.precision.half_build import LoweredBuild, compared_us
from ridgeline.precision.original import Original
from ridgeline.precision.quantised import Quantiser
from ridgeline.precision.quantised_build import product_savings_us
from ridgeline.precision.quantize import samples_of
from ridgeline.precision.samples import _is_held_back, row_digest
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
    samples = samples_of(inputs(), loaded.model)
    return Quantiser(loaded.model, scheme_named(scheme), samples, DEFAULT_LIMITS)


@pytest.mark.parametrize("precision", ["int8", "uint8", "w8", "fp8"])
def test_a_quantised_build_is_inside_its_budget_or_left_alone_with_the_reason(precision: str) -> None:
    budget = 0.1 if precision == "fp8" else 0.05  # with 3 bits, one product of single rows is off by 0.04
    engine = ridgeline.build(
        network(), precision=precision, budget=budget, data=inputs(), level=1, progress=False,
        profiles={"x": "16x64"},
    )  # fmt: skip
    assert engine.report.verified
    found = engine.report.precision
    if precision not in found.nodes:  # measured to be no faster on this machine, as busy as it is
        assert any("no faster" in line for line in engine.report.warnings)
        assert {kept.node for kept in found.kept} == {"net/h", "net/k", "net/y"}
    else:
        assert found.nodes[precision] >= 1
        assert 0 < found.error <= budget
        assert summarise(engine.plan, engine.report).precision == f"{precision}, fp32"
        assert engine.report.codes == {precision: found.nodes[precision]}
    assert sum(found.nodes.values()) == 3
    assert len(found.kept) == found.nodes.get("fp32", 0)
    assert found.plain == "fp32"
    assert found.plain_us > 0
    assert engine.report.engines_built >= 2
    assert engine.report.build_s >= 0.99 * sum(engine.report.stage_seconds.values())
    assert engine.report.nodes == len(network().graph.node)
    batch = {"x": np.concatenate([each["x"] for each in [*inputs(), *inputs()][:16]])}
    assert off(engine, network(), [batch]) <= budget


@pytest.mark.parametrize(("level", "is_timed"), [(0, False), (1, True)])
def test_engines_whose_runs_were_not_timed_are_compared_by_their_steps(level: int, is_timed: bool) -> None:
    """Without verification no run is timed; at level 0 no step is either, and what was asked for is kept."""
    engine = ridgeline.build(
        network(), precision="w8", data=inputs(), level=level, verify="off", progress=False,
        profiles={"x": "16x64"},
    )  # fmt: skip
    assert engine.report.run_us is None
    untimed = [line for line in engine.report.warnings if "was not measured" in line]
    assert bool(untimed) != is_timed
    if not is_timed:
        assert engine.report.precision.nodes == {"w8": 3}


def test_for_a_machine_that_is_not_here_what_was_asked_for_is_built() -> None:
    engine = ridgeline.build(
        network(), precision="int8", data=inputs(), target="null:sm_90", progress=False,
        profiles={"x": "16x64"},
    )  # fmt: skip
    found = engine.report.precision
    assert found.nodes == {"int8": 3}
    assert (found.error, found.samples) == (None, 0)
    assert "not judged yet" in _precision_text(summarise(engine.plan, engine.report))
    assert "fused against unfused graph" in {check.name for check in engine.report.checks}
    assert any("the machine that it is built for is not here" in line for line in engine.report.warnings)


def test_weights_alone_are_kept_for_their_size_unless_they_cost_much_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for times, is_kept in (((1.04, 1.0), True), ((1.2, 1.0), False)):
        monkeypatch.setattr(quantised_build, "compared_us", lambda one, other, times=times: times)
        engine = ridgeline.build(network(), precision="w8", data=inputs(), level=0, progress=False)
        assert set(engine.report.precision.nodes) == {"w8" if is_kept else "fp32"}
        said = [line for line in engine.report.warnings if "ridge quantize MODEL --format w8" in line]
        assert bool(said) != is_kept
        assert is_kept or "build with --level 3" in said[0]


def test_a_model_that_is_quantised_already_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "quantised.onnx"
    ridgeline.quantize(network(), format="int8", data=inputs()).save(path)
    typed = ridgeline.build(path, level=0, verify="off", progress=False)
    assert summarise(typed.plan, typed.report).precision == "int8, fp32"
    engine = ridgeline.build(path, precision="int8", data=inputs(), level=0, progress=False)
    assert engine.report.codes == {"int8": 3}
    assert engine.report.precision is None  # so that it is verified as the model that it is
    assert any("quantised already (3 in int8): it is taken as it is" in w for w in engine.report.warnings)


def test_what_the_user_keeps_was_asked_for() -> None:
    engine = ridgeline.build(
        network(), precision="int8", keep="fp32:net/k", data=inputs(), target="null:sm_90", progress=False
    )
    assert [(row.node, row.why) for row in engine.report.precision.kept] == [("net/k", "asked for")]
    assert engine.report.precision.nodes == {"fp16": 1, "int8": 2}


def test_only_times_of_one_kind_are_compared() -> None:
    def engine(run_us: float | None, *steps: float | None) -> Any:
        plan = SimpleNamespace(steps=[SimpleNamespace(median_us=us) for us in steps])
        return SimpleNamespace(report=SimpleNamespace(run_us=run_us), plan=plan)

    assert compared_us(engine(5.0, 1.0), engine(4.0, 2.0)) == (5.0, 4.0)
    assert compared_us(engine(5.0, 1.0, 2.0), engine(None, 2.0)) == (3.0, 2.0)
    assert compared_us(engine(None, 1.0, None), engine(None, 2.0)) is None


@pytest.mark.parametrize("scheme", ["int8", "uint8", "fp8", "w4"])
def test_products_quantised_in_the_float_model_compute_what_the_quantised_model_does(scheme: str) -> None:
    fast, slow = quantiser(scheme), quantiser(scheme)
    assert fast._operands is not None
    slow.__dict__["_operands"] = None  # so that the model is rewritten for every choice
    names = list(fast.products)
    for chosen in (names, names[:2], names[1:2]):
        assert fast.error(inputs(3), chosen) == slow.error(inputs(3), chosen)


def test_the_users_metric_decides_which_products_stay_float() -> None:
    """In units of its own: of a thousandth of the distance, all is inside a budget that it would break."""
    plain, own = quantiser("w4"), quantiser("w4")
    own.metric = lambda got, want, feeds: 1e-3 * float(np.abs(got["y"] - want["y"]).max())
    budget = plain.error(inputs(2)) / 2
    assert own.error(inputs(2)) < budget
    assert plain.search(inputs(2), budget, {}, lambda *_: None).raised
    assert not own.search(inputs(2), budget, {}, lambda *_: None).raised


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
    products = {"a": ("a",), "c": ("c",)}
    assert product_savings_us(products, plain, coarse) == {"a": -1.0, "c": 4.0}
    coarse.steps[0].median_us = None
    assert product_savings_us(products, plain, coarse) == {"c": 4.0}, (
        "what was not timed saves nothing that is known"
    )


def test_half_nodes_of_a_quantised_model_are_judged_with_the_whole() -> None:
    """A budget that no half node keeps raises none; what the plain model could not bear is kept."""
    built: list[onnx.ModelProto] = []

    def build(source: Any, options: Options, sample: Any) -> Any:
        built.append(ir.serde.to_proto(load(source).model))

    made = quantiser("fp8")
    options = Options(target="null:sm_90", precision="fp8", budget=1e-12, data=inputs())
    original = Original(load(network()), options, None)
    task = LoweredBuild(original, options, None, build, quantised=made.without(()))
    kept = task.decide("float16").kept
    assert {"h", "k", "n", "y"} <= set(kept)  # a search would keep every one
    task.build_unsearched("float16", {"n": "by the plain model", "gone": "with what was smoothed"})
    types = {v.name: v.type.tensor_type.elem_type for v in built[0].graph.value_info}
    assert types["k"] == onnx.TensorProto.FLOAT16
    assert types["n"] == onnx.TensorProto.FLOAT


def test_products_that_held_out_samples_saturate_stay_float(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples to calibrate with say nothing of them: without a look at the others, no mixture would do."""
    monkeypatch.setattr(quantised_build, "compared_us", lambda one, other: None)  # as if nothing were timed
    large = [{"x": row["x"] * 40} for row in inputs(200)]
    held_back = [row for row in large if _is_held_back(row_digest(row))][:3]
    engine = ridgeline.build(
        network(), precision="int8", data=[*inputs(), *held_back], level=0, progress=False,
        profiles={"x": "1x64"},
    )  # fmt: skip
    precision = engine.report.precision
    assert precision is not None
    assert precision.error <= precision.budget
    assert 0 < precision.nodes["int8"] < 3
    assert any("unlike those to calibrate with" in line for line in engine.report.warnings)


def test_attention_that_stays_float_says_what_codes_would_cost() -> None:
    made = model(
        """g (float[2,32,64] x) => (float[2,32,64] y) {
            q = MatMul(x, w)
            k = MatMul(x, v)
            a = Attention<q_num_heads = 2, kv_num_heads = 2>(q, k, x)
            y = MatMul(a, u)
        }""",
        opset=23, w=weight(64, 64), v=weight(64, 64), u=weight(64, 64),
    )  # fmt: skip
    data = [{"x": weight(2, 32, 64, scale=1 + i / 8)} for i in range(8)]
    engine = ridgeline.build(
        made,
        precision="fp8",
        budget=0.5,
        data=data,
        target="null:sm_90",
        level=0,
        verify="off",
        progress=False,
    )
    (kept,) = [row for row in engine.report.precision.kept if "a" in row.node]
    assert "three QuantizeLinear" in kept.why
