"""What is remembered about a model saves time, and never lets a wrong engine through."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ridgeline
from ridgeline.errors import VerifyError
from ridgeline.frontend.from_onnx import load
from ridgeline.plan.report import Check
from ridgeline.tactics.base import Launch
from ridgeline.tactics.cpu.cpp import CppGemv
from ridgeline.verify.reference import Reference
from ridgeline.verify.remembered import FROM_CACHE, Facts


def build(model: Path, cache: Path) -> Any:
    return ridgeline.build(model, level=0, without=("ort",), timing_cache=cache)


def remembered(checks: tuple[Check, ...]) -> list[str]:
    return [check.name for check in checks if FROM_CACHE in check.note]


def test_a_second_build_remembers_and_says_so(tiny_model: Path, tmp_path: Path) -> None:
    first, second = (build(tiny_model, tmp_path / "timings.toml").report for _ in range(2))
    assert remembered(first.checks) == []
    assert "fused against unfused graph" in remembered(second.checks)
    assert "planned shapes" in remembered(second.checks)
    # the engine was run again, and its outputs compared with the same tolerances
    assert [(c.name, c.tolerance) for c in first.checks] == [(c.name, c.tolerance) for c in second.checks]


def test_nothing_is_remembered_without_a_cache(tiny_model: Path) -> None:
    for _ in range(2):
        engine = ridgeline.build(tiny_model, level=0)
        assert remembered(engine.report.checks) == []


def test_a_wrong_kernel_fails_with_everything_remembered(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "timings.toml"
    build(tiny_model, cache)
    assert remembered(build(tiny_model, cache).report.checks)
    right = CppGemv._bind

    def wrong(self: CppGemv, *arguments: Any) -> Launch:
        launch = right(self, *arguments)

        def call(inputs: Any, outputs: Any) -> None:
            launch.call(inputs, outputs)
            outputs[0].view(-1)[-1] += 0.01

        return Launch(call, writes_out=True)

    monkeypatch.setattr(CppGemv, "_bind", wrong)
    with pytest.raises(VerifyError, match=r"cpp\.gemv"):
        build(tiny_model, cache)


def test_a_fusion_that_changes_a_weight_is_met_again(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "timings.toml"
    build(tiny_model, cache)
    right = ridgeline.builder.canonicalise

    def wrong(model: Any, **options: Any) -> Any:
        refusals = right(model, **options)
        value = model.graph.initializers["fc_b"]
        value.const_value = ir.tensor(value.const_value.numpy() + np.float32(0.01), name=value.name)
        return refusals

    monkeypatch.setattr(ridgeline.builder, "canonicalise", wrong)
    with pytest.raises(VerifyError, match="fused against unfused graph"):
        build(tiny_model, cache)


def test_another_weight_is_another_model(tiny_model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "timings.toml"
    build(tiny_model, cache)
    model = onnx.load(tiny_model)
    weight = model.graph.initializer[0]
    array = onnx.numpy_helper.to_array(weight).copy()
    array.flat[-1] += 1e-3
    weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
    onnx.save(model, tiny_model)
    assert remembered(build(tiny_model, cache).report.checks) == []


def test_keys_name_all_that_a_fact_depends_on(tiny_model: Path, tmp_path: Path) -> None:
    facts = Facts(tmp_path / "facts.json")
    one, same = (Reference(load(tiny_model), threads=1, facts=facts) for _ in range(2))
    x = {"x": np.zeros((1, 3, 32, 32), np.float32)}
    other = {"x": np.ones((1, 3, 32, 32), np.float32)}
    wide = {"x": np.zeros((3, 3, 32, 32), np.float32)}
    key = one.fact_key("tolerance", x)
    assert key == same.fact_key("tolerance", x)
    others = [
        one.fact_key("fused", x),
        one.fact_key("tolerance", x, "another graph"),
        one.fact_key("tolerance", other),
        one.fact_key("tolerance", wide),
        Reference(load(tiny_model), threads=2, facts=facts).fact_key("tolerance", x),
    ]
    assert len({key, *others}) == 1 + len(others)


@pytest.mark.parametrize("harm", ["loosened", "torn", "a list"])
def test_a_damaged_file_is_reported_and_ignored(tiny_model: Path, tmp_path: Path, harm: str) -> None:
    cache = tmp_path / "timings.toml"
    build(tiny_model, cache)
    path = tmp_path / "timings.toml.facts.json"
    text = path.read_text()
    raw = json.loads(text)
    key = next(key for key in raw["facts"] if key.startswith("tolerance"))
    raw["facts"][key]["y"] = [1e9, 0.0]
    path.write_text({"loosened": json.dumps(raw), "torn": text[:-40], "a list": "[1]"}[harm])
    report = build(tiny_model, cache).report
    assert any("facts.json is damaged" in warning for warning in report.warnings)
    assert remembered(report.checks) == []
    assert max(check.tolerance for check in report.checks) < 1


def test_edited_outputs_of_the_reference_are_not_believed(tiny_model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "timings.toml"
    build(tiny_model, cache)
    kept = sorted((tmp_path / "timings.toml.facts").glob("*.npz"))
    assert kept
    for path in kept:
        with np.load(path) as arrays:
            moved = {name: arrays[name] + 1 for name in arrays.files}
        np.savez(path, **moved)
    engine = build(tiny_model, cache)  # computed again, so the engine still passes
    assert all(check.passed for check in engine.report.checks)
