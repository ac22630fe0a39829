"""A build keeps its time limit, and says what it left out. Clocks and races are fake: nothing waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper
from test_one_loop import context_of

import ridgeline
from ridgeline.base.choices import Candidate
from ridgeline.builder import machine_of, target_named
from ridgeline.errors import OptionError
from ridgeline.options import Options
from ridgeline.plan.make import reason
from ridgeline.plan.plan import Plan
from ridgeline.select import heats, plans, wall_clock
from ridgeline.select.candidates import offered
from ridgeline.select.context import Selection, SelectionContext
from ridgeline.select.deadline import Deadline
from ridgeline.select.experience import ON_CPU, UNKNOWN, Experience
from ridgeline.select.loop import select
from ridgeline.select.site_race import TIME_OVER
from ridgeline.tactics.cache import Entry, TimingCache

LIMIT_S = 30.0
WIDTHS = (24, 40, 56, 72, 88, 104)


class Clock:
    """Stands still until somebody moves it."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def deadline(self, left_s: float) -> Deadline:
        return Deadline(self.now_s + left_s, LIMIT_S, self)


def products(*widths: int, depth: int = 16, kind: str = "float") -> onnx.ModelProto:
    """Products one after another, each of another size: as many contests, all of one kind."""
    rng, dtype = np.random.default_rng(0), np.float16 if kind == "float16" else np.float32
    sizes = list(zip((depth, *widths[:-1]), widths, strict=True))
    lines = [f"h{i + 1} = MatMul(h{i}, w{i}) x{i + 1} = Relu(h{i + 1})" for i in range(len(sizes))]
    text = "".join(lines).replace("MatMul(h", "MatMul(x")
    head = '<ir_version: 10, opset_import: ["": 20]>'
    model = onnx.parser.parse_model(
        f"{head} g ({kind}[9,{depth}] x0) => ({kind}[9,{widths[-1]}] x{len(sizes)}) {{{text}}}"
    )
    for i, shape in enumerate(sizes):
        model.graph.initializer.append(
            numpy_helper.from_array(rng.standard_normal(shape, np.float32).astype(dtype), f"w{i}")
        )
    return model


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def races(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> list[int]:
    """How many calls each race had. A race takes a second, and its first call wins."""
    raced: list[int] = []

    def race(calls: Sequence[Callable[[], object]], **_: object) -> tuple[list[float], bool]:
        raced.append(len(calls))
        clock.now_s += 1.0
        return [10.0 + i for i in range(len(calls))], False

    monkeypatch.setattr(wall_clock, "race", race)
    return raced


def chosen(context: SelectionContext, level: int = 3) -> Selection:
    return select(replace(context, options=replace(context.options, level=level)))


def contests(made: Selection) -> list[Any]:
    """Entries of regions that had more than one willing candidate."""
    return [e for e in made.entries.values() if sum(c.refused is None for c in e.candidates) > 1]


@pytest.mark.parametrize("limit", [0, -1.0, "60", True, float("inf"), float("nan")])
def test_nonsense_is_refused(limit: Any) -> None:
    with pytest.raises(OptionError, match="time_limit is not a number of seconds above 0"):
        ridgeline.build(products(24), time_limit=limit)


def test_where_nothing_is_timed_there_is_nothing_to_limit() -> None:
    with pytest.raises(OptionError, match="at level 0 nothing is timed"):
        ridgeline.build(products(24), level=0, time_limit=5)


def test_choosing_ends_before_the_checks_begin(clock: Clock) -> None:
    ends = {
        is_verified: Deadline.of_choosing(30.0, spent_s=5.0, is_verified=is_verified, clock=clock).left_s
        for is_verified in (True, False)
    }
    assert ends == {True: pytest.approx(15.0), False: pytest.approx(25.0)}


def test_choosing_has_a_part_however_long_the_rest_took(clock: Clock) -> None:
    late = Deadline.of_choosing(30.0, spent_s=100.0, is_verified=True, clock=clock)
    assert late.left_s == pytest.approx(5.0)
    clock.now_s += 5.1
    assert late.is_over
    assert late.part(0.5).is_over


def test_without_a_limit_it_never_ends(clock: Clock) -> None:
    never = Deadline.of_choosing(None, spent_s=100.0, is_verified=True, clock=clock)
    assert not never.is_over
    assert not never.part(0.5).is_over


@pytest.mark.parametrize(("level", "limit_s"), [(1, 15.0), (3, 30.0), (4, 120.0), (5, None)])
def test_each_level_has_its_limit(level: int, limit_s: float | None) -> None:
    machine = machine_of(target_named(Options()))
    assert machine.time_limit_s(Options(level=level)) == limit_s
    assert machine.time_limit_s(Options(level=level), 3) == (limit_s and 3 * limit_s)
    assert machine.time_limit_s(Options(level=level, time_limit=7)) == 7
    assert machine.time_limit_s(Options(level=level, time_limit=7), 3) == 7


def test_no_contest_is_timed_when_the_time_is_over(clock: Clock, races: list[int]) -> None:
    context = replace(context_of(products(*WIDTHS), "cpu", 3), deadline=clock.deadline(0.0))
    made = chosen(context)
    assert races == []
    assert made.partial == made.guessed == len(contests(made)) == len(WIDTHS)
    for entry in contests(made):
        best, *others = entry.candidates
        assert entry.is_partial
        assert reason(entry.candidates) == f"not timed: {TIME_OVER}; taken by preference"
        assert all(c.untimed == TIME_OVER for c in others if c.refused is None)
        assert best.refused is None
    assert made.alternatives is not None
    assert made.alternatives.chosen_us is not None, "whole plans are compared all the same"


def test_the_largest_regions_come_first_and_no_more_than_fit(clock: Clock, races: list[int]) -> None:
    context = replace(context_of(products(*WIDTHS), "cpu", 1), deadline=clock.deadline(4.0))
    made = chosen(context, level=1)
    assert len(races) == 3, "three quarters of four seconds, a second each"
    timed = [name for name, entry in made.entries.items() if not entry.is_partial]
    largest = sorted(
        made.sites, key=lambda name: -made.sites[name].specs[made.sites[name].body.outputs[0]].numel
    )
    assert set(timed) == set(largest[:3])
    assert (made.partial, made.guessed) == (3, 3)
    guessed = [entry for entry in contests(made) if entry.is_partial]
    winner = next(made.entries[name].candidates[0].tactic for name in timed)
    for entry in guessed:
        assert entry.candidates[0].tactic == winner, "what won on the others"
        assert "like regions had it" in (entry.candidates[0].untimed or "")


def test_a_second_build_goes_on_where_the_first_stopped(
    clock: Clock, races: list[int], tmp_path: Path
) -> None:
    file = tmp_path / "timings.toml"
    context = context_of(products(*WIDTHS), "cpu", 1)
    left = []
    for _ in range(3):
        cache = TimingCache.read(file)
        made = chosen(replace(context, deadline=clock.deadline(4.0), cache=cache), level=1)
        cache.write(file)
        left.append(made.partial)
    assert left == [3, 0, 0]
    assert sum(count > 1 for count in races) == len(WIDTHS), "no contest was timed twice"
    assert made.cached >= len(WIDTHS)


def test_kernels_that_were_not_compiled_in_time_are_left_out(
    clock: Clock, races: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler takes all the time there is: libraries alone are timed."""

    def precompile(jobs: Any, *, is_over: Callable[[], bool], **_: object) -> list[Exception]:
        texts = [heats.cpp_text(offer, config) for _, _, offer, config in jobs]
        return [heats.LeftOutError(text) for text in texts if text] if is_over() else []

    monkeypatch.setattr(heats, "precompile", precompile)
    monkeypatch.setattr(heats, "COMPILING", 0.0)
    made = chosen(replace(context_of(products(*WIDTHS), "cpu", 1), deadline=clock.deadline(90.0)), level=1)
    for entry in contests(made):
        kinds = {c.tactic.split(".")[0] for c in entry.candidates if c.untimed == TIME_OVER}
        assert kinds == {"cpp"}
        assert entry.candidates[0].median_us is not None
    assert (made.partial, made.guessed) == (len(WIDTHS), 0)


def test_what_lost_badly_on_like_regions_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, races: list[int]
) -> None:
    def race(calls: Sequence[Callable[[], object]], **_: object) -> tuple[list[float], bool]:
        races.append(len(calls))
        return [10.0, *(100.0 for _ in calls[1:])], False

    monkeypatch.setattr(wall_clock, "race", race)
    made = chosen(context_of(products(*WIDTHS), "cpu", 3))
    tactics, again, configs, more = races
    assert tactics == again > 2, "two regions try all tactics, the others have one candidate left"
    assert configs == more > 1
    left_out = [c.untimed for entry in contests(made) for c in entry.candidates if c.untimed]
    assert any("10.0 times slower or more on 2 like regions" in why for why in left_out)
    assert any("first config of its tactic was 10.0 times slower" in why for why in left_out)
    assert not any(entry.is_partial for entry in made.entries.values()), "decided, not cut short"
    assert made.partial == 0


def test_levels_above_the_third_time_everything(monkeypatch: pytest.MonkeyPatch, races: list[int]) -> None:
    made = chosen(context_of(products(*WIDTHS), "cpu", 4), level=4)
    assert len(races) == len(WIDTHS)
    assert not [c for entry in contests(made) for c in entry.candidates if c.untimed]


def test_further_configs_run_against_the_best(monkeypatch: pytest.MonkeyPatch, races: list[int]) -> None:
    """Their times are set in proportion to it: the machine may be slower in the second race."""
    calls_of: list[int] = []

    def race(calls: Sequence[Callable[[], object]], **_: object) -> tuple[list[float], bool]:
        calls_of.append(len(calls))
        is_second = len(calls_of) == 2
        return ([20.0, *(10.0 for _ in calls[1:])] if is_second else [10.0 for _ in calls]), False

    monkeypatch.setattr(wall_clock, "race", race)
    made = chosen(context_of(products(72), "cpu", 3))
    (entry,) = contests(made)
    assert len(calls_of) == 2
    times = sorted(c.median_us for c in entry.candidates[1:] if c.median_us is not None)
    assert set(times) == {5.0, 10.0}, "half the time of the best in the same race"
    assert entry.candidates[0].tactic == "cpp.gemm"


def test_a_guess_that_does_not_run_gives_way_to_the_next(clock: Clock, races: list[int]) -> None:
    context = context_of(products(24), "cpu", 3)
    first = willing(context)[0]
    tactic = context.fused.tactics[first.tactic]

    def broken(*_: object) -> Any:
        raise RuntimeError("broken on purpose")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(tactic), "examine", broken)
        made = chosen(replace(context, deadline=clock.deadline(0.0)))
    (entry,) = contests(made)
    assert entry.candidates[0].tactic != first.tactic
    refused = {c.tactic: c.refused for c in entry.candidates if c.refused}
    assert "broken on purpose" in refused[first.tactic]


def willing(context: SelectionContext) -> Sequence[Candidate]:
    """Those of the only region."""
    (region,) = context.work
    return offered(context, context.site(region))[0]


@pytest.mark.parametrize(
    ("best_us", "untimed", "is_ours"),
    [(20.0, "2.6 times slower or more on 2 like regions", True), (4.0, "2.6 times slower or more", False),
     (20.0, TIME_OVER, False)],
)  # fmt: skip
def test_a_library_that_was_hopeless_gets_no_span(best_us: float, untimed: str, is_ours: bool) -> None:
    """Unless a border to it costs more than it loses."""
    context = context_of(products(24), "null", 3)
    library = next(tactic for tactic in context.fused.tactics.values() if tactic.takes_spans)
    mine, theirs = Candidate("cpp.gemm", {}, best_us), Candidate(library.name, {}, untimed=untimed)
    assert plans._wins_alone(Entry("x", (mine, theirs)), library) == is_ours


def test_experience_is_of_like_regions_first() -> None:
    seen, kind, other = Experience(ON_CPU), (("a", "b"), 2), (("a", "b"), 3)
    assert not seen.expected(kind, ("a", 0)).is_known
    assert seen.expected(kind, ("a", 0)).ratio == UNKNOWN
    seen.learn(other, {("a", 0): 30.0, ("b", 0): 10.0}, 10.0)
    assert seen.expected(kind, ("a", 0)).ratio == 3.0
    assert "other sizes" in seen.expected(kind, ("a", 0)).basis
    seen.learn(kind, {("a", 0): 10.0, ("b", 0): 20.0}, 10.0)
    assert seen.expected(kind, ("a", 0)).ratio == 1.0
    assert seen.why_hopeless_tactic(kind, "b") is None, "one region is no rule"


def test_the_report_says_what_was_left_out_and_the_plan_where() -> None:
    engine = ridgeline.build(products(*WIDTHS), time_limit=1e-9, progress=False)
    (line,) = [line for line in engine.report.warnings if "time limit" in line]
    assert f"{len(WIDTHS)} of" in line
    assert "--time-limit 2e-09" in line
    assert engine.report.verified
    notes = [c.untimed for region in engine.plan.regions for c in region.candidates if c.untimed]
    assert len(notes) > len(WIDTHS)
    again = Plan.from_json(engine.plan.to_json())
    assert again == engine.plan


def test_a_lock_pins_what_was_taken_untimed(tmp_path: Path) -> None:
    lock = tmp_path / "choices.lock"
    first = ridgeline.build(products(*WIDTHS), time_limit=1e-9, lock=lock, verify="off", progress=False)
    second = ridgeline.build(products(*WIDTHS), lock=lock, verify="off", progress=False)
    assert second.plan.to_json() == first.plan.to_json()


def test_enough_time_leaves_no_word(tmp_path: Path) -> None:
    report = ridgeline.build(products(24), level=1, time_limit=3600, verify="off", progress=False).report
    assert not [line for line in report.warnings if "time limit" in line]


def test_a_null_target_times_nothing_and_limits_nothing() -> None:
    limited = ridgeline.build(products(24), target="null", time_limit=1e-9, verify="off")
    free = ridgeline.build(products(24), target="null", verify="off")
    assert limited.plan.to_json() == free.plan.to_json()
