"""Engines whose shapes were guessed: planned again at the first real ones, once, and taken over if faster."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from moving_models import close, expected, model_of, rand

import ridgeline
from ridgeline.analyze.bench import bench
from ridgeline.base.spec import Target, TensorSpec
from ridgeline.builder import PLANNER
from ridgeline.errors import BuildError
from ridgeline.options import Limits
from ridgeline.plan.report import GUESSED, Check, PlannedAgain
from ridgeline.runtime.engine import Engine
from ridgeline.runtime.forking import PerProcess
from ridgeline.runtime.planner import Replanned
from ridgeline.runtime.real_shapes import RUNS, RealShapes, UntunedBinding
from ridgeline.select.replanning import MODULE, plan_elsewhere
from ridgeline.select.retune import plan_at
from ridgeline.targets import machine_of

MODEL = """g (float[N,8] x) => (float[N,4] y) {
  a = MatMul(x, w) b = Add(a, c) r = Relu(b) s = Softmax(r) y = MatMul(s, v) }"""
WEIGHTS = {"w": rand(8, 16), "c": rand(16, seed=1), "v": rand(16, 4, seed=2)}
AGAIN = PlannedAgain("x[33x8]", 20.0, 10.0, is_taken=True, took_s=1.0)
REAL = {"x": TensorSpec("float32", (33, 8))}


def guessed(**options: Any) -> ridgeline.Engine:
    return ridgeline.build(
        model_of(MODEL, **WEIGHTS), **{"level": 1, "verify": "fast", "threads": 1, **options}
    )


@pytest.fixture(scope="module")
def engine_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return guessed().save(tmp_path_factory.mktemp("guessed") / "engine.ridge")


class InThisProcess:
    """A planner whose second plans are made here, and always said to be faster."""

    def __init__(self, engine: Engine, error: Exception | None = None) -> None:
        self.engine, self.error, self.asked = engine, error, []  # type: ignore[var-annotated]

    def __getattr__(self, name: str) -> Any:
        return getattr(PLANNER, name)

    def plan_again(self, file: Path, shapes: Mapping[str, TensorSpec], limits: Limits) -> Replanned:
        assert ridgeline.load(file).plan == self.engine.plan
        self.asked.append(dict(shapes))
        if self.error is not None:
            raise self.error
        timer = machine_of(self.engine.plan.target).timer(is_timed=True)
        plan = plan_at(self.engine.variants[0], shapes, timer)[0].plan
        return Replanned(
            AGAIN, plan, (Check("planned again: planned shapes", "y", "x[33x8]", 0.0, 1.0, passed=True),)
        )


def with_planner(file: Path, error: Exception | None = None) -> tuple[Engine, InThisProcess]:
    engine = ridgeline.load(file)
    planner = engine.planner = InThisProcess(engine, error)  # type: ignore[assignment]
    return engine, planner


def test_a_process_plans_again_and_the_better_plan_runs(engine_file: Path, tmp_path: Path) -> None:
    engine = ridgeline.load(engine_file)
    assert engine.plan.guess is not None
    assert any(line.startswith(GUESSED) for line in engine.report.warnings)
    feeds = {"x": rand(33, 8)}
    want = expected(model_of(MODEL, **WEIGHTS), feeds)
    close(engine.run(feeds), want)
    engine.wait()
    again = engine.report.planned_again
    assert again is not None, engine.report.warnings
    assert again.shapes == "x[33x8]"
    assert min(again.guessed_us, again.real_us, again.took_s) > 0
    assert engine.plan.guess is None
    assert (engine.plan.planned_shapes == REAL) == again.is_taken
    assert any(check.name.startswith("planned again") for check in engine.report.checks) == again.is_taken
    assert not any(line.startswith(GUESSED) for line in engine.report.warnings)
    close(engine.run(feeds), want)
    stored = ridgeline.load(engine.save(tmp_path / "again.ridge"))
    assert stored.plan == engine.plan
    assert stored.report.planned_again == again


def test_the_new_plan_is_taken_over_everywhere(engine_file: Path, tmp_path: Path) -> None:
    engine, planner = with_planner(engine_file)
    contexts = [engine.context(), engine.context()]
    rows = {contexts[0]: 33, contexts[1]: 5}
    for context, n in rows.items():
        context.run({"x": rand(n, 8)})
        engine._own.wait()
        context.run({"x": torch.from_numpy(rand(n, 8))})
    engine.wait()
    assert planner.asked == [{"x": TensorSpec("float32", (5, 8))}]  # those of the latest run
    for context, n in rows.items():
        made = context.run({"x": rand(n, 8)})
        close(made, expected(model_of(MODEL, **WEIGHTS), {"x": rand(n, 8)}))
        assert not isinstance(context._bindings[((n, 8),)], UntunedBinding)
    assert engine.report.planned_again == AGAIN
    assert engine.report.run_us == AGAIN.real_us
    assert "planned again: planned shapes" in {check.name for check in engine.report.checks}
    assert engine.plan.planned_shapes == planner.asked[0]
    assert engine.plan.why
    assert ridgeline.load(engine.save(tmp_path / "again.ridge")).plan.guess is None


def test_what_is_measured_is_planned_for_first(engine_file: Path) -> None:
    feeds = {"x": rand(33, 8)}
    engine, planner = with_planner(engine_file)
    trace = engine.profile(feeds, rounds=1)
    assert trace.shapes == {"x": "float32[33,8]"}
    report = bench(engine, feeds, duration_s=0.01, warmup_ms=0)
    assert planner.asked == [REAL]
    assert [line for line in report.warnings if str(AGAIN) in line]
    assert engine.plan.planned_shapes == REAL


def test_what_goes_wrong_is_said_and_the_engine_runs_on(engine_file: Path) -> None:
    engine, _ = with_planner(engine_file, BuildError("planning again failed", got="no memory"))
    feeds = {"x": rand(33, 8)}
    engine.run(feeds)
    engine.wait()
    assert [line for line in engine.report.warnings if "not planned again" in line]
    assert engine.report.planned_again is None
    close(engine.run(feeds), expected(model_of(MODEL, **WEIGHTS), feeds))
    engine.wait()


def test_guessed_shapes_that_come_change_nothing(engine_file: Path) -> None:
    engine, planner = with_planner(engine_file)
    for _ in range(2 * RUNS):
        engine.run(engine.example_inputs())
    engine.wait()
    assert not planner.asked
    assert engine.plan.guess is not None


@pytest.mark.parametrize(
    "options",
    [
        {"profiles": {"N": "1..4..64"}}, {"level": 0}, {"deterministic": True}, {"new_shapes": "wait"},
        {"target": "null"},
    ],
    ids=str,
)  # fmt: skip
def test_others_keep_their_plan(options: dict[str, Any]) -> None:
    assert guessed(**options).plan.guess is None


def test_a_lock_keeps_its_plan(tmp_path: Path) -> None:
    lock = tmp_path / "choices.lock"
    assert guessed(lock=lock).plan.guess is None  # this build writes it
    assert guessed(lock=lock).plan.guess is None


def test_shape_tensors_and_sequences_keep_their_plan() -> None:
    sized = model_of("g (float[N,8] x, int64[2] s) => (float[A,B] y) { y = Reshape(x, s) z = Relu(y) }")
    assert ridgeline.build(sized, level=1, verify="off", threads=1).plan.guess is None


def test_tactics_that_were_left_out_stay_out() -> None:
    engine = guessed(without=("ort",), verify="off")
    loaded_tactics = machine_of(engine.plan.target).timer(is_timed=True)
    again = plan_at(engine.variants[0], REAL, loaded_tactics)[0].plan
    assert "ort" not in {c.tactic for note in again.regions for c in note.candidates}
    assert again.planned_shapes == REAL
    assert again.steps[0].site != engine.plan.steps[0].site


class Counted:
    """A binding that counts its runs."""

    def __init__(self) -> None:
        self.runs = 0

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        self.runs += 1
        return {}

    load = run


def real_shapes(answer: bool, asked: list[Any]) -> RealShapes:
    def plan_again(specs: dict[str, TensorSpec]) -> bool:
        asked.append(specs)
        return answer

    return RealShapes(PerProcess(Target("cpu", "x86_64", 1)), plan_again, is_guess=True)


@pytest.mark.parametrize("is_faster", [True, False])
def test_it_begins_with_the_third_run_and_once(is_faster: bool) -> None:
    asked: list[Any] = []
    shapes = real_shapes(is_faster, asked)
    made: list[Counted] = []

    def make() -> Any:
        made.append(Counted())
        return made[-1]

    binding = shapes.bound(REAL, make)
    assert isinstance(binding, UntunedBinding)
    for runs in range(1, RUNS + 1):
        assert not asked, runs
        binding.run({})
    shapes.wait()
    assert asked == [REAL]
    assert binding.is_ready
    assert binding.successor() is made[-1]
    assert len(made) == 1 + is_faster
    assert not isinstance(shapes.bound(REAL, make), UntunedBinding)
    binding.run({})
    shapes.wait()
    assert asked == [REAL]


def test_nothing_begins_before_real_shapes_have_run() -> None:
    asked: list[Any] = []
    shapes = real_shapes(True, asked)
    shapes.wait()
    binding = shapes.bound(REAL, Counted)  # type: ignore[arg-type]
    shapes.wait()
    assert not asked
    binding.run({})
    shapes.wait()
    assert asked == [REAL]


def test_a_shape_that_the_new_plan_does_not_run_stays_with_the_old() -> None:
    shapes = real_shapes(True, [])
    made = iter([Counted()])
    binding = shapes.bound(REAL, lambda: next(made))  # type: ignore[arg-type,return-value]
    binding.run({})
    shapes.wait()
    assert isinstance(binding, UntunedBinding)
    assert isinstance(binding.successor(), Counted)


def test_the_process_says_what_it_cannot_do(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="planning again failed") as raised:
        plan_elsewhere(tmp_path / "missing.ridge", REAL, Limits())
    assert "missing.ridge" in str(raised.value)


def test_the_process_ends_with_whoever_started_it() -> None:
    command = [sys.executable, "-P", "-m", MODULE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.communicate(b"", timeout=120)
    assert process.returncode == 1


def test_the_report_reads_as_a_sentence() -> None:
    assert str(AGAIN) == "planned again at x[33x8] (guessed before): 10 µs a run instead of 20"
    stays = replace(AGAIN, is_taken=False, real_us=20.5)
    assert "the plan stays" in str(stays)
