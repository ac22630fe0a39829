"""Builds for a GPU that is not here: predicted, compiled, planned, saved, and pinned by a lock."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ridgeline
from cross_models import MODELS, convnet, mlp
from offers import offered, why_not
from ridgeline.base.spec import Config, Site, Target
from ridgeline.builder import fuse, fused_model, selection_contexts
from ridgeline.errors import OptionError, PlanError
from ridgeline.frontend.from_onnx import load
from ridgeline.kernels.scalar.program import Program
from ridgeline.kernels.triton import compiler
from ridgeline.kernels.triton.source import triton_version
from ridgeline.kernels.triton.stage import Stages
from ridgeline.options import DEFAULT_LIMITS, make_options
from ridgeline.passes.pipeline import canonicalise
from ridgeline.runtime.device import DeviceError
from ridgeline.runtime.engine import Engine
from ridgeline.runtime.inference import Inference
from ridgeline.runtime.profiles import load_variants
from ridgeline.select.loop import select
from ridgeline.select.retune import embedded
from ridgeline.select.shapes import choose_every_shapes
from ridgeline.tactics.aten import Aten
from ridgeline.tactics.cache import TimingCache
from ridgeline.tactics.cuda.triton_codegen import TritonPointwise
from ridgeline.targets import machine_of

ARCHS = ("sm_90", "sm_80")


@cache
def built(name: str, arch: str) -> Engine:
    return ridgeline.build(MODELS[name](), target=f"cuda:{arch}")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return built("mlp", "sm_90").save(tmp_path / "mlp.ridge")


@pytest.fixture
def no_triton(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(sys.modules, "triton", None)
    triton_version.cache_clear()
    yield
    monkeypatch.undo()
    triton_version.cache_clear()


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another user's account: what was sealed before is not its own."""
    monkeypatch.setenv("HOME", str(tmp_path / "elsewhere"))


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", MODELS)
def test_every_choice_is_predicted_and_compiled(name: str, arch: str) -> None:
    engine = built(name, arch)
    plan, report = engine.plan, engine.report
    assert str(plan.target) == f"cuda:{arch}"
    assert plan.is_predicted
    for step in plan.steps:
        assert step.median_us is None
        assert step.predicted_us is None or step.predicted_us > 0
    own = {step.tactic for step in plan.steps if step.kernels}
    assert own, "small work is for our own kernels"
    assert all(tactic.startswith("triton.") for tactic in own)
    assert not report.verified, "no kernel has run"
    assert "first run" in report.unverified
    assert {check.name for check in report.checks} >= {"fused against unfused graph"}
    assert all(check.passed for check in report.checks)
    assert plan.memory.arena_bytes > 0


def test_equal_layers_share_their_kernels() -> None:
    steps = built("transformer", "sm_90").plan.steps
    digests = [digest for step in steps for digest in step.kernels]
    assert len(set(digests)) <= len(digests) / 2


def test_the_best_of_another_tactic_is_on_board() -> None:
    engine = built("mlp", "sm_90")
    for step in engine.plan.steps:
        assert step.losers[0].tactic != step.tactic
        assert "predicted" in step.why


def test_older_gpus_launch_without_dependence(tmp_path: Path) -> None:
    for arch in ARCHS:
        engine = ridgeline.load(built("mlp", arch).save(tmp_path / f"{arch}.ridge"))
        assert {made.pdl for made in engine.fused.kernels.compiled.values()} == {arch == "sm_90"}
        assert {made.arch for made in engine.fused.kernels.compiled.values()} == {arch}
        assert not any(made.spills for made in engine.fused.kernels.compiled.values())


def test_a_lock_gives_the_same_plan(tmp_path: Path) -> None:
    lock = tmp_path / "ridge.lock"
    first = ridgeline.build(mlp(), target="cuda:sm_90", lock=lock, verify="off")
    again = ridgeline.build(mlp(), target="cuda:sm_90", lock=lock, verify="off")
    assert "predicted" in lock.read_text()
    assert again.plan.to_json() == first.plan.to_json()


