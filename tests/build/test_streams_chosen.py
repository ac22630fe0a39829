"""Streams in selection and in plans: raced where something may be gained, and only there; what is said."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from test_one_loop import Replayed, context_of

import ridgeline
from cross_models import mlp, two_towers
from ridgeline.analyze.explain import explain_plan
from ridgeline.analyze.show import summarise
from ridgeline.base.choices import Candidate
from ridgeline.base.gpu_graph import CaptureError
from ridgeline.base.timing import Timing
from ridgeline.cli.draw_plan import draw_summary
from ridgeline.errors import PlanError
from ridgeline.plan.plan import Plan
from ridgeline.plan.streams import ONE, SEVERAL, Schedule, needs_of, with_waits
from ridgeline.runtime.memory_report import variant_on
from ridgeline.runtime.profiles import Variant
from ridgeline.select import heats, streams
from ridgeline.select.context import Selection, SelectionContext, StepChoice
from ridgeline.select.graph_replay import GraphReplay
from ridgeline.select.loop import select
from ridgeline.select.planning import planned_steps
from ridgeline.tactics.cache import TimingCache


class Timed(Replayed):
    """As on a GPU, without the refinement that captures whole plans."""

    def compose(self, context: SelectionContext, contests: Any, made: Selection) -> None:
        super(GraphReplay, self).compose(context, contests, made)
        streams.compose_streams(context, made, rounds=3)


class Runs:
    """Whole plans that nobody runs: their times on one stream and on several, and what they compute."""

    def __init__(self, *times_us: tuple[float, float]) -> None:
        self.times_us, self.made, self.results = list(times_us), [], [torch.ones(4), torch.ones(4)]
        self.broken: dict[bool, Exception] = {}

    def captured(self, context: Any, steps: Sequence[StepChoice], schedule: Schedule | None, _: Any) -> Any:
        is_streamed = schedule is not None
        self.made.append(schedule)
        if is_streamed in self.broken:
            raise self.broken[is_streamed]
        return SimpleNamespace(graph=is_streamed, results=lambda: {"y": self.results[is_streamed]})

    def interleave(self, graphs: Sequence[bool], rounds: int) -> list[Timing]:
        times = self.times_us.pop(0)
        return [Timing((times[graph],)) for graph in graphs]


def context_with(monkeypatch: pytest.MonkeyPatch, runs: Runs, model: bytes) -> SelectionContext:
    monkeypatch.setattr(heats, "precompile", lambda *_, **__: [])
    monkeypatch.setattr(streams, "captured", runs.captured)
    monkeypatch.setattr(streams, "interleave_graphs", runs.interleave)
    return replace(context_of(model, "cuda:sm_90", 1), timer=Timed())


def test_what_is_faster_side_by_side_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs((60.0, 40.0), (61.0, 41.0))
    context = context_with(monkeypatch, runs, two_towers())
    made = select(context)
    assert made.schedule is not None
    assert runs.made == [None, made.schedule]
    assert made.schedule.n_streams == 2
    entry = made.alternatives
    assert entry is not None
    assert [(c.tactic, c.median_us) for c in entry.candidates] == [(ONE, 61.0), (SEVERAL, 41.0)]
    assert entry.chosen == 1
    steps = planned_steps(context, made)
    assert [step.stream for step in steps] == list(made.schedule.streams)
    assert sum(len(step.waits) for step in steps) == made.schedule.n_waits == 1
    # the next build reads the verdict
    again = select(context)
    assert len(runs.made) == 2
    assert again.schedule == made.schedule


def test_a_lock_pins_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs((60.0, 40.0), (61.0, 41.0))
    context = context_with(monkeypatch, runs, two_towers())
    made = select(context)
    pinned = {key.split("-")[0]: context.cache.entries[key] for key in made.keys}
    locked = select(replace(context, cache=TimingCache(), lock=TimingCache(dict(pinned))))
    assert locked.schedule == made.schedule
    place = next(key for key in pinned if key.startswith("plan"))
    pinned[place] = replace(pinned[place], chosen=0)
    assert select(replace(context, lock=TimingCache(dict(pinned)))).schedule is None
    del pinned[place]
    assert select(replace(context, lock=TimingCache(pinned))).schedule is None, "an old lock knows of none"
    assert len(runs.made) == 2


@pytest.mark.parametrize(
    "times_us",
    [[(60.0, 59.0)], [(60.0, 70.0)], [(60.0, 50.0), (60.0, 59.5)]],
    ids=["margin", "slower", "luck"],
)
def test_what_is_not_faster_stays_on_one_stream(
    monkeypatch: pytest.MonkeyPatch, times_us: list[tuple[float, float]]
) -> None:
    made = select(context_with(monkeypatch, Runs(*times_us), two_towers()))
    assert made.schedule is None
    assert made.alternatives is not None
    assert made.alternatives.chosen == 0
    assert [c.median_us for c in made.alternatives.candidates] == list(times_us[-1])


def test_what_computes_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs()
    runs.results[1] = torch.tensor([1.0, 1.0, 1.0, 2.0])
    made = select(context_with(monkeypatch, runs, two_towers()))
    assert made.schedule is None
    assert made.alternatives is not None
    assert "'y' is not the same" in str(made.alternatives.candidates[1].refused)


def test_what_cannot_be_captured_is_refused_or_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs()
    runs.broken[True] = CaptureError("not on several")
    made = select(context_with(monkeypatch, runs, two_towers()))
    assert made.alternatives is not None
    assert "not on several" in str(made.alternatives.candidates[1].refused)
    runs.broken[False] = CaptureError("not at all")
    made = select(context_with(monkeypatch, runs, two_towers()))
    assert (made.schedule, made.alternatives) == (None, None)


def test_a_chain_is_not_raced(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs()
    made = select(context_with(monkeypatch, runs, mlp()))
    assert (made.schedule, made.alternatives, runs.made) == (None, None, [])


def test_where_the_estimate_sees_no_gain_the_plan_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs()
    monkeypatch.setattr(streams, "_demand", lambda *_: 1.0)
    made = select(context_with(monkeypatch, runs, two_towers()))
    assert made.schedule is None
    assert not runs.made
    assert made.alternatives is not None
    assert "is no gain" in str(made.alternatives.candidates[1].refused)


def test_without_rounds_nothing_is_raced(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs()
    context = context_with(monkeypatch, runs, two_towers())
    made = select(replace(context, timer=Replayed()))  # level 1 compares no whole plans
    assert (made.schedule, runs.made) == (None, [])


@pytest.fixture(scope="module")
def towers() -> ridgeline.Engine:
    return ridgeline.build(two_towers(), target="null:sm_90", verify="off")


def apart(engine: ridgeline.Engine) -> Schedule:
    """The steps of the second tower on a stream of their own."""
    steps = engine.plan.steps
    return with_waits([int(step.name.startswith("b")) for step in steps], needs_of(steps))


def forked(engine: ridgeline.Engine, schedule: Schedule) -> Variant:
    made = variant_on(engine.variants[0], schedule)
    times = (Candidate(SEVERAL, {"streams": 2, "waits": 1}, 40.0), Candidate(ONE, {}, 60.0))
    return replace(made, plan=replace(made.plan, alternatives=times))


def test_one_stream_is_not_written(towers: ridgeline.Engine) -> None:
    (first, *_) = json.loads(towers.plan.to_json())["steps"]
    assert not {"stream", "waits"} & first.keys()
    assert Plan.from_json(towers.plan.to_json()) == towers.plan


def test_streams_are_written_and_read(towers: ridgeline.Engine) -> None:
    plan = forked(towers, apart(towers)).plan
    assert Plan.from_json(plan.to_json()) == plan
    assert {step.stream for step in plan.steps} == {0, 1}
    # the towers share no memory while both run
    assert plan.memory.arena_bytes > towers.plan.memory.arena_bytes


def test_a_file_that_lacks_a_wait_is_refused(towers: ridgeline.Engine) -> None:
    schedule = apart(towers)
    with pytest.raises(PlanError, match="does not wait for it"):
        forked(towers, replace(schedule, waits=((),) * len(schedule.waits)))
    with pytest.raises(PlanError, match="stream 7, want 0 to 3"):
        forked(towers, replace(schedule, streams=tuple(7 * stream for stream in schedule.streams)))


def test_an_engine_with_streams_is_saved_and_loaded(towers: ridgeline.Engine, tmp_path: Path) -> None:
    engine = ridgeline.Engine([forked(towers, apart(towers))], None)  # type: ignore[arg-type]
    engine.save(tmp_path / "towers.ridge")
    assert ridgeline.load(tmp_path / "towers.ridge").plan == engine.plan


def test_it_is_said_which_step_is_on_which_stream(towers: ridgeline.Engine) -> None:
    plan = forked(towers, apart(towers)).plan
    summary = summarise(plan, towers.report)
    assert summary.streams == "2 side by side, 1 wait between them: 40.0 µs a run, 60.0 µs on one stream"
    assert {row.stream for row in summary.steps} == {"main", "1"}
    story = explain_plan(plan)
    notes = [note for step in story.steps for note in step.notes]
    assert "runs on stream 1" in notes
    assert any(note.startswith("runs on the main stream, after step") for note in notes)
    console = Console(width=160, record=True, file=StringIO())
    draw_summary(summary, console)
    assert "2 side by side" in console.export_text()


def test_why_there_is_one_stream_is_said(towers: ridgeline.Engine) -> None:
    assert summarise(towers.plan, towers.report).streams == ""
    slower = "one: side by side is no faster: 70.0 µs a run, 60.0 µs on one stream"
    for candidate, said in (
        (Candidate(SEVERAL, {}, 70.0), slower),
        (Candidate(SEVERAL, {}, refused="not timed: no gain"), "one: side by side not timed: no gain"),
    ):
        plan = replace(towers.plan, alternatives=(Candidate(ONE, {}, 60.0), candidate))
        assert summarise(plan, towers.report).streams == said
