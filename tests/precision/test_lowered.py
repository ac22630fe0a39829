"""Models in half types: inside the budget or refused by name, never silently wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from fragile import FRAGILE, model, samples, weight

import ridgeline
from ridgeline.analyze.show import summarise
from ridgeline.cli.draw_plan import _precision_text
from ridgeline.errors import BuildError, OptionError
from ridgeline.frontend.from_onnx import load
from ridgeline.passes.pipeline import canonicalise
from ridgeline.precision import half_build
from ridgeline.precision.emulate import Emulator, node_key, rounded_to
from ridgeline.precision.lower import lower
from ridgeline.verify.metrics import relative_l2

BUDGET = 0.01
NAMES = ("first", "bias", "act", "norm/scale", "second", "pick")
QUICK: dict[str, Any] = {"level": 0, "progress": False}


def mlp() -> onnx.ModelProto:
    made = model(
        """g (float[N,32] x) => (float[N,8] y, int64[N,1] best) {
            h = MatMul(x, w)
            a = Add(h, b)
            r = Relu(a)
            n = LayerNormalization<axis = -1>(r, g)
            y = MatMul(n, u)
            best = ArgMax<axis = 1>(y)
        }""",
        w=weight(32, 64), b=weight(64), g=np.ones(64, np.float32), u=weight(64, 8),
    )  # fmt: skip
    for node, name in zip(made.graph.node, NAMES, strict=True):
        node.name = name
    return made


def inputs(count: int = 8, width: int = 32) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(3)
    return [{"x": rng.standard_normal((1, width)).astype(np.float32)} for _ in range(count)]


def off(engine: Any, proto: onnx.ModelProto, feeds: list[dict[str, np.ndarray]]) -> float:
    """The worst error of the float outputs against ONNX Runtime in float32."""
    session = ort.InferenceSession(proto.SerializeToString())
    names = [port.name for port in proto.graph.output]
    worst = 0.0
    for each in feeds:
        want = dict(zip(names, session.run(names, each), strict=True))
        got = engine.run(each)
        floats = [name for name in names if want[name].dtype == np.float32]
        worst = max(worst, *(relative_l2(np.asarray(got[name]), want[name]) for name in floats))
    return worst


@pytest.mark.parametrize("name", FRAGILE)
def test_fragile_models_end_inside_the_budget(name: str) -> None:
    proto, data = FRAGILE[name](), samples(name)
    loaded = load(proto)
    canonicalise(loaded.model)
    emulator = Emulator(loaded.model)
    half = dict.fromkeys(map(node_key, emulator.ops), rounded_to(torch.float16))
    lost = [
        relative_l2(coarse[output].numpy(), exact[output].numpy())
        for feeds in data
        for coarse, exact in [(emulator.run(feeds, rounding=half), emulator.run(feeds))]
        for output in exact
    ]
    assert max(lost) > BUDGET, "the model is not fragile: everything in half is inside the budget"
    engine = ridgeline.build(proto, precision="fp16", data=data, **QUICK)
    found = engine.report.precision
    assert found.error <= BUDGET
    assert found.kept
    assert engine.report.verified
    assert off(engine, proto, data) <= BUDGET


@pytest.mark.parametrize("half", ["fp16", "bf16"])
def test_a_sound_model_is_lowered_whole(half: str) -> None:
    engine = ridgeline.build(mlp(), precision=half, data=inputs(), budget=0.05, **QUICK)
    assert engine.report.precision.nodes == {half: 6}
    assert not engine.report.precision.kept
    assert engine.plan.precision == half
    assert [port.dtype for port in (*engine.inputs, *engine.outputs)] == ["float32", "float32", "int64"]
    assert off(engine, mlp(), inputs()) < 0.05


@pytest.mark.parametrize("spelling", ["Where(keep, zero, low)", "Mul(gone, low)"])
def test_a_mask_of_the_lowest_float_stays_finite(spelling: str) -> None:
    """As exporters of float32 models write it; a Cast to half would make it minus infinity."""
    proto = model(
        f"""g (float[N,2,8,16] q, bool[N,1,8,8] keep) => (float[N,2,8,16] y) {{
            bar = Not(keep)
            gone = Cast<to = 1>(bar)
            mask = {spelling}
            y = Attention(q, q, q, mask)
        }}""",
        opset=23, zero=np.array(0, np.float32), low=np.array(np.finfo(np.float32).min),
    )  # fmt: skip
    rng = np.random.default_rng(4)
    data = [
        {"q": rng.standard_normal((1, 2, 8, 16)).astype(np.float32), "keep": rng.random((1, 1, 8, 8)) < 0.7}
        for _ in range(8)
    ]
    for each in data:
        each["keep"][..., 0] = True
    engine = ridgeline.build(proto, precision="fp16", data=data, **QUICK)
    assert engine.report.precision.nodes["fp16"] >= 1
    specs = engine.inference.at(engine.plan.planned_shapes).specs
    ops = engine.program.flat_ops(engine.program.regions)[0]
    attention = next(op for op in ops if op.op_type == "Attention")
    assert {specs[name].dtype for name in attention.inputs} == {"float16"}
    assert off(engine, proto, data) <= BUDGET
    blind = data[0] | {"keep": np.zeros((1, 1, 8, 8), bool)}
    assert np.isfinite(np.asarray(engine.run(blind)["y"])).all()


def test_ports_are_half_if_asked() -> None:
    engine = ridgeline.build(mlp(), precision="fp16", io="fp16", data=inputs(), **QUICK)
    assert [port.dtype for port in (*engine.inputs, *engine.outputs)] == ["float16", "float16", "int64"]
    made = engine.run({"x": inputs()[0]["x"].astype(np.float16)})
    assert np.asarray(made["y"]).dtype == np.float16


@pytest.mark.parametrize("pattern", ["norm/*", "norm/scale", "*scale"])
def test_nodes_are_kept_by_name(pattern: str) -> None:
    engine = ridgeline.build(mlp(), precision="fp16", keep=[f"fp32:{pattern}"], data=inputs(), **QUICK)
    assert [(kept.node, kept.why) for kept in engine.report.precision.kept] == [("norm/scale", "asked for")]
    specs = engine.inference.at(engine.plan.planned_shapes).specs
    ops = engine.program.flat_ops(engine.program.regions)[0]
    kinds = {op.op_type: specs[op.outputs[0]].dtype for op in ops}
    assert kinds["LayerNormalization"] == "float32"
    assert kinds["MatMul"] == "float16"


def test_a_pattern_that_matches_nothing_is_an_error_with_near_matches() -> None:
    with pytest.raises(
        OptionError, match=r"1 of 1 patterns match no node[\s\S]*'norm/scael'; near: norm/scale"
    ):
        ridgeline.build(mlp(), precision="fp16", keep="fp32:norm/scael", data=inputs(), **QUICK)


def test_an_impossible_budget_says_the_best_and_the_worst_nodes() -> None:
    """A metric that no rounding satisfies, not even that of float32 kernels."""
    with pytest.raises(BuildError, match="no mixture of precisions keeps the budget") as caught:
        ridgeline.build(mlp(), precision="fp16", metric=lambda *_: 1.0, budget=0.5, data=inputs(), **QUICK)
    assert len(caught.value.rows) == 3
    assert "the best found" in caught.value.got


def test_a_metric_of_ones_own_decides() -> None:
    seen = []

    def metric(got: Any, want: Any, feeds: Any) -> float:
        seen.append((set(got), set(want), set(feeds)))
        return float(np.abs(got["y"] - want["y"]).max())

    engine = ridgeline.build(mlp(), precision="bf16", metric=metric, budget=0.02, data=inputs(), **QUICK)
    assert seen
    assert all(each == ({"y", "best"}, {"y", "best"}, {"x"}) for each in seen)
    assert engine.report.precision.error <= 0.02


def test_auto_is_inside_the_budget_and_says_if_it_stays_in_float32() -> None:
    engine = ridgeline.build(mlp(), precision="auto", data=inputs(), level=1, progress=False)
    assert engine.report.verified
    assert off(engine, mlp(), inputs()) <= BUDGET
    found = engine.report.precision
    assert found.asked == "auto"
    assert found.error <= BUDGET
    assert found.samples
    assert found.is_lowered != any("the model stays in float32" in line for line in engine.report.warnings)


def test_auto_says_that_it_could_not_compare_times() -> None:
    """Without verification no run is timed, at level 0 no step."""
    engine = ridgeline.build(mlp(), precision="auto", data=inputs(), verify="off", **QUICK)
    said = "pays was not measured" if engine.report.precision.is_lowered else "computes no half type faster"
    assert any(said in line for line in engine.report.warnings)


def test_fp32_widens_a_half_model() -> None:
    loaded = load(mlp())
    lower(loaded.model, {str(n.outputs[0].name): "float16" for n in loaded.model.graph}, io="float16")
    proto = ir.to_proto(loaded.model)
    engine = ridgeline.build(proto, precision="fp32", **QUICK)
    assert engine.plan.precision == "fp32"
    assert [port.dtype for port in (*engine.inputs, *engine.outputs)] == ["float16", "float16", "int64"]
    specs = engine.inference.at(engine.plan.planned_shapes).specs
    kinds = {specs[op.outputs[0]].dtype for op in engine.program.flat_ops(engine.program.regions)[0]}
    assert kinds == {"float32", "float16", "int64"}


def test_random_inputs_are_said_to_prove_little() -> None:
    engine = ridgeline.build(mlp(), precision="fp16", **QUICK)
    assert any("prove little" in line for line in engine.report.warnings)
    assert engine.report.precision.drawn


def test_a_half_type_that_is_slower_than_float32_here_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_build, "compared_us", lambda one, other: (20.0, 10.0))
    options = {**QUICK, "level": 1}
    engine = ridgeline.build(mlp(), precision="bf16", data=inputs(), **options)
    assert any("bf16 is slower than float32 here (20 against 10 us)" in w for w in engine.report.warnings)
    assert "0.50× the speed" in _precision_text(summarise(engine.plan, engine.report))
    assert engine.report.engines_built == 2


def test_samples_that_could_not_be_held_out_are_said_to_be_those_of_calibration() -> None:
    engine = ridgeline.build(mlp(), precision="fp16", data=inputs(1), **QUICK)
    assert any("too few to hold any back" in line for line in engine.report.warnings)
    assert not engine.report.precision.held_out
    assert "on 1 calibration sample" in _precision_text(summarise(engine.plan, engine.report))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"precision": "fp17"}, "fp16"),
        ({"precision": "FP16"}, "did you mean 'fp16'"),
        ({"precision": "fp16", "keep": "bf16:norm"}, "cannot be kept in 'bf16'"),
        ({"budget": 0.1}, "for models that are lowered"),
        ({"precision": "fp16", "budget": 0}, "not a number above 0"),
        ({"precision": "fp16", "budget": float("nan")}, "not a number above 0"),
        ({"precision": "fp16", "keep": "norm"}, "TYPE:PATTERN"),
        ({"precision": "fp16", "metric": 3}, "not a function"),
        ({"precision": "fp16", "metric": len}, "needs a budget"),
        ({"precision": "fp16", "io": "int8"}, "not known"),
        ({"data": [{}]}, "not a folder"),
    ],
)
def test_options_that_do_not_fit(given: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        ridgeline.build(mlp(), **given, **QUICK)


def test_a_compiled_module_takes_a_precision() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 8)).eval()
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
    compiled = ridgeline.compile(module, (x,), precision="fp16", **QUICK)
    with torch.inference_mode():
        want, got = module(x), compiled(x)
    assert got.dtype == want.dtype
    assert 0 < relative_l2(got.numpy(), want.numpy()) <= BUDGET
