"""Contests on a GPU: what like regions spare each other, and candidates that no graph can hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import onnx
import pytest
import torch
from test_one_loop import Later, context_of
from test_time_limit import products

from ridgeline.base.gpu_graph import CaptureError
from ridgeline.base.timing import Timing
from ridgeline.select import graph_replay, heats
from ridgeline.select.context import Contest, Selection, SelectionContext
from ridgeline.select.graph_replay import GraphReplay, GraphTrial
from ridgeline.select.heats import Timed, Trial
from ridgeline.select.loop import select
from ridgeline.select.site_race import SiteRace
from ridgeline.tactics.cache import Entry

WIDTHS = (64, 80, 96, 112, 128, 144)


class ByPlace(Later):
    """The first tactic wins with its second config, others lose a little, the last one badly."""

    def __init__(self) -> None:
        self.tried: Counter[str] = Counter()

    def time(self, each: SiteRace, places: Sequence[int]) -> Timed:
        self.tried[each.contest.region.name] += len(places)
        tactics = list(dict.fromkeys(tactic for tactic, _ in each.variants))
        times = {}
        for place in places:
            tactic, config = each.variants[place]
            own_us = 10.0 if config == 1 else 11.0 + config / 100
            times[place] = {tactics[0]: own_us, tactics[-1]: 30.0}.get(tactic, 11.5)
        return Timed(times)


class Raced(GraphReplay):
    """Contests alone: whole plans are not compared."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial

    def trial(self, context: SelectionContext) -> Trial:
        return self._trial

    def compose(self, context: SelectionContext, contests: Sequence[Contest], made: Selection) -> None: ...


def test_like_regions_try_what_won_on_the_largest_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heats, "precompile", lambda *_, **__: [])
    trial = ByPlace()
    context = context_of(products(*WIDTHS, depth=64, kind="float16"), "cuda:sm_90", 3)
    made = select(replace(context, timer=Raced(trial)))
    (_, most), (_, second), *others = trial.tried.most_common()
    assert most >= second > 2 * max(count for _, count in others), (
        "of each tactic one config, if it was close"
    )
    for entry in made.entries.values():
        best = entry.candidates[0]
        assert best.median_us == 10.0
        assert entry.is_partial is False
    left = [c.untimed for entry in made.entries.values() for c in entry.candidates if c.untimed]
    assert any("2.7 times slower or more on 2 like regions" in why for why in left)
    assert any("1.1 times slower or more on 2 like regions" in why for why in left)


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Whether a tactic can be captured; those not named can. They take 5 µs then, else 9."""
    can: dict[str, bool] = {}
    tactic_of: dict[int, str] = {}
    kept: list[object] = []

    def bound_call(*_: object) -> Any:
        def call() -> None: ...

        tactic_of[id(call)] = tactics[-1]
        kept.append(call)
        return call, lambda: ()

    tactics: list[str] = []
    bind = SelectionContext.bind

    def noted(self: SelectionContext, site: Any, tactic: str, config: Any, weights: Any) -> Any:
        tactics.append(tactic)
        return bind(self, site, tactic, config, weights)

    def capture(call: Callable[[], object], _: int) -> str:
        if not can.get(tactic_of[id(call)], True):
            raise CaptureError("it waits")
        return tactic_of[id(call)]

    inputs = graph_replay.site_inputs
    monkeypatch.setattr(SelectionContext, "bind", noted)
    monkeypatch.setattr(graph_replay, "bound_call", bound_call)
    monkeypatch.setattr(graph_replay, "capture", capture)
    monkeypatch.setattr(graph_replay, "_reference", lambda *_: None)
    monkeypatch.setattr(graph_replay, "site_inputs", lambda site, weights, **_: inputs(site, weights))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(graph_replay, "times_in_turn", lambda calls, _: [9.0] * len(calls))
    monkeypatch.setattr(
        graph_replay, "interleave_graphs", lambda graphs, **_: [Timing((5.0,)) for _ in graphs]
    )
    return can


def entry_of(model: onnx.ModelProto) -> Entry:
    context = context_of(model, "cpu", 3)

    class OnlyTrials(Raced):
        def find(self, context: SelectionContext, key: str) -> Entry | None:
            return None

    made = select(replace(context, timer=OnlyTrials(GraphTrial(context))))
    (entry,) = made.entries.values()
    return entry


def test_what_cannot_be_captured_is_refused_beside_what_can(captures: dict[str, bool]) -> None:
    captures["aten"] = False
    entry = entry_of(products(72))
    assert entry.candidates[0].median_us == 5.0
    assert {c.tactic: c.refused for c in entry.candidates if c.refused}["aten"] == (
        "cannot be captured in a CUDA graph: it waits"
    )


def test_where_nothing_can_be_captured_the_fastest_eager_one_wins(captures: dict[str, bool]) -> None:
    willing = {c.tactic for c in entry_of(products(72)).candidates if c.refused is None}
    captures.update(dict.fromkeys(willing, False))
    entry = entry_of(products(72))
    assert entry.candidates[0].median_us == 9.0
    assert {c.tactic for c in entry.candidates if c.refused is None} == willing


def test_one_that_can_be_captured_wins_late(captures: dict[str, bool]) -> None:
    """The best guesses cannot, a further config of one of them can."""
    willing = {c.tactic for c in entry_of(products(72)).candidates if c.refused is None}
    captures.update(dict.fromkeys(willing, False))

    context = context_of(products(72), "cpu", 3)
    trial = GraphTrial(context)
    (region,) = context.work
    contest = Contest(region, context.site(region), Entry("x", ()))
    contest.willing = [c for c in entry_of(products(72)).candidates if c.refused is None]
    each = SiteRace(contest)
    first = trial.time(each, [0])
    each.times_us.update(first.times_us)
    assert first.times_us == {0: 9.0}
    captures.clear()
    captures[contest.willing[0].tactic] = False
    other = next(i for i, c in enumerate(contest.willing) if c.tactic != contest.willing[0].tactic)
    second = trial.time(each, [0, other])
    assert second.times_us == {other: 5.0}
    assert "it waits" in each.refused[0]
    assert not each.times_us
