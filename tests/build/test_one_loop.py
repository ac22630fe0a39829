"""One loop selects for every target: the timer differs, contests, offers and entries are the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from onnx import parser

import ridgeline
from cross_models import mlp, transformer
from ridgeline.base.choices import Candidate
from ridgeline.base.gpu_graph import CaptureError
from ridgeline.base.spec import Site
from ridgeline.base.timing import Timing
from ridgeline.builder import fuse, fused_model, selection_contexts
from ridgeline.frontend.from_onnx import load
from ridgeline.options import DEFAULT_LIMITS, make_options
from ridgeline.passes.pipeline import canonicalise
from ridgeline.runtime.inference import Inference
from ridgeline.select import context as context_module
from ridgeline.select import heats, plans, refine
from ridgeline.select.context import Contest, Selection, SelectionContext, Timer
from ridgeline.select.experience import ON_GPU
from ridgeline.select.graph_replay import GraphReplay
from ridgeline.select.heats import Timed, Trial
from ridgeline.select.loop import select
from ridgeline.select.prediction import Prediction
from ridgeline.select.refine import Refinement
from ridgeline.select.shapes import choose_every_shapes
from ridgeline.select.site_race import SiteRace
from ridgeline.select.wall_clock import FirstThatRuns, WallClock
from ridgeline.tactics.base import Tactic
from ridgeline.tactics.cache import Entry
from ridgeline.tactics.offer import read_offer
from ridgeline.targets import machine_of, target_named


def context_of(model: Any, target: str, level: int) -> SelectionContext:
    """As a build makes it, up to selection."""
    options = make_options({"target": target, "level": level})
    machine = machine_of(target_named(options))
    loaded = load(model)
    canonicalise(loaded.model, target=machine.target)
    unfused = Inference.of(loaded.model, DEFAULT_LIMITS)
    (shapes,) = choose_every_shapes(loaded, unfused, None, options)
    fuse(loaded, unfused.at(shapes.opt), machine.target, options)
    fused = fused_model(loaded, [shapes], options, machine)
    (context,) = selection_contexts(fused, [shapes], options, machine)
    return context


class Later:
    """A trial whose times somebody else took: later candidates are faster."""

    pruning = ON_GPU

    def is_raced(self, contest: Contest) -> bool:
        return True

    def time(self, each: SiteRace, places: Sequence[int]) -> Timed:
        return Timed({place: 10.0 - place / 10 for place in places})

    def runs(self, each: SiteRace, place: int) -> bool:
        return True


class Replayed(GraphReplay):
    """As on a GPU."""

    def trial(self, context: SelectionContext) -> Trial:
        return Later()


@pytest.mark.parametrize(
    ("target", "level", "timer"),
    [
        ("null", 3, Timer), ("null:sm_90", 3, Timer), ("cpu", 0, FirstThatRuns), ("cpu", 1, WallClock),
        ("cuda:sm_90", 0, Prediction), ("cuda:sm_90", 1, Replayed),
    ],
)  # fmt: skip
def test_one_loop_serves_every_timer(
    target: str, level: int, timer: type[Timer], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: Counter[tuple[str, str]] = Counter()

    def counted(tactic: Tactic, site: Site) -> object:
        reads[tactic.name, site.key] += 1
        return read_offer(tactic, site)

    monkeypatch.setattr(context_module, "read_offer", counted)
    context = context_of(transformer() if "cuda" in target or "null" in target else mlp(), target, level)
    if timer is Replayed:  # the GPU is not here: nothing is compiled for it or captured on it
        context = replace(context, timer=Replayed())
        monkeypatch.setattr(heats, "precompile", lambda *_, **__: [])
    assert type(context.timer) is timer
    made = select(context)
    assert {region.name for step in made.steps for region in step.regions} >= {r.name for r in context.work}
    assert made.entries
    assert all(entry.candidates[entry.chosen].refused is None for entry in made.entries.values())
    assert (made.timed > 0) == timer.measures
    assert max(reads.values()) == 1, "a tactic reads a site once"
    keys = {context.key(made.sites[name]) for name in made.entries}
    assert keys <= set(made.keys)
    assert keys <= context.cache.entries.keys()


def contest_of(context: SelectionContext, *times: float) -> tuple[Contest, Selection]:
    made = Selection()
    for region in context.work:
        made.sites[region.name] = context.site(region)
    region = context.work[0]
    floor = context.floor.name
    entry = Entry(region.name, tuple(Candidate(floor, {"place": i}, us) for i, us in enumerate(times)))
    made.entries[region.name] = entry
    return Contest(region, made.sites[region.name], entry, users=[region]), made


@pytest.fixture
def whole_plans(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """What the whole plan takes, by the place of the candidate in it; a place without a time breaks."""
    taken: dict[int, float] = {}

    def instance_of(context: SelectionContext, steps: Any, *_: object) -> Any:
        place = steps[0].config["place"]
        if place not in taken:
            raise ValueError("broken on purpose")
        is_captured = taken[place] > 0
        graph = SimpleNamespace(us=taken[place]) if is_captured else None
        return SimpleNamespace(graph=graph, why_eager="waits", execute=lambda: None)

    def interleave(graphs: Any, **_: object) -> Any:
        return [Timing((graph.us,)) for graph in graphs]

    monkeypatch.setattr(refine, "instance_of", instance_of)
    monkeypatch.setattr(refine, "interleave_graphs", interleave)
    return taken


def test_the_runner_up_that_makes_the_whole_plan_faster_wins(whole_plans: dict[int, float]) -> None:
    contest, made = contest_of(context := context_of(mlp(), "null:sm_90", 3), 10.0, 11.0, 12.0, 13.0, 30.0)
    whole_plans |= {0: 100.0, 1: 99.9, 3: 90.0, 4: 1.0}
    Refinement(context, [contest], made).run([contest], rounds=1)
    assert contest.entry.chosen == 3, "1 gains too little, 2 breaks, 4 is too slow alone to be tried"
    assert contest.entry.candidates[2].refused == "in the whole plan: failed: ValueError: broken on purpose"
    assert contest.entry.candidates[4].refused is None


def test_a_runner_up_that_was_lucky_once_does_not_win(
    whole_plans: dict[int, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    contest, made = contest_of(context := context_of(mlp(), "null:sm_90", 3), 10.0, 11.0)
    whole_plans |= {0: 100.0, 1: 100.0}
    races: list[int] = []

    def interleave(graphs: Any, rounds: int) -> Any:
        races.append(rounds)
        return [Timing((100.0,)), Timing((100.0 if len(races) > 1 else 95.0,))]

    monkeypatch.setattr(refine, "interleave_graphs", interleave)
    Refinement(context, [contest], made).run([contest], rounds=5)
    assert (contest.entry.chosen, races) == (0, [5, 10])


def test_a_plan_that_cannot_be_captured_stays_as_it_is(whole_plans: dict[int, float]) -> None:
    contest, made = contest_of(context := context_of(mlp(), "null:sm_90", 3), 10.0, 11.0)
    whole_plans |= {0: 0.0, 1: 1.0}
    refinement = Refinement(context, [contest], made)
    with pytest.raises(CaptureError, match="waits"):
        refinement._graph()
    refinement.run([contest], rounds=1)
    assert contest.entry.chosen == 0


def test_neighbours_that_the_library_does_better_become_a_span() -> None:
    context = context_of(transformer(), "cpu", 1)
    library = next(tactic for tactic in context.fused.tactics.values() if tactic.takes_spans)
    ours, made = context.work[3], Selection()
    for region in context.work:
        made.sites[region.name] = context.site(region)
        times = (1.0, 100.0) if region is ours else (100.0, 90.0)
        names = (context.floor.name, library.name)
        candidates = tuple(Candidate(name, {}, us) for name, us in zip(names, times, strict=True))
        made.entries[region.name] = Entry(region.name, candidates, chosen=int(region is not ours))
    steps = plans._mixed(context, made, library)
    assert steps is not None
    assert [len(step.regions) for step in steps] == [3, 1, len(context.work) - 4]
    assert [step.tactic for step in steps] == [library.name, context.floor.name, library.name]


def test_the_null_target_times_nothing() -> None:
    report = ridgeline.build(mlp(), target="null", verify="off").report
    assert (report.sites_timed, report.sites_cached) == (0, 0)


def test_a_region_that_is_the_whole_graph_keeps_its_candidates(tmp_path: Path) -> None:
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 18]> g (float[1024] x) => (float[1024] y) {'
        " a = Exp(x)  b = Mul(a, x)  y = Tanh(b) }"
    )
    lock = tmp_path / "choices.json"
    engine = ridgeline.build(model, level=1, lock=lock)
    (region,) = engine.plan.regions
    tactics = {candidate.tactic for candidate in region.candidates if candidate.refused is None}
    assert {"cpp.pointwise", "ort", "aten"} <= tactics
    again = ridgeline.build(model, level=1, lock=lock)
    assert [step.tactic for step in again.plan.steps] == [step.tactic for step in engine.plan.steps]
