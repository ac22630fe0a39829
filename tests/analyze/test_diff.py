"""`ridge diff`: rows matched by nodes, changes told from noise, causes named, a gate for CI."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hand_made_traces import step, trace

from ridgeline.analyze.diff import diff
from ridgeline.analyze.diff_sides import bench_side, engine_side, read_side, trace_side
from ridgeline.builder import build
from ridgeline.errors import OptionError
from ridgeline.plan.trace import StepTime, Trace

Ridge = Callable[..., tuple[int, str, str]]
ROWS, ROUNDS = 60, 30


def measured(seed: int, *, drift: float = 1.0, planted: int | None = None) -> Trace:
    """One run of an engine: rows of all sizes, each a little off for the whole run, with its samples."""
    sizes = np.exp(np.random.default_rng(1).uniform(np.log(5), np.log(500), ROWS))
    rng = np.random.default_rng(seed)
    steps = []
    for index, size in enumerate(sizes):
        us = size * drift * float(np.exp(rng.normal(0, 0.01))) * (1.2 if index == planted else 1.0)
        samples = tuple(float(us * np.exp(abs(rng.normal(0, 0.03)))) for _ in range(ROUNDS))
        median = float(np.median(samples))
        steps.append(step(index + 1, f"layer{index}", median, samples_us=samples))
    totals = tuple(float(sum(s.samples_us[r] for s in steps)) for r in range(ROUNDS))
    return trace(*steps, total_us=float(np.median(totals)), total_samples_us=totals, rounds=ROUNDS)


def planted_row(share: float = 0.02) -> int:
    """The smallest row that is at least this share of the run."""
    run = measured(0)
    fitting = [s for s in run.steps if s.median_us >= share * run.total_us]
    return min(fitting, key=lambda s: s.median_us).index - 1


@pytest.mark.parametrize("seed", range(20))
def test_two_runs_of_one_engine_are_silent(seed: int) -> None:
    drift = 1 + 0.005 * (seed - 10)
    found = diff(trace_side(measured(100 + seed)), trace_side(measured(200 + seed, drift=drift)))
    assert not found.slower
    assert not found.failed
    assert {row.verdict for row in found.rows} == {"same"}


@pytest.mark.parametrize("seed", range(5))
def test_a_planted_slower_layer_is_named(seed: int) -> None:
    where = planted_row()
    found = diff(trace_side(measured(seed)), trace_side(measured(50 + seed, drift=1.04, planted=where)))
    assert [row.name for row in found.slower] == [f"layer{where}"]
    assert found.failed
    assert found.rows[0].ratio == pytest.approx(1.2, rel=0.05)
    faster = diff(trace_side(measured(seed, planted=where)), trace_side(measured(50 + seed)))
    assert [row.name for row in faster.rows if row.verdict == "faster"] == [f"layer{where}"]
    assert not faster.failed


def test_a_slower_machine_is_not_a_slower_layer_but_fails_as_a_whole() -> None:
    found = diff(trace_side(measured(1)), trace_side(measured(2, drift=1.4)))
    assert not found.slower
    assert found.shared == pytest.approx(1.4, rel=0.02)
    assert found.is_total_slower
    assert any("the machine, not a layer" in note for note in found.notes)


def one_row(us: float) -> Trace:
    """An engine of one step, steady."""
    samples = tuple(us * (1 + 0.001 * (i % 5)) for i in range(ROUNDS))
    row = step(1, "all", float(np.median(samples)), samples_us=samples)
    return trace(row, total_us=row.median_us, total_samples_us=samples, rounds=ROUNDS)


def test_a_change_of_the_only_row_is_not_the_machines() -> None:
    found = diff(trace_side(one_row(1000.0)), trace_side(one_row(1500.0)))
    assert [row.ratio for row in found.rows] == [pytest.approx(1.5)]
    assert [row.verdict for row in found.rows] == ["slower"]
    assert not any("the machine" in note for note in found.notes)
    drifted = diff(trace_side(one_row(1000.0)), trace_side(one_row(1080.0)))
    assert not drifted.failed
    assert drifted.rows[0].ratio == pytest.approx(1.08)


def fused(a: StepTime, b: StepTime) -> StepTime:
    return replace(
        a, name=f"{a.name}+{b.name}", sources=a.sources + b.sources, median_us=a.median_us + b.median_us
    )


def test_causes_are_named() -> None:
    first, second, third = (step(i, f"s{i}", 100.0) for i in (1, 2, 3))
    slow = replace(first, tactic="aten", median_us=150.0, samples_us=(149.0, 150.0, 151.0))
    half = replace(second, precision="bfloat16")
    rows = {
        row.name: row for row in diff(trace_side(trace(first, second)), trace_side(trace(slow, half))).rows
    }
    assert rows["s1"].causes == ("tactic: mkl → aten",)
    assert rows["s2"].causes == ("precision: float32 → bfloat16",)
    (row,) = diff(trace_side(trace(second, third)), trace_side(trace(fused(second, third)))).rows
    assert row.causes == ("fusion: 2 steps → 1 step",)
    assert row.ratio == pytest.approx(1.0)
    gone = diff(trace_side(trace(first, second)), trace_side(trace(first))).rows
    assert {row.verdict for row in gone} == {"same", "only in A"}


def test_engines_are_compared_without_samples(tiny_model: Path) -> None:
    plan = build(tiny_model, target="null", verify="off").plan
    changed = replace(plan, steps=(replace(plan.steps[0], tactic="other"), *plan.steps[1:]))
    found = diff(engine_side(plan), engine_side(changed))
    assert [row.causes for row in found.rows if row.causes] == [(f"tactic: {plan.steps[0].tactic} → other",)]
    assert not found.failed
    assert any("profile both" in note for note in found.notes)


def write(path: Path, run: Trace) -> Path:
    path.write_text(run.to_json())
    return path


def test_the_command_fails_a_gate(ridge: Ridge, tmp_path: Path) -> None:
    a = write(tmp_path / "a.json", measured(1))
    b = write(tmp_path / "b.json", measured(2, planted=planted_row()))
    same = write(tmp_path / "c.json", measured(3))
    status, out, err = ridge("diff", a, b)
    assert status == 3
    assert f"layer{planted_row()}" in out
    assert "slower beyond noise" in err
    status, out, _ = ridge("diff", a, same)
    assert status == 0
    assert "nothing changed beyond noise" in out
    assert ridge("diff", a, b, "--fail-over", "30%")[0] == 0
    told = json.loads(ridge("diff", a, b, "--json")[1])
    assert told["schema"] == "ridgeline/diff/1"
    assert told["failed"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot be compared"),
        ('{"schema": "ridgeline/bench/1"}', "not a whole benchmark"),
        ('{"schema": "ridgeline/bench/9"}', "another version"),
        ('{"format": "ridgeline/trace/1"}', "is not a trace"),
        ('{"traceEvents": []}', "cannot be compared"),
        ("[1, 2]", "cannot be compared"),
    ],
)
def test_other_files_are_refused(ridge: Ridge, tmp_path: Path, text: str, says: str) -> None:
    good = write(tmp_path / "a.json", measured(1))
    bad = tmp_path / "bad.json"
    bad.write_text(text)
    status, _, err = ridge("diff", good, bad)
    assert status == 1
    assert says in err
    assert ridge("diff", good, good, "--fail-over", "much")[0] == 1


def test_a_benchmark_needs_its_rows(tmp_path: Path) -> None:
    rows = [{"name": "ridgeline", "median_us": 10.0}]
    raw = {"rows": rows, "model": "m", "target": "cpu", "versions": {"torch": "2.13"}}
    slower = {**raw, "rows": [{"name": "ridgeline", "median_us": 12.0}]}
    found = diff(bench_side(raw, tmp_path), bench_side(slower, tmp_path))
    assert found.total_ratio == pytest.approx(1.2)
    with pytest.raises(OptionError, match="with a benchmark only"):
        diff(bench_side(raw, tmp_path), trace_side(measured(1)))
    for wrong in (float("nan"), float("inf"), -5.0, 0, True, "12", None, 10**400):
        with pytest.raises(OptionError, match="not a whole benchmark"):
            bench_side({**raw, "rows": [{"name": "ridgeline", "median_us": wrong}]}, tmp_path)
    for more in ({"rows": []}, {"rows": 5}, {"rows": [5]}, {"rows": rows * 2}, {"versions": [["a", "b"]]}):
        with pytest.raises(OptionError, match="not a whole benchmark"):
            bench_side({**raw, **more}, tmp_path)
    with pytest.raises(OptionError, match="not a whole benchmark"):
        bench_side({**raw, "model": {}}, tmp_path)


def test_a_slower_benchmark_fails_the_gate(ridge: Ridge, tmp_path: Path) -> None:
    def bench(name: str, us: float, noise: float = 1.05) -> Path:
        row = {"name": "ridgeline", "median_us": us, "min_us": us * 0.98, "p90_us": us * 0.98 * noise}
        raw = {"schema": "ridgeline/bench/1", "rows": [row], "model": "m", "target": "cpu", "versions": {}}
        (tmp_path / name).write_text(json.dumps(raw))
        return tmp_path / name

    a, slow, near = bench("a.json", 10.0), bench("slow.json", 18.0), bench("near.json", 10.8)
    status, out, err = ridge("diff", a, slow)
    assert status == 3
    assert "+80.0 %" in out
    assert "the machine" not in out
    assert "nothing changed" not in out
    assert "slower beyond noise" in err
    assert ridge("diff", a, near)[0] == 0
    assert ridge("diff", a, bench("busy.json", 18.0, noise=2.0))[0] == 0
    assert ridge("diff", a, slow, "--fail-over", "100%")[0] == 0


def test_a_model_is_no_measurement(ridge: Ridge, tiny_model: Path) -> None:
    status, _, err = ridge("diff", tiny_model, tiny_model)
    assert status == 1
    assert "cannot be compared" in err
    assert "codec" not in err


def test_steps_shorter_than_a_time_stamp_have_no_interval() -> None:
    """Warnings of numpy are errors here: half of the medians are 0, and a logarithm of them is none."""
    times = (0.0,) * 15 + (2.0,) * 15
    short = step(1, "short", 1.0, p10_us=0.0, p90_us=2.0, samples_us=times)
    run = trace(short, total_us=1.0, total_p10_us=0.0, total_samples_us=times, rounds=ROUNDS)
    found = diff(trace_side(run), trace_side(run))
    assert [(row.ratio, row.low, row.verdict) for row in found.rows] == [(1.0, None, "same")]
    assert (found.total_ratio, found.total_low) == (1.0, None)
    assert any("0 µs" in note for note in found.notes), "a row that cannot be judged is said to be one"


def test_measurements_under_other_conditions_say_so() -> None:
    a, b = measured(1), replace(measured(2), device="another", threads=4, shapes={"x": "float32[8,64]"})
    notes = " ".join(diff(trace_side(a), trace_side(b)).notes)
    for said in ("device a processor → another", "threads 2 → 4", "float32[1,64] → float32[8,64]"):
        assert said in notes
    assert not any("alike" in note for note in diff(trace_side(a), trace_side(measured(2))).notes)


def test_an_engine_is_one_whatever_its_name_ends_in(tiny_model: Path, tmp_path: Path) -> None:
    build(tiny_model, level=0, verify="off").save(tmp_path / "a.ridge")
    (tmp_path / "a.engine").write_bytes((tmp_path / "a.ridge").read_bytes())
    assert read_side(tmp_path / "a.engine").kind == "engine"


def test_two_models_are_not_compared() -> None:
    """A gate over the wrong file must not pass."""
    one = trace(step(1, "a", 1.0), total_us=1.0, rounds=ROUNDS)
    other = trace(step(1, "b", 1.0), total_us=1.0, rounds=ROUNDS)
    with pytest.raises(OptionError, match="nothing in common"):
        diff(trace_side(one), trace_side(other))
