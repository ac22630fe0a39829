"""Schedules over streams: waits that suffice and no more, estimates, and what a stranger's plan may say."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from ridgeline.plan.stream_choice import (
    WAIT_US,
    Task,
    assign,
    best_schedule,
    by_critical_path,
    critical_us,
    levels,
    simulate,
)
from ridgeline.plan.streams import (
    MAX_STREAMS,
    Schedule,
    needs_of,
    schedule_of,
    schedule_problems,
    with_waits,
)


@dataclass(frozen=True)
class Step:
    """As much of a plan's step as a schedule looks at."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    stream: int = 0
    waits: tuple[int, ...] = ()


def chain(n: int, us: float = 10.0) -> list[Task]:
    return [Task(us, 0.2, (i - 1,) if i else ()) for i in range(n)]


def branches(*lengths: int, us: float = 10.0, demand: float = 0.2) -> list[Task]:
    """A step, branches of so many steps each behind it, and a step that needs them all."""
    tasks, ends = [Task(us, demand)], []
    for length in lengths:
        last = 0
        for _ in range(length):
            tasks.append(Task(us, demand, (last,)))
            last = len(tasks) - 1
        ends.append(last)
    return [*tasks, Task(us, demand, tuple(ends))]


def random_needs(rng: random.Random, n: int) -> list[tuple[int, ...]]:
    return [tuple(sorted(rng.sample(range(i), min(i, rng.randint(0, 3))))) for i in range(n)]


def reached(schedule: Schedule) -> list[set[int]]:
    """What is over before each step, by walking back along the streams and the waits."""
    made: list[set[int]] = []
    for i, stream in enumerate(schedule.streams):
        same = [j for j in range(i) if schedule.streams[j] == stream]
        earlier = [*same[-1:], *schedule.waits[i]]
        made.append({*earlier, *(k for j in earlier for k in made[j])})
    return made


def test_a_value_is_needed_from_whoever_makes_it() -> None:
    steps = [Step("a", ("x",), ("u",)), Step("b", ("x", ""), ("v", "w")), Step("c", ("u", "w", "v"), ("y",))]
    assert needs_of(steps) == [(), (), (0, 1)]


def test_waits_across_streams_only() -> None:
    made = with_waits([0, 0, 1, 1, 0], [(), (0,), (0,), (2,), (1, 3)])
    assert made.waits == ((), (), (0,), (), (3,))


def test_a_wait_that_another_implies_is_left_out() -> None:
    # step 3 has waited for step 1, so whoever waits for step 3 need not wait for step 1
    made = with_waits([0, 1, 0, 2, 3], [(), (), (), (1,), (0, 1, 3)])
    assert made.waits[4] == (0, 3)


@pytest.mark.parametrize("seed", range(30))
def test_waits_suffice_and_none_is_too_many(seed: int) -> None:
    rng = random.Random(seed)
    needs = random_needs(rng, 30)
    made = with_waits([rng.randrange(MAX_STREAMS) for _ in needs], needs)
    before = reached(made)
    for i, own in enumerate(needs):
        assert set(own) <= before[i]
        assert {j for j in range(i) if made.before[i] >> j & 1} == before[i]
        for other in made.waits[i]:
            assert made.streams[other] != made.streams[i]
            fewer = tuple(w for w in made.waits[i] if w != other)
            waits = (*made.waits[:i], fewer, *made.waits[i + 1 :])
            assert other not in reached(Schedule(made.streams, waits))[i]


def test_one_stream_is_no_schedule() -> None:
    assert schedule_of([Step("a", (), ("u",)), Step("b", ("u",), ("v",))]) is None
    assert schedule_of([Step("a", (), ("u",)), Step("b", ("u",), ("v",), 1, (0,))]) == Schedule(
        (0, 1), ((), (0,))
    )


def test_some_of_the_steps_keep_their_order() -> None:
    made = with_waits([0, 1, 1, 0], [(), (0,), (1,), (2,)])
    # step 1 does nothing at these shapes; what it puts in order stays
    assert made.before_among([0, 2, 3]) == (0b000, 0b001, 0b011)


FORK = (
    Step("a", ("x",), ("u",)),
    Step("b", ("u",), ("v",), 1, (0,)),
    Step("c", ("u",), ("w",)),
    Step("d", ("v", "w"), ("y",), 0, (1,)),
)


def test_a_right_schedule_has_no_problems() -> None:
    assert not list(schedule_problems(FORK, may_fork=True))