def test_timings_measured_elsewhere_decide(tmp_path: Path) -> None:
    """A cache that the user names counts, whatever machine it comes from, and the report says so."""
    lock, cache_file = tmp_path / "ridge.lock", tmp_path / "timings.toml"
    engine = ridgeline.build(mlp(), target="cuda:sm_90", lock=lock, verify="off")
    entries = TimingCache.read(lock)
    for entry in entries.entries.values():
        entry.context = "some code | some torch | NVIDIA H200 sm_90"
        library = next(i for i, m in enumerate(entry.candidates) if m.tactic == "cublas")
        timed = [
            replace(m, predicted_us=None, median_us=5.0 - (i == library)) if m.refused is None else m
            for i, m in enumerate(entry.candidates)
        ]
        entry.candidates, entry.chosen = tuple(timed), library
    entries.write(cache_file)
    other = ridgeline.build(mlp(), target="cuda:sm_90", timing_cache=cache_file, verify="off")
    assert {step.tactic for step in other.plan.steps} == {"cublas"}
    assert {step.tactic for step in engine.plan.steps} != {"cublas"}
    assert not other.plan.is_predicted
    assert any("NVIDIA H200" in warning for warning in other.report.warnings)


def test_a_stale_lock_is_refused(tmp_path: Path) -> None:
    lock = tmp_path / "ridge.lock"
    ridgeline.build(mlp(), target="cuda:sm_90", lock=lock, verify="off")
    with pytest.raises(ridgeline.errors.BuildError, match="does not cover"):
        ridgeline.build(convnet(), target="cuda:sm_90", lock=lock, verify="off")


class Broken(TritonPointwise):
    """Generated text with a mistake in it."""

    name = "triton.broken"

    def stages(self, site: Site, program: Program, config: Config) -> Stages:
        made = super().stages(site, program, config)
        (stage,) = made.launches
        text = stage.kernel.text.replace("tl.load", "tl.lode")
        return replace(made, launches=(replace(stage, kernel=replace(stage.kernel, text=text)),))


def test_a_kernel_that_does_not_compile_is_refused_and_the_build_goes_on() -> None:
    text = (
        '<ir_version: 10, opset_import: ["": 20]> g (float16[64,64] x) => (float16[64,64] y) {y = Relu (x)}'
    )
    options = make_options({"target": "cuda:sm_90"})
    loaded = load(ridgeline.onnx_backend.onnx.parser.parse_model(text))
    target = Target("cuda", "sm_90", 1)
    canonicalise(loaded.model, target=target)
    unfused = Inference.of(loaded.model, DEFAULT_LIMITS)
    (shapes,) = choose_every_shapes(loaded, unfused, None, options)
    fuse(loaded, unfused.at(shapes.opt), target, options)
    fused = fused_model(loaded, [shapes], options, machine_of(target))
    fused = replace(
        fused, tactics={"triton.broken": Broken(), "aten": Aten(dict(loaded.model.opset_imports))}
    )
    (context,) = selection_contexts(fused, [shapes], options, machine_of(target))
    selection = select(context)
    (step,) = selection.steps
    assert step.tactic == "aten"
    refused = [m for m in step.entry.candidates if m.tactic == "triton.broken"]
    assert refused
    assert all("lode" in (m.refused or "") for m in refused)


def test_a_choice_without_its_gpu_is_valid_over_the_whole_profile() -> None:
    graph = "g (float16[N,256] x) => (float16[N,256] y) {y = MatMul (x, w)}"
    model = ridgeline.onnx_backend.onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 20]> {graph}'
    )
    weight = np.ones((256, 256), np.float16)
    model.graph.initializer.append(ridgeline.onnx_backend.onnx.numpy_helper.from_array(weight, "w"))
    options: dict[str, Any] = {"target": "cuda:sm_90", "verify": "off", "level": 0}
    (alone,) = ridgeline.build(model, **options, profiles={"N": "1"}).plan.steps
    assert alone.tactic == "triton.gemv"
    (step,) = ridgeline.build(model, **options, profiles={"N": "1..1..64"}).plan.steps
    refused = {c.tactic: c.refused for c in step.losers}
    assert step.tactic != "triton.gemv"
    assert refused["triton.gemv"] == "not over the whole profile: 64 rows, want at most 16"


def test_the_file_comes_back_whole(saved: Path, tmp_path: Path) -> None:
    engine, loaded = built("mlp", "sm_90"), ridgeline.load(saved)
    assert loaded.plan == engine.plan
    assert loaded.report.unverified == engine.report.unverified
    assert loaded.fused.kernels.left_out == "", "made by this user on this machine"
    assert {digest for step in loaded.plan.steps for digest in step.kernels} <= set(
        loaded.fused.kernels.compiled
    )
    assert set(loaded.expected) == {"given/x", "wanted/y"}
    again = loaded.save(tmp_path / "again.ridge")
    assert ridgeline.load(again).fused.kernels.compiled == loaded.fused.kernels.compiled


