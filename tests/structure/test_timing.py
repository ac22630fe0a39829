"""The arithmetic and the protocol of timing, on a clock that only moves when a call or a pause moves it."""

from __future__ import annotations

import gc

import pytest

from fake_clock import World
from ridgeline.base import timing
from ridgeline.base.timing import Timing, interleave, paired_ratio


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    world.rule(monkeypatch)
    return world


def test_a_timing_knows_its_distribution() -> None:
    taken = Timing(tuple(float(i) for i in range(100, 0, -1)), inner=4)
    assert (taken.median_us, taken.min_us, taken.mean_us) == (50.5, 1.0, 50.5)
    assert (taken.p10_us, taken.p90_us) == (10.0, 90.0)
    assert taken.spread == pytest.approx(80 / 50.5)
    assert taken.samples_us[0] == 100.0, "samples stay in the order they were taken"


@pytest.mark.parametrize(
    ("n", "p", "index"),
    [
        (10, 90, 8),
        (10, 99, 9),
        (100, 99, 98),
        (10, 0, 0),
        (10, 100, 9),
        (1, 50, 0),
        (7, 95, 6),
        (200, 95, 189),
    ],
)
def test_percentile_counts_as_trtexec_does(n: int, p: float, index: int) -> None:
    assert Timing(tuple(float(i) for i in range(n))).percentile(p) == index


def test_percentile_never_leaves_the_samples() -> None:
    for n in range(1, 40):
        taken = Timing(tuple(float(i) for i in range(n)))
        assert [taken.percentile(p) for p in range(101)] == sorted(taken.percentile(p) for p in range(101))


def test_no_spread_in_equal_or_zero_samples() -> None:
    assert Timing((3.0, 3.0, 3.0)).spread == 0
    assert Timing((0.0, 0.0)).spread == 0


def test_paired_ratio_ignores_drift_that_hits_both() -> None:
    assert paired_ratio(Timing((2.0, 20.0, 200.0)), Timing((1.0, 10.0, 100.0))) == 2.0
    with pytest.raises(ValueError, match="zip"):
        paired_ratio(Timing((1.0, 2.0)), Timing((1.0,)))


def test_each_sample_is_the_mean_of_its_calls(world: World) -> None:
    quick, slow = interleave([world.call("quick", 7), world.call("slow", 900)], rounds=5, min_sample_us=200)
    assert quick.median_us == pytest.approx(7)
    assert slow.median_us == pytest.approx(900)
    assert quick.inner * 7 >= 200, "one sample must last min_sample_us"
    assert quick.inner * 7 < 300, "and not much longer"
    assert slow.inner == 1


def test_order_rotates(world: World) -> None:
    calls = [world.call(name, 500) for name in "abc"]
    marks: list[int] = []
    interleave(calls, rounds=4, on_round=lambda done, expected: marks.append(len(world.log)))
    rounds = ["".join(world.log[end - 3 : end]) for end in marks]
    assert rounds == ["abc", "bca", "cab", "abc"]


def test_every_call_is_warm_before_the_first_sample(world: World) -> None:
    lazy, _ = interleave([world.call("lazy", 500, first_us=1e6), world.call("b", 500)], rounds=3)
    assert max(lazy.samples_us) == pytest.approx(500)
    assert lazy.inner == 1


def test_the_budget_stops_the_rounds_for_all(world: World) -> None:
    heard: list[tuple[int, int]] = []
    first, second = interleave(
        [world.call("a", 1000), world.call("b", 4000)],
        budget_s=0.1,
        on_round=lambda done, expected: heard.append((done, expected)),
    )
    assert len(first.samples_us) == len(second.samples_us) == 20
    assert heard[0] == (1, 20)
    assert heard[-1] == (20, 20)


def test_three_rounds_even_when_one_eats_the_budget(world: World) -> None:
    (only,) = interleave([world.call("a", 5e6)], budget_s=0.1)
    assert len(only.samples_us) == 3


def test_rounds_are_a_ceiling_and_the_budget_still_holds(world: World) -> None:
    (few,) = interleave([world.call("a", 1000)], rounds=2, budget_s=10)
    assert len(few.samples_us) == 2
    (cut,) = interleave([world.call("a", 1000)], rounds=1000, budget_s=0.05)
    assert len(cut.samples_us) == 50


def test_settling_pauses_before_each_block_and_wakes_the_pool(world: World) -> None:
    a, b = interleave([world.call("a", 1000), world.call("b", 2000)], rounds=3, settle_s=0.02, budget_s=10)
    assert len(a.samples_us) == len(b.samples_us) == 30, "ten of the slower fill the pause"
    turns = " ".join(world.log).split("pause")[1:]
    assert len(turns) == 2 + 3 * 2
    assert all(len(set(turn.split())) == 1 for turn in turns), "no turn mixes two calls"
    assert all(len(turn.split()) == 11 for turn in turns[2:]), "one uncounted sample, then the block"


def test_blocks_stay_short(world: World) -> None:
    (quick,) = interleave([world.call("a", 200)], rounds=1, settle_s=1.0)
    (slow,) = interleave([world.call("a", 10_000)], rounds=1, settle_s=0.001)
    assert len(quick.samples_us) == timing.MAX_BLOCK
    assert len(slow.samples_us) == timing.MIN_BLOCK


def test_every_run_of_a_long_call_is_a_sample(world: World) -> None:
    """But for the first, which tells how long it is: a plan of a second must not run twenty times."""
    (long,) = interleave([world.call("a", 1e6)], budget_s=0.1, settle_s=0.01)
    assert len(long.samples_us) == 3
    assert world.log.count("a") == 1 + 3


def test_a_free_call_does_not_calibrate_for_ever(world: World) -> None:
    (free,) = interleave([world.call("a", 0)], rounds=1)
    assert free.inner == timing.MAX_INNER


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_rests_during_samples_only(world: World, enabled: bool) -> None:
    before = gc.isenabled()
    during: list[bool] = []
    try:
        (gc.enable if enabled else gc.disable)()
        interleave([lambda: during.append(gc.isenabled())], rounds=1, min_sample_us=0)
        after = gc.isenabled()
    finally:
        (gc.enable if before else gc.disable)()
    assert not any(during)
    assert after is enabled


def test_a_failing_call_gives_the_collector_back(world: World) -> None:
    def fail() -> None:
        raise RuntimeError("no such kernel")

    with pytest.raises(RuntimeError, match="no such kernel"):
        interleave([fail])
    assert gc.isenabled()


def test_nothing_to_time_and_nonsense(world: World) -> None:
    assert interleave([]) == []
    with pytest.raises(ValueError, match="rounds"):
        interleave([world.call("a", 1)], rounds=0)