@pytest.mark.parametrize(
    ("place", "changed", "said"),
    [
        (3, {"waits": ()}, "d: reads what b makes on stream 1, and does not wait for it"),
        (1, {"waits": ()}, "b: reads what a makes on stream 0"),
        (1, {"stream": MAX_STREAMS}, f"b: stream {MAX_STREAMS}, want 0 to {MAX_STREAMS - 1}"),
        (1, {"stream": -1}, "b: stream -1"),
        (1, {"waits": (1,)}, "b: waits for step 1, want one before it"),
        (1, {"waits": (0, -1)}, "b: waits for step -1"),
        (1, {"waits": (2**62,)}, "b: waits for step"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(place: int, changed: dict, said: str) -> None:  # type: ignore[type-arg]
    steps = [Step(**{**vars(step), **(changed if i == place else {})}) for i, step in enumerate(FORK)]
    found = list(schedule_problems(steps, may_fork=True))
    assert any(line.startswith(said) for line in found), found


def test_streams_are_refused_where_there_are_none() -> None:
    assert list(schedule_problems(FORK, may_fork=False)) == [
        "steps are on several streams, which this target has not"
    ]


def test_the_critical_path_goes_first() -> None:
    tasks = branches(1, 1, 5)
    assert levels(tasks)[0] == critical_us(tasks) == 70.0
    order = by_critical_path(tasks)
    assert order.index(3) < order.index(1)
    assert all(order.index(need) < order.index(i) for i, task in enumerate(tasks) for need in task.needs)


def test_a_chain_stays_on_one_stream() -> None:
    made = best_schedule(chain(20))
    assert made.schedule == Schedule((0,) * 20, ((),) * 20)
    assert made.gain == 0


def test_two_towers_run_side_by_side() -> None:
    towers = [
        *chain(10),
        *(Task(10.0, 0.2, (i + 9,) if i else ()) for i in range(10)),
        Task(5.0, 0.2, (9, 19)),
    ]
    made = best_schedule(towers)
    assert made.schedule.streams[:10] == (0,) * 10
    assert made.schedule.streams[10:20] == (1,) * 10
    assert made.schedule.n_waits == 1
    assert made.us == pytest.approx(105 + WAIT_US)


def test_four_branches_take_as_long_as_the_longest() -> None:
    made = best_schedule(branches(1, 2, 3, 2))
    assert made.us == pytest.approx(50, abs=3 * WAIT_US)
    assert made.schedule.n_streams <= 4


def test_a_further_stream_must_be_worth_its_memory() -> None:
    # on three streams the two short branches follow one another, which costs nothing
    made = best_schedule(branches(3, 3, 1, 1, us=1000.0))
    assert made.schedule.n_streams == 3


def test_steps_that_fill_the_device_stay_in_order() -> None:
    made = best_schedule(branches(2, 2, demand=1.0))
    assert made.schedule.n_streams == 1
    assert made.gain == 0


def test_steps_shorter_than_a_wait_stay_in_order() -> None:
    assert best_schedule(branches(1, 1, us=WAIT_US / 2)).schedule.n_streams == 1


def test_more_branches_than_streams() -> None:
    made = best_schedule(branches(*[3] * 12, demand=0.05))
    assert made.schedule.n_streams == MAX_STREAMS
    assert made.us < 0.5 * made.in_order_us


def test_nothing_to_run() -> None:
    assert best_schedule([]).us == 0
    assert best_schedule([Task(0.0), Task(0.0)]).gain == 0


@pytest.mark.parametrize("seed", range(40))
def test_estimates_lie_between_the_critical_path_and_one_stream(seed: int) -> None:
    rng = random.Random(seed)
    tasks = [Task(rng.choice([0.0, 1.0, 7.5, 30.0]), rng.random(), own) for own in random_needs(rng, 25)]
    made = best_schedule(tasks)
    assert critical_us(tasks) - 1e-6 <= made.us <= made.in_order_us + 1e-6
    assert made.us == pytest.approx(simulate(tasks, made.schedule))
    before = reached(made.schedule)
    assert all(set(task.needs) <= before[i] for i, task in enumerate(tasks))
    streams = assign(tasks, by_critical_path(tasks), MAX_STREAMS)
    assert set(streams) <= set(range(MAX_STREAMS))


@pytest.mark.parametrize("seed", range(20))
def test_steps_that_stay_are_never_side_by_side(seed: int) -> None:
    rng = random.Random(seed)
    tasks = [Task(10.0, 0.1, own, stays=rng.random() < 0.3) for own in random_needs(rng, 25)]
    made = best_schedule(tasks)
    assert len({stream for task, stream in zip(tasks, made.schedule.streams, strict=True) if task.stays}) <= 1
