"""Float32 models whose products may round to TF32: where, how that is judged, and where it means nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from fragile import model, weight

import ridgeline
from ridgeline.base.spec import TF32, Target
from ridgeline.errors import BuildError, OptionError
from ridgeline.frontend.from_onnx import load
from ridgeline.ir.provenance import MATH
from ridgeline.options import DEFAULT_BUDGET, Options
from ridgeline.precision.budget import Judgement
from ridgeline.precision.emulate import cut_to_tf32
from ridgeline.precision.original import Original
from ridgeline.precision.tf32_build import require_exact, without_tf32
from ridgeline.tactics.cache import TimingCache
from ridgeline.verify.metrics import relative_l2
from ridgeline.verify.reference import Reference
from ridgeline.verify.tf32_reference import PREFIX, RoundingProducts

QUICK: dict[str, Any] = {"level": 0, "progress": False}
GPU: dict[str, Any] = {**QUICK, "target": "null:sm_90"}
NAMES = ("first", "act", "second", "sum")


def mlp(size: int = 64, scale: float = 1.0) -> onnx.ModelProto:
    made = model(
        f"""g (float[4,{size}] x) => (float[4,{size}] y) {{
            h = MatMul(x, w)
            r = Relu(h)
            o = MatMul(r, u)
            y = Add(o, x)
        }}""",
        w=weight(size, size) * scale, u=weight(size, size) * scale,
    )  # fmt: skip
    for node, name in zip(made.graph.node, NAMES, strict=True):
        node.name = name
    return made


def rounding(engine: ridgeline.Engine) -> dict[str, str]:
    """By node of the model, how the product of its region rounds."""
    return {
        source: op.math
        for region in engine.program.regions
        for op in region.body.ops
        if op.op_type == "MatMul"
        for source in region.sources
        if source in ("first", "second")
    }


def test_products_round_and_the_report_says_so() -> None:
    engine = ridgeline.build(mlp(), precision=TF32, **GPU)
    assert rounding(engine) == {"first": TF32, "second": TF32}
    assert engine.plan.precision == TF32
    assert {port.dtype for port in (*engine.inputs, *engine.outputs)} == {"float32"}
    found = engine.report.precision
    assert (found.asked, found.nodes, found.kept) == (TF32, {TF32: 2}, ())
    assert found.budget == DEFAULT_BUDGET


@pytest.mark.parametrize("precision", ["typed", "fp32"])
def test_nothing_else_makes_products_round(precision: str) -> None:
    proto = mlp()
    for node in proto.graph.node:  # as if somebody had written a file of ours again
        node.metadata_props.add(key=MATH, value=TF32)
    engine = ridgeline.build(proto, precision=precision, **GPU)
    assert rounding(engine) == {"first": "", "second": ""}
    assert engine.plan.precision == "fp32"


@pytest.mark.parametrize("fusion", [True, False])
def test_a_kept_product_stays_float32(fusion: bool) -> None:
    engine = ridgeline.build(mlp(), precision=TF32, keep=["fp32:sec*"], fusion=fusion, **GPU)
    assert rounding(engine) == {"first": TF32, "second": ""}
    assert engine.report.precision.nodes == {"fp32": 1, TF32: 1}
    assert [(kept.node, kept.why) for kept in engine.report.precision.kept] == [("second", "asked for")]
    require_exact(engine, ["second"])
    with pytest.raises(BuildError, match="first: rounds in"):
        require_exact(engine, ["first", "second"])


def test_a_pattern_without_a_node_is_refused() -> None:
    with pytest.raises(OptionError, match="'thrid'; near"):
        ridgeline.build(mlp(), precision=TF32, keep=["fp32:thrid"], **GPU)


def test_the_product_that_costs_most_goes_back_to_float32() -> None:
    proto = model(
        """g (float[4,64] x) => (float[4,64] y) {
            large = MatMul(x, w)
            r = Relu(x)
            small = MatMul(r, v)
            y = Add(large, small)
        }""",
        w=weight(64, 64) * 100, v=weight(64, 64),
    )  # fmt: skip
    for node in proto.graph.node:
        node.name = node.output[0]
    tight = ridgeline.build(proto, precision=TF32, budget=1e-4, **GPU)
    found = tight.report.precision
    assert found.nodes == {"fp32": 1, TF32: 1}
    assert found.kept[0].node == "large"
    assert "over budget with the rest" in found.kept[0].why
    assert found.sensitivity["large"] > 10 * found.sensitivity["small"]
    marked = {source for r in tight.program.regions if r.body.may_round for source in r.sources}
    assert "small" in marked
    assert "large" not in marked
    none = ridgeline.build(proto, precision=TF32, budget=1e-9, **GPU)
    assert none.report.precision.nodes == {"fp32": 2}
    assert none.plan.precision == "fp32"


def test_an_engine_file_keeps_the_marks(tmp_path: Path) -> None:
    # a file brings its own kernels along, which would be compiled here
    engine = ridgeline.build(mlp(), precision=TF32, keep=["fp32:second"], without=["triton"], **GPU)
    engine.save(tmp_path / "m.ridge")
    again = ridgeline.load(tmp_path / "m.ridge")
    assert again.plan == engine.plan
    assert rounding(again) == {"first": TF32, "second": ""}


def test_an_exact_build_takes_no_timing_of_a_rounding_one(tmp_path: Path) -> None:
    keys = {}
    for precision in ("fp32", TF32):
        lock = tmp_path / f"{precision}.toml"
        ridgeline.build(mlp(), precision=precision, lock=lock, **GPU)
        keys[precision] = set(TimingCache.read(lock).entries)
    assert keys["fp32"]
    assert keys[TF32]
    assert keys["fp32"].isdisjoint(keys[TF32])


def test_a_processor_computes_float32_and_says_so() -> None:
    engine = ridgeline.build(mlp(), precision=TF32, target="null", **QUICK)
    exact = ridgeline.build(mlp(), precision="fp32", target="null", **QUICK)
    assert engine.plan == exact.plan
    assert any("no TF32 arithmetic: products are computed in float32" in w for w in engine.report.warnings)
    assert not any("TF32" in warning for warning in exact.report.warnings)


def test_it_runs_on_this_processor() -> None:
    engine = ridgeline.build(mlp(), precision=TF32, **QUICK)
    assert engine.report.verified
    x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    want = ridgeline.build(mlp(), **QUICK).run({"x": x})["y"]
    assert relative_l2(np.asarray(engine.run({"x": x})["y"]), np.asarray(want)) < 1e-6


def test_a_half_model_is_widened_first() -> None:
    proto = model(
        "g (float16[4,64] x) => (float16[4,64] y) { y = MatMul(x, w) }", w=weight(64, 64).astype(np.float16)
    )
    engine = ridgeline.build(proto, precision=TF32, **GPU)
    specs = engine.inference.at(engine.plan.planned_shapes).specs
    ops, _ = engine.program.flat_ops(engine.program.regions)
    (product,) = (op for op in ops if op.op_type == "MatMul")
    assert product.math == TF32
    assert {specs[name].dtype for name in product.inputs} == {"float32"}
    assert {port.dtype for port in (*engine.inputs, *engine.outputs)} == {"float16"}


def test_a_model_without_products_says_that_nothing_rounds() -> None:
    engine = ridgeline.build(
        model("g (float[4,8] x) => (float[4,8] y) { y = Relu(x) }"), precision=TF32, **GPU
    )
    assert engine.plan.precision == "fp32"
    assert any("no product of float32 numbers" in warning for warning in engine.report.warnings)


@pytest.fixture
def rounding_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """This processor taken for a machine with TF32: products are marked, built, run and judged."""
    monkeypatch.setattr(Target, "has_tf32", True)


def test_the_engine_is_run_and_judged(rounding_processor: None) -> None:
    engine = ridgeline.build(mlp(), precision=TF32, **QUICK)
    assert engine.report.verified
    assert engine.plan.precision == TF32
    found = engine.report.precision
    assert found.samples > 0
    assert found.error < 1e-6, "kernels of a processor do not round"
    assert ridgeline.verify_engine(engine, mlp()).verified


def test_an_engine_further_off_than_its_emulation_rounds_less(
    rounding_processor: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = []

    def judge(original: Original, engine: ridgeline.Engine) -> Judgement:
        judged.append(engine.plan.precision)
        return Judgement(worst={"y": 0.1 if engine.plan.precision == TF32 else 1e-7}, samples=1)

    monkeypatch.setattr(Original, "judge", judge)
    engine = ridgeline.build(mlp(), precision=TF32, **QUICK)
    assert judged == [TF32, TF32, "fp32"][-len(judged) :]
    assert engine.report.precision.nodes == {"fp32": 2}
    with pytest.raises(BuildError, match="no mixture of precisions keeps the budget"):
        ridgeline.build(mlp(), precision=TF32, budget=1e-8, **QUICK)


def test_architectures_before_tf32_are_told_the_first() -> None:
    old = Target("cuda", "sm_75")
    assert not old.has_tf32
    assert "cuda:sm_75 has no TF32 arithmetic, which begins with sm_80" in without_tf32(old)
    assert Target("cuda", "sm_80").has_tf32
    assert not Target("cpu", "x86_64").has_tf32


def test_half_ports_are_refused() -> None:
    for precision in ("fp32", TF32):
        with pytest.raises(OptionError, match="half ports do not go with"):
            Options(precision=precision, io="fp16")


# tolerances


def reference(proto: onnx.ModelProto, *, rounds: bool) -> Reference:
    return Reference(load(proto), threads=1, rounds=rounds)


def test_the_rounding_graph_cuts_as_tensor_cores_do() -> None:
    """By plain ONNX ops, bit by bit as the emulation does it."""
    proto = model("g (float[4,6] x, float[6,6] w) => (float[4,6] y) { y = MatMul(x, w) }")
    cut = RoundingProducts(proto).model()
    name = cut.graph.node[-1].input[0]
    assert name.startswith(PREFIX)
    cut.graph.output[0].name = name
    del cut.graph.node[-1]
    rng = np.random.default_rng(5)
    x = (rng.standard_normal((4, 6)) * 10.0 ** rng.integers(-30, 30, (4, 6))).astype(np.float32)
    x[0] = [np.inf, -np.inf, np.nan, 0.0, -0.0, np.finfo(np.float32).min]
    x[1] = [1.0, 1 + 2**-10, 1 + 2**-11, 1 - 2**-24, 2 - 2**-23, -1 - 2**-20]
    got = ort.InferenceSession(cut.SerializeToString()).run(None, {"x": x, "w": x[[0] * 6]})[0]
    want = cut_to_tf32(torch.from_numpy(x)).numpy()
    large = np.abs(x) >= 1e30
    np.testing.assert_array_equal(got[~large], want[~large])
    np.testing.assert_array_equal(got[large], x[large])


def test_tolerances_are_those_of_rounded_operands() -> None:
    proto = mlp()
    x = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    exact, free = (reference(proto, rounds=rounds) for rounds in (False, True))
    want = exact.run({"x": x})
    tight, wide = (each.tolerance({"x": x}, want)["y"].distance for each in (exact, free))
    scale = float(np.abs(want["y"]).max())
    assert tight < 1e-5 * scale
    assert 1e-4 * scale < wide < 1e-2 * scale
    w, u = (torch.from_numpy(onnx.numpy_helper.to_array(t).copy()) for t in proto.graph.initializer)
    hidden = (cut_to_tf32(torch.from_numpy(x)) @ cut_to_tf32(w)).relu()
    made = cut_to_tf32(hidden) @ cut_to_tf32(u) + torch.from_numpy(x)
    assert tight < np.abs(made.numpy() - want["y"]).max() < wide


def test_outputs_that_no_rounding_product_reaches_keep_their_tolerance() -> None:
    proto = model(
        """g (float[4,64] x) => (float[4,64] y, float[4,64] z) {
            y = MatMul(x, w)
            z = Softmax(x)
        }""",
        w=weight(64, 64),
    )
    x = {"x": np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)}
    exact, free = (reference(proto, rounds=rounds) for rounds in (False, True))
    want = exact.run(x)
    before, after = exact.tolerance(x, want), free.tolerance(x, want)
    assert after["z"].distance == before["z"].distance
    assert after["y"].distance > 50 * before["y"].distance


def test_a_kept_product_has_the_tolerance_of_float32() -> None:
    proto = mlp()
    for node in proto.graph.node:
        node.metadata_props.add(key="ridgeline.keep", value="float32")
    assert RoundingProducts(proto).outputs == frozenset()


def test_what_is_known_of_an_exact_model_is_not_taken_for_a_rounding_one(tmp_path: Path) -> None:
    feeds = {"x": np.ones((4, 64), np.float32)}
    keys = []
    for rounds in (False, True):
        made = Reference(load(mlp()), threads=1, rounds=rounds)
        made._digest = type("Digest", (), {"value": lambda self: "model"})()
        keys.append(made.fact_key("tolerance", feeds))
    assert keys[0] != keys[1]


def test_options_carry_the_name() -> None:
    options = Options(precision=TF32)
    assert options.budget_or_default == DEFAULT_BUDGET
    assert replace(options, budget=0.5).budget_or_default == 0.5
