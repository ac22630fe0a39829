"""Control flow as on a GPU: bodies are captured by stand-ins on the CPU, and replayed once for each trip.

What is true of streams and drivers is in tests/gpu.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from loop_models import TEXTS, control_model, first_runs
from moving_models import close, decoder, detector, expected, own, rand
from rich.console import Console
from stand_ins import Rig, replaying

import ridgeline
from ridgeline.analyze.explain import explain_engine
from ridgeline.analyze.html.page import report_page
from ridgeline.analyze.report_engine import report_engine
from ridgeline.analyze.report_text import report_markdown
from ridgeline.analyze.runs import graphs_text
from ridgeline.analyze.show import summarise
from ridgeline.cli.draw_explain import draw_explanation
from ridgeline.cli.draw_plan import draw_summary
from ridgeline.plan.report import RunPart
from ridgeline.runtime import planned_body
from ridgeline.runtime.embedded_kernels import collect
from ridgeline.select import retune
from ridgeline.select.context import Timer

WAITS = frozenset({"NonZero", "NonMaxSuppression", "Compress"})


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    with replaying(monkeypatch, WAITS) as made:
        yield made


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Conditions that the host reads: on a GPU it waits for each of them."""
    found: list[bool] = []
    plain = torch.Tensor.__bool__

    def noted(tensor: torch.Tensor) -> bool:
        found.append(plain(tensor))
        return found[-1]

    monkeypatch.setattr(torch.Tensor, "__bool__", noted)
    return found


@pytest.mark.parametrize("name", TEXTS)
def test_control_flow(rig: Rig, name: str) -> None:
    engine = own(control_model(name), profiles={"T": "1..3..8"})
    first = first_runs(engine, name)
    for _ in range(2):
        for feeds, before in first:
            again = engine.run(feeds)
            assert all(np.array_equal(again[each], before[each]) for each in before)
    assert not any("op by op" in note for note in engine.notes)


def test_a_trip_is_one_replay_and_nothing_is_read(rig: Rig, read: list[bool]) -> None:
    model = control_model("a trip count")
    engine = own(model, profiles={"T": "3"})
    engine.run({"x": rand(3, 4), "n": np.array(2)})
    (graph,) = rig.graphs
    graph.replays = 0
    read.clear()
    engine.run({"x": rand(3, 4), "n": np.array(9)})
    assert graph.replays == 9
    assert len(read) == 1, "the condition before the first trip, which lies on the host"


def test_a_condition_is_read_once_for_each_trip(rig: Rig, read: list[bool]) -> None:
    engine = own(control_model("a condition that the trips decide"), profiles={"T": "3"})
    engine.run({"x": rand(3, 4), "n": np.array(1)})
    for n, trips in ((9, 4), (2, 2), (9, 4)):
        read.clear()
        engine.run({"x": rand(3, 4), "n": np.array(n)})
        # once before the first trip, and not after the last that the count allows
        assert len(read) == 1 + trips - int(n == trips)


