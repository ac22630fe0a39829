"""Times of a plan: every step has one, and the steps add up to the whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ridgeline
from ridgeline.base.timing import Timing
from ridgeline.select import plan_times
from ridgeline.select.plan_times import Rival, break_tie, race_plans
from ridgeline.verify.call_times import busy_notes


def test_every_step_that_runs_has_a_time(tiny_model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "times.toml"
    # aten alone: no step has a rival
    options: dict[str, Any] = {"level": 1, "verify": "off", "timing_cache": cache}
    options["without"] = ("cpp", "ort", "mkl", "onednn")
    engine = ridgeline.build(tiny_model, **options)
    run = {step.name for step in engine.profile(rounds=1).steps}
    times = {step.name: step.median_us for step in engine.plan.steps if step.name in run}
    assert times
    assert all(times.values()), times
    again = ridgeline.build(tiny_model, **options)
    assert again.report.sites_timed == 0
    assert [step.median_us for step in again.plan.steps] == [step.median_us for step in engine.plan.steps]


class Plan:
    """As much of an instance as timing looks at."""

    def __init__(self, n_steps: int) -> None:
        self.calls = [lambda: None] * n_steps
        self.call_steps = list(range(n_steps))

    def execute(self) -> None: ...


@pytest.fixture
def races(monkeypatch: pytest.MonkeyPatch) -> list[list[float]]:
    """Results that races give, one after another; the steps take 200 and 240 µs in place."""
    results: list[list[float]] = []
    monkeypatch.setattr(plan_times, "race", lambda *_, **__: (results.pop(0), False))
    monkeypatch.setattr(plan_times, "wall_times_in_turn", lambda calls, _: [200.0, 240.0][: len(calls)])
    return results


def rival(*steps_us: float | None) -> Rival:
    return Rival(Plan(len(steps_us)), list(steps_us))  # type: ignore[arg-type]


def test_a_plan_far_from_its_parts_is_timed_again(races: list[list[float]]) -> None:
    races += [[145_000.0, 900.0], [430.0, 910.0]]
    assert race_plans([rival(200.0, 240.0), rival(None)], each_s=0.1) == ([430.0, 900.0], False)


def test_parts_timed_on_a_busy_machine_are_taken_in_place(races: list[list[float]]) -> None:
    races += [[450.0]]
    plan = rival(200.0, 90_000.0)
    assert race_plans([plan], each_s=0.1) == ([450.0], False)
    assert plan.steps_us == [200.0, 240.0]


def test_parts_that_agree_stay_as_they_are(races: list[list[float]]) -> None:
    races += [[450.0]]
    plan = rival(150.0, None)
    race_plans([plan], each_s=0.1)
    assert plan.steps_us == [150.0, 240.0]


def test_what_never_agrees_is_called_unsteady(races: list[list[float]]) -> None:
    races += [[145_000.0]] * plan_times.RACES
    assert race_plans([rival(200.0, 240.0)], each_s=0.1) == ([145_000.0], True)


def longer_race(monkeypatch: pytest.MonkeyPatch, *samples_us: tuple[float, ...]) -> list[int]:
    """A second race with these results; how many plans ran in it is noted."""
    ran: list[int] = []

    def interleave(calls: list[object], **_: object) -> list[Timing]:
        ran.append(len(calls))
        return [Timing(taken) for taken in samples_us]

    monkeypatch.setattr(plan_times, "interleave", interleave)
    return ran


CALLS = [lambda: None] * 3


def test_a_tie_is_broken_by_a_longer_race(monkeypatch: pytest.MonkeyPatch) -> None:
    # round by round the second is 3 % faster, though the machine slowed down in the middle
    ran = longer_race(monkeypatch, (100.0, 103.0, 206.0), (97.0, 100.0, 200.0))
    assert break_tie(CALLS, [100.0, 101.0, 150.0], each_s=0.1) == (1, [103.0, 100.0, 150.0])
    assert ran == [2]


def test_without_a_difference_the_earlier_plan_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    longer_race(monkeypatch, (100.0, 100.0, 100.0), (99.5, 99.5, 99.5), (101.0, 101.0, 101.0))
    assert break_tie(CALLS, [102.0, 100.0, 101.0], each_s=0.1) == (0, [100.0, 99.5, 101.0])


def test_clear_winners_and_no_time_run_no_second_race(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = longer_race(monkeypatch)
    assert break_tie(CALLS, [100.0, 150.0, 90.0], each_s=0.1) == (2, [100.0, 150.0, 90.0])
    assert break_tie(CALLS, [100.0, 99.0, 150.0], each_s=0.0) == (0, [100.0, 99.0, 150.0])
    assert not ran


def test_steps_timed_beside_other_work_are_remarked(tiny_model: Path) -> None:
    plan = ridgeline.build(tiny_model, level=1, verify="off", profiles={"N": "1"}).plan
    steps_us = sum(step.median_us or 0.0 for step in plan.steps)
    assert busy_notes(plan, steps_us) == []
    slow = replace(plan, steps=tuple(replace(step, median_us=80_000.0) for step in plan.steps))
    (note,) = busy_notes(slow, 27.0)
    assert "a run takes 27 µs" in note
