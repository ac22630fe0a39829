"""Builds as a whole: verified, reproducible from a lock, quick from a cache, honest when wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import ridgeline
from ridgeline import builder
from ridgeline.errors import BuildError, ModelError, OptionError, VerifyError
from ridgeline.frontend.from_onnx import load
from ridgeline.tactics.base import Launch
from ridgeline.tactics.cache import CACHE_TITLE, TimingCache
from ridgeline.tactics.cpu.cpp import CppGemv
from ridgeline.verify.compare import compare
from ridgeline.verify.reference import Reference
from ridgeline.verify.remembered import digest_arrays

NORM = """<ir_version: 10, opset_import: ["": 20]>
g (float[N,16] x) => (float[N,16] y) <float[16] s = {1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}> {
  m = ReduceMean <keepdims = 1> (x, axes) d = Sub(x, m) q = Mul(d, d) v = ReduceMean <keepdims = 1> (q, axes)
  e = Add(v, eps) r = Sqrt(e) n = Div(d, r) y = Mul(n, s)
}"""


def norm_model() -> onnx.ModelProto:
    model = onnx.parser.parse_model(NORM)
    model.graph.initializer.extend(
        [
            onnx.numpy_helper.from_array(np.array([-1]), "axes"),
            onnx.numpy_helper.from_array(np.array([1e-5], np.float32), "eps"),
        ]
    )
    return model


@pytest.mark.parametrize("as_what", ["path", "str", "bytes", "proto", "ir"])
def test_every_kind_of_source(tiny_model: Path, as_what: str) -> None:
    sources: dict[str, Any] = {
        "path": tiny_model,
        "str": str(tiny_model),
        "bytes": tiny_model.read_bytes(),
        "proto": onnx.load(tiny_model),
        "ir": ir.load(tiny_model),
    }
    engine = ridgeline.build(sources[as_what], level=0, verify="fast")
    assert engine.report.verified


def test_a_full_build_is_verified_in_many_ways(tiny_model: Path) -> None:
    engine = ridgeline.build(tiny_model, level=1)
    names = {check.name for check in engine.report.checks}
    assert names >= {
        "planned shapes",
        "batch 1 against 3",
        "rows in another order",
        "same input again",
        "plan and graph written and read",
        "fused against unfused graph",
    }
    assert engine.report.verified
    assert "onnxruntime" in engine.report.reference
    assert engine.report.call_overhead_us is not None


def test_profiles_are_verified_at_their_corners(tiny_model: Path) -> None:
    engine = ridgeline.build(tiny_model, level=0, profiles={"x": "1..4x3x32x32"})
    names = {check.name for check in engine.report.checks}
    assert {"min shapes", "max shapes"} <= names
    assert engine.plan.planned_shapes["x"].shape == (2, 3, 32, 32)


def test_the_layer_norm_is_found_and_explained() -> None:
    engine = ridgeline.build(norm_model(), level=0)
    assert [region.op_types for region in engine.plan.regions] == [("LayerNormalization",)]
    assert len(engine.plan.regions[0].sources) >= 7


def test_two_builds_from_one_lock_are_byte_identical(tiny_model: Path, tmp_path: Path) -> None:
    lock = tmp_path / "tiny.lock"
    first = ridgeline.build(tiny_model, level=1, lock=lock, verify="off")
    text = lock.read_text()
    second = ridgeline.build(tiny_model.read_bytes(), level=1, lock=lock, verify="off")
    third = ridgeline.build(tiny_model, level=1, lock=lock, verify="off")
    assert third.plan.to_json() == first.plan.to_json()
    assert replace(second.plan, model=first.plan.model).to_json() == first.plan.to_json()
    assert lock.read_text() == text


def test_an_edited_lock_is_obeyed(tiny_model: Path, tmp_path: Path) -> None:
    lock = tmp_path / "tiny.lock"
    first = ridgeline.build(tiny_model, level=1, lock=lock, verify="off")
    pinned = TimingCache.read(lock)
    key, entry = next((k, e) for k, e in pinned.entries.items() if k.startswith("plan"))
    others = (i for i, c in enumerate(entry.candidates) if c.refused is None and i != entry.chosen)
    entry = pinned.entries[key] = replace(entry, chosen=next(others))
    pinned.write(lock)
    second = ridgeline.build(tiny_model, level=1, lock=lock, verify="off")
    assert second.plan.alternatives[0].tactic == entry.candidates[entry.chosen].tactic
    assert second.plan.alternatives[0].tactic != first.plan.alternatives[0].tactic


def test_a_lock_of_another_model_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    lock = tmp_path / "tiny.lock"
    ridgeline.build(norm_model(), level=1, lock=lock, verify="off")
    with pytest.raises(BuildError, match="the lock file does not cover"):
        ridgeline.build(tiny_model, level=1, lock=lock, verify="off")


def test_a_damaged_lock_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    lock = tmp_path / "tiny.lock"
    lock.write_text("format = nonsense")
    with pytest.raises(OptionError, match="damaged"):
        ridgeline.build(tiny_model, level=1, lock=lock, verify="off")


def test_a_warm_cache_times_nothing(tiny_model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "timings.toml"
    cold = ridgeline.build(tiny_model, level=1, timing_cache=cache, verify="off")
    warm = ridgeline.build(tiny_model, level=1, timing_cache=cache, verify="off")
    assert cold.report.sites_timed > 0
    assert warm.report.sites_timed == 0
    assert warm.plan == cold.plan


def test_a_damaged_cache_is_reported_and_ignored(tiny_model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "timings.toml"
    cache.write_text(CACHE_TITLE + "}{")
    engine = ridgeline.build(tiny_model, level=1, timing_cache=cache, verify="off")
    assert any("damaged" in warning for warning in engine.report.warnings)


@pytest.mark.parametrize(
    ("option", "content", "message"),
    [
        ("lock", "}{", "cannot be used"),
        ("lock", "format = 9", "cannot be used"),
        ("data", None, "no .npz file is in"),
        ("data", b"", "photo.npz' does not load"),
    ],
)
def test_a_lock_or_data_that_cannot_be_used_is_refused_before_any_work(
    tiny_model: Path, tmp_path: Path, option: str, content: str | bytes | None, message: str
) -> None:
    path = tmp_path
    if isinstance(content, str):
        path = tmp_path / "ridge.lock"
        path.write_text(content)
    elif content is not None:
        (tmp_path / "photo.npz").write_bytes(content)
    stages: list[str] = []
    with pytest.raises(OptionError, match=message) as caught:
        ridgeline.build(tiny_model, progress=lambda stage, *_: stages.append(stage), **{option: path})
    assert "ignored" not in str(caught.value)
    assert "passes" not in stages


@pytest.mark.parametrize("harm", ["scale", "one element", "nan"])
def test_a_wrong_kernel_fails_the_build_by_name(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    right = CppGemv._bind

    def wrong(self: CppGemv, *arguments: Any) -> Launch:
        launch = right(self, *arguments)

        def call(inputs: Any, outputs: Any) -> None:
            launch.call(inputs, outputs)
            if harm == "scale":
                outputs[0].mul_(1.0001)
            elif harm == "one element":
                outputs[0].view(-1)[-1] += 0.01
            else:
                outputs[0].view(-1)[0] = float("nan")

        return Launch(call, writes_out=True)

    monkeypatch.setattr(CppGemv, "_bind", wrong)
    with pytest.raises(VerifyError) as caught:
        ridgeline.build(tiny_model, level=0, without=("ort",))
    if harm != "scale":
        assert "first diverging region" in str(caught.value)
        assert "cpp.gemv" in str(caught.value)


def test_a_model_that_makes_only_nan_is_refused() -> None:
    head = '<ir_version: 10, opset_import: ["": 20]>'
    text = f"{head} g (float[2] x) => (float[2] y) {{ z = Sub(x, x) y = Div(z, z) }}"
    with pytest.raises(ModelError, match="itself computes NaN"):
        ridgeline.build(onnx.parser.parse_model(text), level=0)


def test_users_data_is_verified_with(tiny_model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "photo.npz", x=np.ones((2, 3, 32, 32), np.float32))
    engine = ridgeline.build(tiny_model, level=0, verify="fast", data=tmp_path)
    assert "photo.npz" in {check.name for check in engine.report.checks}


@pytest.mark.parametrize(("name", "text"), [("z", "holds no array for 'x'"), ("", "no .npz file")])
def test_users_data_that_does_not_fit(tiny_model: Path, tmp_path: Path, name: str, text: str) -> None:
    if name:
        np.savez(tmp_path / "bad.npz", **{name: np.ones(3)})
    with pytest.raises(OptionError, match=text):
        ridgeline.build(tiny_model, level=0, verify="fast", data=tmp_path)


@pytest.mark.parametrize(
    ("profiles", "text"),
    [
        ({"y": "1x3x32x32"}, "no input 'y'"),
        ({"x": "1x3x32"}, "does not fit the model"),
        ({"x": "1x4x32x32"}, "does not fit the model"),
        ({"x": "4..1x3x32x32"}, "out of order"),
        ({"x": "axbxc"}, "does not read as one"),
    ],
)
def test_profiles_that_do_not_fit(tiny_model: Path, profiles: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        ridgeline.build(tiny_model, level=0, verify="off", profiles=profiles)


def test_leaving_out_a_tactic_that_does_not_exist(tiny_model: Path) -> None:
    with pytest.raises(OptionError, match="did you mean 'onednn'"):
        ridgeline.build(tiny_model, level=0, without=("onedn",))


def test_progress_is_true(tiny_model: Path) -> None:
    told: list[tuple[str, int, int]] = []
    ridgeline.build(tiny_model, level=1, progress=lambda *row: told.append(row[:3]))
    for stage in ("time", "verify"):
        steps = [(done, total) for name, done, total in told if name == stage and total]
        assert [done for done, _ in steps] == sorted(done for done, _ in steps)
        assert steps[-1][0] == steps[-1][1]


def test_onnx_backend_runs_a_model(tiny_model: Path) -> None:
    backend = ridgeline.onnx_backend
    x = np.ones((1, 3, 32, 32), np.float32)
    (y,) = backend.run_model(onnx.load(tiny_model), [x])
    assert y.shape == (1, 10)
    assert backend.supports_device("CPU")
    assert not backend.supports_device("CUDA")


def test_workspace_bounds_packed_weights(tiny_model: Path) -> None:
    free = ridgeline.build(tiny_model, level=1, verify="off", without=("ort",))
    bound = ridgeline.build(tiny_model, level=1, verify="off", without=("ort",), workspace_bytes=0)
    assert free.plan.memory.packed_bytes > 0
    assert bound.plan.memory.packed_bytes == 0
    reasons = [c.refused or "" for region in bound.plan.regions for c in region.candidates]
    assert any("workspace_bytes allows 0" in reason for reason in reasons)


def test_a_lock_holds_at_any_level(tiny_model: Path, tmp_path: Path) -> None:
    lock = tmp_path / "tiny.lock"
    first = ridgeline.build(tiny_model, level=1, lock=lock, verify="off")
    second = ridgeline.build(tiny_model, level=2, lock=lock, verify="off")
    assert second.plan.to_json() == first.plan.to_json()


def test_a_lock_that_names_a_left_out_tactic(tiny_model: Path, tmp_path: Path) -> None:
    lock = tmp_path / "tiny.lock"
    ridgeline.build(tiny_model, level=0, lock=lock, verify="off")
    with pytest.raises(BuildError, match="names tactics that this build leaves out"):
        ridgeline.build(tiny_model, level=0, lock=lock, verify="off", without=("ort", "cpp", "onednn"))


def test_guessed_shapes_are_said(tiny_model: Path) -> None:
    engine = ridgeline.build(tiny_model, level=0, verify="off")
    assert "shapes were guessed" in engine.report.warnings[0]
    assert "--shapes x=1x3x32x32" in engine.report.warnings[0]
    told = ridgeline.build(tiny_model, level=0, verify="off", profiles={"x": "1x3x32x32"})
    assert not told.report.warnings


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"progress": True}, "progress is not a function"),
        ({"level": 2.5}, "level is not a whole number"),
        ({"threads": 10**6}, "threads is out of range"),
        ({"data": "nowhere"}, "there is no folder 'nowhere'"),
    ],
)
def test_options_are_refused_before_any_work(tiny_model: Path, option: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        ridgeline.build(tiny_model, **option)


HEAD = '<ir_version: 10, opset_import: ["": 20]>'


def test_double_models_are_verified_at_their_own_precision() -> None:
    model = onnx.parser.parse_model(
        f"{HEAD} g (double[2,64] x) => (double[2,64] y) {{ a = MatMul(x, w) y = Tanh(a) }}"
    )
    weight = np.random.default_rng(0).standard_normal((64, 64)) / 8
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    engine = ridgeline.build(model, level=0, without=("ort",))
    assert engine.report.verified
    assert max(c.tolerance for c in engine.report.checks) < 1e-12


def test_outputs_declared_wrongly_are_not_believed() -> None:
    model = onnx.parser.parse_model(f"{HEAD} g (float[2] x) => (float[2,7] y) {{ y = Exp(x) }}")
    engine = ridgeline.build(model, level=0)
    assert any("'y' is declared [2, 7] and is [2]" in line for line in engine.report.warnings)
    assert engine.run({"x": np.zeros(2, np.float32)})["y"].shape == (2,)


@pytest.mark.parametrize(
    ("text", "output", "harm"),
    [
        ("g (float[4] x) => (float[4] y) { a = Sub(x, x) y = Log(a) }", "y", np.negative),
        (
            "g (float[4] x) => (int64[4] y) { a = Mul(x, big) y = Cast <to = 7> (a) }",
            "y",
            lambda y: y * 0 + 12345,
        ),
    ],
)
def test_special_values_and_integers_are_compared(text: str, output: str, harm: Any) -> None:
    model = onnx.parser.parse_model(f"{HEAD} {text}")
    if "big" in text:
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1e9], np.float32), "big"))
    loaded = load(model)
    reference = Reference(loaded, threads=1)
    feeds = {"x": np.array([0.1, 0.7, -1.3, 2.9], np.float32)}
    want = reference.run(feeds)
    limits = reference.tolerance(feeds, want)
    assert all(check.passed for check in compare("same", want, want, limits, ""))
    harmed = {output: harm(want[output]).astype(want[output].dtype)}
    assert not all(check.passed for check in compare("harmed", harmed, want, limits, ""))


def test_a_bias_per_row_is_not_taken_for_channels() -> None:
    rng = np.random.default_rng(0)
    arrays = {n: rng.standard_normal(4).astype(np.float32) for n in "sbm"} | {"v": np.ones(4, np.float32)}
    arrays["w"] = rng.standard_normal((4, 4)).astype(np.float32)
    arrays["c"] = rng.standard_normal((4, 1)).astype(np.float32)
    model = onnx.parser.parse_model(
        f"{HEAD} g (float[4,4] x) => (float[4,4] y) "
        "{ p = Gemm(x, w, c) y = BatchNormalization(p, s, b, m, v) }"
    )
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in arrays.items())
    assert ridgeline.build(model, level=0, without=("ort",)).report.verified


def test_what_the_original_refuses_reaches_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index outside its table: the reference says so before a candidate is bound."""
    monkeypatch.setattr(builder, "select_every", lambda *_, **__: pytest.fail("selection has begun"))
    text = """<ir_version: 10, opset_import: ["": 20]>
    g (float[2,4] x) => (float y) <int64 i = {9}> {
      r = Relu(x) s = Gather(r, i) y = ReduceSum <keepdims = 0> (s)
    }"""
    with pytest.raises(BuildError, match="does not run at the planned shapes"):
        ridgeline.build(onnx.parser.parse_model(text), level=0)


def test_the_planned_inputs_run_once_through_the_reference(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    run = Reference._run_or_find
    monkeypatch.setattr(
        Reference,
        "_run_or_find",
        lambda self, feeds: ran.append(digest_arrays(feeds)) or run(self, feeds),
    )
    engine = ridgeline.build(tiny_model, level=0, verify="fast")
    assert ran == [digest_arrays(engine.example_inputs(0))]