def test_without_its_gpu_an_engine_says_so(saved: Path) -> None:
    with pytest.raises(DeviceError, match="no GPU"):
        ridgeline.load(saved).run({})
    with pytest.raises(DeviceError, match="no GPU"):
        ridgeline.build(mlp(), target="cuda")


@pytest.mark.parametrize("target", ["cuda:sm90", "cuda:90", "cuda:sm_9", "gpu"])
def test_a_target_that_does_not_exist(target: str) -> None:
    with pytest.raises(OptionError, match="cannot be built for") as caught:
        ridgeline.build(mlp(), target=target)
    assert "cuda:sm_90" in str(caught.value)


def tactics_of(engine: Engine) -> dict[str, Any]:
    return dict(engine.fused.tactics)


def test_kernels_of_strangers_are_left_alone(saved: Path, stranger: None) -> None:
    engine = ridgeline.load(saved)
    assert "not made on this machine" in engine.fused.kernels.left_out
    assert engine.fused.kernels.compiled, "they can still be looked at"
    assert not engine.fused.kernels.store.embedded
    trusted = ridgeline.load(saved, trust=True)
    assert trusted.fused.kernels.left_out == ""
    assert set(trusted.fused.kernels.store.embedded) == set(trusted.fused.kernels.compiled)


def test_without_triton_trusted_kernels_do_and_others_are_an_error(
    saved: Path, stranger: None, no_triton: None
) -> None:
    engine = ridgeline.load(saved)
    with pytest.raises(PlanError, match="--trust") as caught:
        engine.variants[0].executable.require_kernels()
    assert "Triton is not installed" in str(caught.value)
    trusted = ridgeline.load(saved, trust=True)
    trusted.variants[0].executable.require_kernels()
    for step, site in trusted.planned_sites():
        tactic = tactics_of(trusted)[step.tactic]
        made = compiler.compile_kernels(
            offered(tactic, site).kernels(step.config), site.target.arch, store=trusted.fused.kernels.store
        )
        assert all(isinstance(m, compiler.Compiled) for m in made)


def test_trusted_kernels_are_of_one_engine_and_are_not_sealed_again(
    saved: Path, stranger: None, no_triton: None, tmp_path: Path
) -> None:
    trusted = ridgeline.load(saved, trust=True)
    again = ridgeline.load(trusted.save(tmp_path / "again.ridge"))
    assert again.fused.kernels.compiled == trusted.fused.kernels.compiled, "they are kept"
    assert "not made on this machine" in again.fused.kernels.left_out, "and are still a stranger's"
    for engine in (again, ridgeline.load(saved)):
        step, site = engine.planned_sites()[0]
        reason = why_not(tactics_of(engine)[step.tactic], site)
        assert reason == "Triton is not installed, and no kernels for sm_90 are embedded"


def test_without_triton_and_kernels_own_tactics_say_why(no_triton: None) -> None:
    engine = built("mlp", "sm_90")
    step, site = engine.planned_sites()[0]
    reason = why_not(tactics_of(engine)[step.tactic], site)
    assert reason == "Triton is not installed, and no kernels for sm_90 are embedded"


def test_only_what_is_on_board_competes_on_the_machine(saved: Path, tmp_path: Path) -> None:
    loaded = ridgeline.load(saved)
    # as on another machine: nothing but the file
    kernels = loaded.fused.kernels
    only_file = replace(kernels, store=replace(kernels.store, cache_dir=tmp_path / "none"))
    fused = replace(loaded.fused, kernels=only_file)
    loaded = Engine(load_variants(loaded.plan, fused, loaded.planner.bind_body), loaded.planner)
    for step, site in loaded.planned_sites():
        willing, refused = embedded(loaded.variants[0])(site)
        assert willing[0].tactic == step.tactic
        assert any(m.tactic == "cublas" for m in willing), "a library needs no embedded kernel"
        assert any(m.refused == "its kernels are not embedded" for m in refused)
        assert all(m.predicted_us is None for m in willing)