def test_states_are_not_copied_from_trip_to_trip(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = own(control_model("states that turn"), profiles={"T": "3"})
    feeds = {"x": rand(3, 4), "n": np.array(5)}
    engine.run(feeds)
    copied: list[int] = []
    load = planned_body.BodyInstance._load

    def counted(instance: planned_body.BodyInstance, given: list[object], *, is_next: bool) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(planned_body, "fill", lambda target, value: (copied.append(1), target.copy_(value)))
            load(instance, given, is_next=is_next)
        copied.append(0)

    monkeypatch.setattr(planned_body.BodyInstance, "_load", counted)
    engine.run(feeds)
    # the condition and three states before the first trip, nothing before the four others
    assert copied == [1, 1, 1, 1, 0, 0, 0, 0, 0]


def test_a_state_that_grows_has_a_graph_for_each_shape(rig: Rig) -> None:
    model = decoder(growing=True)
    engine = own(model, profiles={"S": "6"})
    counts = []
    for steps in (5, 5, 3, 8, 8, 8):
        feeds = {"memory": rand(6, 16, seed=9), "start": np.array(3), "steps": np.array(steps)}
        close(engine.run(feeds), expected(model, feeds))
        counts.append(len(rig.graphs))
    first = counts[0]
    # at a new shape the steps run one by one; they are captured when it comes again
    assert counts == [first, first, first, first, first + 3, first + 3]


def test_too_many_shapes_fall_back_and_say_so(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned_body, "KEPT_BODIES", 3)
    model = decoder(growing=True)
    engine = own(model, profiles={"S": "6"})
    for steps in (7, 2, 9):
        feeds = {"memory": rand(6, 16, seed=9), "start": np.array(3), "steps": np.array(steps)}
        close(engine.run(feeds), expected(model, feeds))
    notes = [note for note in engine.notes if "runs op by op" in note]
    assert notes == [
        "last.body: at further shapes it runs op by op: its states took more than 3 different shapes"
    ]


def test_the_report_says_what_is_in_which_graph(rig: Rig) -> None:
    engine = own(control_model("what follows a loop"), profiles={"T": "3"})
    assert engine.report.run_parts == ()
    engine.run({"x": rand(3, 4), "n": np.array(3)})
    before, loop, after, body = engine.report.run_parts
    assert before.is_captured
    assert after.is_captured, "the loop's result has a place, so what follows is captured again"
    assert loop == RunPart("", ("y",), is_captured=False, why="Loop: data says how often the body runs")
    assert (body.graph, body.is_captured) == ("y.body", True)
    assert set(before.steps) | set(after.steps) == {step.name for step in engine.plan.steps} - {"y"}


def test_a_detector(rig: Rig) -> None:
    engine = own(detector(), profiles={"image": "1x3x32x32"})
    for seed in (2, 3, 2):
        feeds = {"image": rand(1, 3, 32, 32, seed=seed)}
        close(engine.run(feeds), expected(detector(), feeds))
    parts = engine.report.run_parts
    assert parts[0].is_captured
    first = next(part for part in parts if not part.is_captured)
    assert first == RunPart(
        "", ("picked",), is_captured=False, why="NonMaxSuppression: the number of results depends on data"
    )


def test_what_ran_is_shown_and_saved(rig: Rig, tmp_path: Path) -> None:
    engine = own(control_model("what follows a loop"), profiles={"T": "3"})
    feeds = {"x": rand(3, 4), "n": np.array(3)}
    engine.run(feeds)
    summary = summarise(engine.plan, engine.report)
    said = graphs_text(summary.run_parts)
    assert said.startswith("5 steps in 2 CUDA graphs, 1 one by one; y.body: 1 step in one CUDA graph")
    text = StringIO()
    console = Console(file=text, width=160)
    draw_summary(summary, console)
    draw_explanation(explain_engine(engine.plan, engine.report), console)
    assert text.getvalue().count("Loop: data says how often the body runs") >= 2
    report = report_engine(engine.plan, engine.report)
    assert "## CUDA graphs" in report_markdown(report, made_by="")
    assert "What is in which CUDA graph" in report_page(report, made_by="")
    again = ridgeline.load(engine.save(tmp_path / "loop.ridge"))
    assert again.report.run_parts == engine.report.run_parts
    again.run(feeds)
    assert again.report.run_parts == engine.report.run_parts


def test_bodies_that_were_predicted_are_settled_with_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when an engine that was built elsewhere first meets its GPU."""
    monkeypatch.setattr(retune, "require_device", lambda target: SimpleNamespace(key=""))
    engine = ridgeline.build(
        control_model("what follows a loop"), target="cuda:sm_90", level=1, verify="off", profiles={"T": "3"}
    )
    variant = engine.variants[0]
    assert variant.plan.bodies["y.body"].is_predicted
    settled, _ = retune.retune(variant, Timer())
    ((key, body),) = settled.executable.islands.found()
    assert (key, settled.plan.bodies.keys()) == ("y.body", {"y.body"})
    assert not settled.plan.bodies["y.body"].is_predicted
    assert settled.executable.every_planned_site()[-1] == body.every_planned_site()[-1]
    wanted = {kernel for step in settled.plan.bodies["y.body"].steps for kernel in step.kernels}
    sites = settled.executable.every_planned_site()
    assert wanted <= collect(sites, engine.fused.tactics, engine.fused.kernels.store).keys()
