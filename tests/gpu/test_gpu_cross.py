"""Engines built without a GPU, on one: they settle at the first run, compile nothing and need no Triton."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ridgeline
from cross_models import MODELS
from offers import offered
from ridgeline.errors import PlanError
from ridgeline.runtime.device import DeviceError, current_device

BUILD = """
import sys, ridgeline
sys.path.append({tests!r})
from cross_models import MODELS
for name, make in MODELS.items():
    engine = ridgeline.build(make(), target={target!r})
    assert engine.plan.is_predicted
    engine.save(f"{folder}/{{name}}.ridge")
"""
RUN = """
import json, sys, time
sys.modules["triton"] = None
import ridgeline, ridgeline.builder  # libraries are imported before the clock starts
start = time.perf_counter()
engine = ridgeline.load({path!r}, trust={trust!r})
load_s = time.perf_counter() - start
was_predicted = engine.plan.is_predicted
engine.run(engine.example_inputs(0))
engine.save({again!r})
print(json.dumps({{
    "load_s": load_s, "was_predicted": was_predicted, "is_predicted": engine.plan.is_predicted,
    "verified": engine.report.verified, "checks": [c.name for c in engine.report.checks],
    "tactics": [s.tactic for s in engine.plan.steps], "notes": engine.notes,
}}))
"""


def python(code: str, home: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """In an account of its own: no cache, no seal of ours."""
    home.mkdir(exist_ok=True)
    environment = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), **more}
    environment.pop("TRITON_INTERPRET", None)
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="session")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every model, built for this GPU where it cannot be seen."""
    folder = tmp_path_factory.mktemp("elsewhere")
    tests = str(Path(__file__).parents[1])
    target = f"cuda:{current_device().arch}"
    code = BUILD.format(tests=tests, target=target, folder=folder)
    done = python(code, folder / "home", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    return folder


def run_there(path: Path, tmp_path: Path, *, trust: bool = True) -> dict[str, Any]:
    code = RUN.format(path=str(path), trust=trust, again=str(tmp_path / "settled.ridge"))
    done = python(code, tmp_path / "home")
    assert done.returncode == 0, done.stderr
    made: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return made


@pytest.mark.parametrize("name", MODELS)
def test_the_first_run_settles_and_verifies_without_triton(
    name: str, elsewhere: Path, tmp_path: Path
) -> None:
    told = run_there(elsewhere / f"{name}.ridge", tmp_path)
    assert told["was_predicted"]
    assert not told["is_predicted"]
    assert told["verified"]
    assert "first run on its GPU" in told["checks"]
    assert told["notes"] == [], "everything that was planned could be had"
    assert told["load_s"] < 2
    again = ridgeline.load(tmp_path / "settled.ridge", trust=True)
    assert not again.plan.is_predicted
    assert [step.tactic for step in again.plan.steps] == told["tactics"]
    again.run(again.example_inputs(0))


def test_kernels_of_strangers_without_triton_are_an_error(elsewhere: Path, tmp_path: Path) -> None:
    code = RUN.format(path=str(elsewhere / "mlp.ridge"), trust=False, again=str(tmp_path / "no.ridge"))
    done = python(code, tmp_path / "home")
    assert done.returncode == 1
    assert PlanError.__name__ in done.stderr
    assert "--trust" in done.stderr


def test_an_engine_for_another_gpu_is_refused() -> None:
    other = "sm_80" if current_device().arch != "sm_80" else "sm_90"
    engine = ridgeline.build(MODELS["mlp"](), target=f"cuda:{other}", level=0)
    with pytest.raises(DeviceError, match="another GPU"):
        engine.run(engine.example_inputs(0))


def test_what_is_foretold_is_what_is_bound(engine: ridgeline.Engine) -> None:
    """The memory of an engine for another machine is planned from this alone."""
    tactics = engine.fused.tactics
    for step in engine.variants[0].executable.instance(engine.plan.planned_shapes).steps:
        if step.launch is None:
            continue
        plan = engine.plan.steps[step.index]
        tactic = tactics[plan.tactic]
        footprint = offered(tactic, step.site).footprint
        assert footprint is not None, plan.tactic
        told = footprint(plan.config)
        assert told.writes_out == step.launch.writes_out, plan.tactic
        assert told.in_place == step.launch.in_place, plan.tactic
