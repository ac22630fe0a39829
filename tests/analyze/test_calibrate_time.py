"""`ridge calibrate` ends in time: what is measured, in which order, and what is said of the rest."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from ridgeline.analyze import calibrate
from ridgeline.analyze.calibrate import measure_sets
from ridgeline.analyze.calibration_graph import HALF, Graph
from ridgeline.analyze.calibration_networks import Pyramid
from ridgeline.analyze.calibration_pace import FIRST_S, Pace
from ridgeline.analyze.calibration_sets import CPU_SETS, GPU_SETS, NetworkSet, dtype_of, sets_of
from ridgeline.analyze.predict import computed_sites, fused_for, predict
from ridgeline.base.ceilings import Ceilings, Point
from ridgeline.base.spec import Target
from ridgeline.base.target_files import known_ceilings, read_target, write_target
from ridgeline.cli.commands_predict import TimeLimit
from ridgeline.errors import TargetError
from ridgeline.options import make_options

Ridge = Callable[..., tuple[int, str, str]]
GPU, CPU = Target("cuda", "sm_90"), Target("cpu", "x86_64", 1)
WORTH = Path(__file__).parents[2] / "bench" / "results" / "calibration-worth-2026-11-18.json"
POINT = Point("rows float16", (1.0,) * 6, 2.0, 1.0)


class World:
    """A clock that builds move, and a machine where a unit of a set's cost takes `pace_s`."""

    def __init__(self, pace_s: float = 0.5, slow: dict[str, float] | None = None) -> None:
        self.now = 1000.0
        self.pace_s, self.slow = pace_s, slow or {}
        self.begun: list[str] = []
        self.profiled = 0
        self.waits: list[tuple[str, float]] = []
        self.closed_before = ""

    def rule(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(calibrate, "build", self.build)
        monkeypatch.setattr(calibrate, "points_of", lambda engine, trace, cost: [POINT])
        monkeypatch.setattr(NetworkSet, "model", lambda each, dtype: each)

    def build(self, model: NetworkSet, *, progress: Callable[..., None], **options: Any) -> Any:
        """As many messages as regions; the set is told of by name before any of them."""
        assert options["verify"] == "off"
        self.begun.append(model.name)
        for region in range(model.regions):
            progress("select", region, model.regions, "")
            self.now += model.cost * self.pace_s * self.slow.get(model.name, 1.0) / model.regions
        return SimpleNamespace(example_inputs=dict, profile=self.profile)

    def profile(self, inputs: object) -> None:
        self.profiled += 1

    # the process beside it
    def wait_for(self, name: str, seconds: float) -> bool:
        self.waits.append((name, seconds))
        return True

    def close(self) -> None:
        self.closed_before = self.closed_before or f"after {len(self.begun)}"


def measured(world: World, limit_s: float, target: Target = GPU) -> Ceilings:
    pace = Pace(limit_s, lambda: world.now)
    return measure_sets(known_ceilings("h200"), target, pace, world)  # type: ignore[arg-type]


def test_all_is_measured_where_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.rule(monkeypatch)
    found = measured(world, 1e4)
    assert world.begun == [each.name for each in GPU_SETS]
    assert [name for name, _ in world.waits] == world.begun, "compiled ahead in the same order"
    assert len(found.points) == len(GPU_SETS)
    assert not found.left_out
    assert not world.closed_before


def test_a_set_that_does_not_fit_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.rule(monkeypatch)
    began, limit_s = world.now, 60.0
    found = measured(world, limit_s)
    assert world.now - began <= limit_s, "every build took what it was expected to"
    assert world.begun == sorted(world.begun, key=[each.name for each in GPU_SETS].index)
    assert world.begun[0] == GPU_SETS[0].name
    assert {*world.begun} ^ {*found.left_out} == {each.name for each in GPU_SETS}
    assert len(found.points) == world.profiled == len(world.begun)
    left_s = limit_s - (world.now - began)
    smallest = min(each.cost for each in GPU_SETS if each.name in found.left_out)
    assert smallest * world.pace_s > left_s, "what would have fitted was measured"
    assert all("s expected" in why and "s left" in why for why in found.left_out.values())


def test_what_is_compiled_ahead_for_nothing_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.rule(monkeypatch)
    found = measured(world, 60.0)
    place = [each.name in found.left_out for each in GPU_SETS].index(True)
    assert world.closed_before == f"after {place}"


def test_expectations_are_learned_on_this_machine() -> None:
    world = World()
    pace, (first, second) = Pace(100.0, lambda: world.now), GPU_SETS[:2]
    assert pace.expected_s(first) == pytest.approx(FIRST_S * first.cost)
    pace.learn(first, 3.0 * first.cost)
    assert pace.expected_s(second) == pytest.approx(3.0 * second.cost)
    pace.learn(second, 1.0 * second.cost)
    between = (3.0 * first.cost + second.cost) / (first.cost + second.cost)
    assert pace.expected_s(first) == pytest.approx(between * first.cost)
    slow = Pace(100.0, lambda: world.now)
    assert not slow.why_not(second)
    slow.learn(first, 10.0 * first.cost)
    assert slow.why_not(second)


def test_a_build_that_takes_far_longer_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the next message of its progress; and nothing is begun after it."""
    third = GPU_SETS[2]
    world = World(0.1, {third.name: 1000.0})
    world.rule(monkeypatch)
    began, limit_s = world.now, 60.0
    found = measured(world, limit_s)
    step_s = third.cost * world.pace_s * 1000.0 / third.regions
    assert limit_s < world.now - began <= limit_s + step_s
    assert world.begun == [each.name for each in GPU_SETS[:3]]
    assert len(found.points) == 2
    assert "stopped when the time was over" in found.left_out[third.name]
    assert all("0 s left" in found.left_out[each.name] for each in GPU_SETS[3:])


def test_what_ends_after_the_limit_is_not_profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    first = GPU_SETS[0]
    world = World(0.1)
    world.rule(monkeypatch)
    build = world.build

    def late(model: NetworkSet, **options: Any) -> Any:
        engine = build(model, **options)
        world.now += 1000.0  # after its last message
        return engine

    monkeypatch.setattr(calibrate, "build", late)
    found = measured(world, 60.0)
    assert not world.profiled
    assert "stopped" in found.left_out[first.name]


def test_compilers_are_waited_for_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.rule(monkeypatch)

    def slow(name: str, seconds: float) -> bool:
        world.waits.append((name, seconds))
        world.now += seconds
        return False

    monkeypatch.setattr(world, "wait_for", slow)
    found = measured(world, 60.0)
    assert [seconds for _, seconds in world.waits] == [60.0]
    assert not world.begun
    assert "stopped" in found.left_out[GPU_SETS[0].name]


def test_rates_come_first_and_count(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.rule(monkeypatch)
    closed: list[int] = []

    def rates(target: Target, *, tell: object) -> Ceilings:
        assert not world.begun
        world.now += 58.0
        return known_ceilings("h200")

    monkeypatch.setattr(calibrate, "measure_rates", rates)
    monkeypatch.setattr(calibrate, "is_here", lambda target: True)
    beside = SimpleNamespace(wait_for=world.wait_for, close=lambda: closed.append(1))
    monkeypatch.setattr(calibrate, "Ahead", lambda target: beside)
    found = calibrate.calibrate(GPU, limit_s=60.0, clock=lambda: world.now)
    assert not world.begun, "two seconds are left"
    assert len(found.left_out) == len(GPU_SETS)
    assert closed
    monkeypatch.setattr(calibrate, "measure_rates", lambda target, *, tell: 1 / 0)
    closed.clear()
    with pytest.raises(ZeroDivisionError):
        calibrate.calibrate(GPU, clock=lambda: world.now)
    assert closed, "the process beside it ends also where rates cannot be measured"


def test_sets_come_in_the_order_of_their_worth() -> None:
    """As bench/calibration_worth.py found it, beside those whose worth it could not find."""
    found = json.loads(WORTH.read_text())
    unknown = found["sets_without_points"]
    assert [each.name for each in GPU_SETS if each.name not in unknown] == found["order"]
    assert {each.name for each in GPU_SETS} >= {*unknown}
    # the first of them keep what is asked of predictions, well within the limit
    assert found["first_inside_bounds_s"] < 0.6 * calibrate.TIME_LIMIT_S


@pytest.mark.parametrize("name", ["attention", "rows", "batches of groups", "large maps", "enlarged maps"])
def test_the_cost_of_a_set_is_that_of_its_regions(name: str) -> None:
    count_regions(next(each for each in GPU_SETS if each.name == name), GPU)


@pytest.mark.parametrize("each", CPU_SETS, ids=lambda each: each.name)
def test_the_cost_of_a_set_on_a_processor(each: NetworkSet) -> None:
    count_regions(each, CPU)


def count_regions(each: NetworkSet, target: Target) -> None:
    _, fused, shapes = fused_for(each.model(dtype_of(target)), target, make_options({}))
    assert len({site.key for _, site in computed_sites(fused, shapes, target)}) == each.regions


def test_names_of_sets_are_told_apart() -> None:
    for target in (GPU, CPU):
        names = [each.name for each in sets_of(target)]
        assert len({*names}) == len(names)


def test_a_target_file_keeps_what_was_left_out(tmp_path: Path) -> None:
    found = replace(
        known_ceilings("h200"), measured="today", points=(POINT,), left_out={"rows": '9 s "expected"'}
    )
    path = write_target(found, tmp_path / "mine.toml")
    assert read_target(path).left_out == found.left_out
    path.write_text(path.read_text().replace('"9 s \\"expected\\""', "5"))
    with pytest.raises(TargetError, match="does not read") as refused:
        read_target(path)
    assert "left_out.rows" in refused.value.got


def enlarged() -> bytes:
    graph = Graph("g", HALF)
    Pyramid(1, (16,), 64).add_to(graph)
    return graph.model().SerializeToString()


def test_a_prediction_names_what_was_not_calibrated(ridge: Ridge, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(enlarged())
    plain = predict(model, known_ceilings("h200"), make_options({}))
    assert not plain.uncalibrated, "nobody measured that machine: it is said where its figures are"
    families = {step.family: step for step in plain.steps}
    points = tuple(
        Point(family, (1.0,) * 12, 2.0, 1.0) for family in families if not family.startswith("Resize")
    )
    measured = replace(known_ceilings("h200"), measured="today", points=points, left_out={"rows": "no time"})
    monkeyed = replace(measured, points=())
    assert predict(model, monkeyed, make_options({})).uncalibrated == tuple(families)
    told = write_target(measured, tmp_path / "mine.toml")
    status, _, err = ridge("predict", model, "--target", told)
    assert (status, "another version" in err) == (1, True), "those points correct nothing"
    rates = write_target(monkeyed, tmp_path / "rates.toml")
    status, out, _ = ridge("predict", model, "--target", rates)
    assert status == 0
    words = " ".join(out.split())
    assert f"{len(plain.steps)} steps of kinds that were not measured" in words
    assert "the calibration had no time for rows" in words
    found = json.loads(ridge("predict", model, "--target", rates, "--json")[1])
    assert found["left_out"] == ["rows"]
    assert found["uncalibrated"] == list(families)


def test_the_command_passes_its_limit_on(
    ridge: Ridge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []

    def quick(target: Target, *, limit_s: float, tell: object) -> Ceilings:
        limits.append(limit_s)
        return replace(
            known_ceilings("h200"), kind="cpu", measured="today", left_out={"wide maps": "9 s expected"}
        )

    monkeypatch.setattr(calibrate, "calibrate", quick)
    out = tmp_path / "mine.toml"
    status, told, note = ridge("calibrate", "--target", "cpu", "-o", out)
    assert status == 0
    assert "1 set of networks left out: --time-limit 340 gives them time" in note
    assert "wide maps: 9 s expected" in told
    assert "took" in told
    status, told, _ = ridge("calibrate", "--target", "cpu", "-o", out, "--time-limit", "40", "--json")
    assert json.loads(told)["left_out"] == {"wide maps": "9 s expected"}
    assert json.loads(told)["seconds"] >= 0
    default, short = limits
    assert f"default: {calibrate.TIME_LIMIT_S:g})" in get_args(TimeLimit)[1].help
    assert calibrate.TIME_LIMIT_S - 60 < default <= calibrate.TIME_LIMIT_S < 180
    assert 0 < short <= 40
    assert read_target(out).left_out == {"wide maps": "9 s expected"}
    assert ridge("calibrate", "--time-limit", "0")[0] == 2
    status, _, err = ridge("calibrate", "--target", "cpu", "--rates", "--time-limit", "9")
    assert status == 1
    assert "--rates measures no networks" in err
