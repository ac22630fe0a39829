"""Racing: the quick one wins, the hopeless are left behind early, and slow sites cost few runs.

The clock is a fake one: it moves when a call or a pause moves it, so that every figure here is exact.
"""

from __future__ import annotations

import pytest

from fake_clock import World
from ridgeline.select.race import LONG_ROUNDS, race


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    world.rule(monkeypatch)
    return world


def test_a_hopeless_slow_call_runs_twice(world: World) -> None:
    calls = [world.call("quick", 8_000), world.call("slow", 80_000)]
    times, unsteady = race(calls, each_s=0.001, pause_s=0.0005, long_rounds=LONG_ROUNDS)
    assert times == [8_000, 80_000]
    assert world.log.count("slow") == 2
    assert world.log.count("quick") > 2
    assert not unsteady


def test_a_call_that_takes_very_long_runs_once_at_first_sight(world: World) -> None:
    race([world.call("quick", 8_000), world.call("slow", 800_000)], each_s=0.001, pause_s=0.0005)
    assert world.log.count("slow") == 1


@pytest.mark.parametrize(("rival_us", "runs_on"), [(17_000, False), (13_000, True)])
def test_of_slow_calls_a_smaller_lead_is_believed(world: World, rival_us: float, runs_on: bool) -> None:
    race([world.call("best", 8_000), world.call("rival", rival_us)], each_s=0.1, pause_s=0.0)
    assert (world.log.count("rival") > 2) == runs_on


def test_the_first_run_of_a_call_is_not_its_time(world: World) -> None:
    """Threads wake up in it, and caches are another's."""
    cold = world.call("cold", 2_000, first_us=50_000)
    times, _ = race([world.call("steady", 2_100), cold], each_s=0.1, pause_s=0.001)
    assert times == [2_100, 2_000]


def test_long_calls_get_few_rounds_where_asked(world: World) -> None:
    race([world.call("few", 8_000)], each_s=0.5, pause_s=0.0005, long_rounds=LONG_ROUNDS)
    race([world.call("many", 8_000)], each_s=0.5, pause_s=0.0005)
    assert world.log.count("few") < world.log.count("many")


def test_quick_calls_are_sampled_many_times(world: World) -> None:
    times, _ = race([world.call("a", 1), world.call("b", 2)], each_s=0.1, pause_s=0.0)
    assert times == [1, 2]
    assert world.log.count("a") > 20


def test_a_call_whose_time_swings_is_unsteady(world: World) -> None:
    def swinging() -> None:
        world.now_ns += 2_000_000 if len(world.log) % 2 else 8_000_000
        world.log.append("swinging")

    assert race([swinging], each_s=0.5, pause_s=0.0)[1]


def test_libraries_are_left_to_settle_before_each_turn(world: World) -> None:
    race([world.call("a", 2_000), world.call("b", 2_000)], each_s=0.05, pause_s=0.001)
    turns = [name for i, name in enumerate(world.log) if i and name != world.log[i - 1]]
    assert all(
        previous == "pause" for name, previous in zip(turns[1:], turns, strict=False) if name != "pause"
    )
