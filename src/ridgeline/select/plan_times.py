"""Whole plans timed against each other, and their steps in place: the steps must add up to the whole.

Plans that come out alike run against each other again, for longer, and the faster one wins. Steps are timed
alone first, against their rivals. One that had no rival has no time yet: it gets the one it takes in the
running plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from ridgeline.base.choices import Candidate
from ridgeline.base.timing import interleave, paired_ratio, wall_times_in_turn
from ridgeline.errors import BuildError, LimitError, failure
from ridgeline.options import Options
from ridgeline.runtime.instance import Instance
from ridgeline.select.deadline import Deadline
from ridgeline.select.race import EFFORTS, fastest, race, ranked
from ridgeline.tactics.cache import Entry

# thread pools of different libraries spin after their last call and steal a core from the next
SETTLE_S = 0.01
# how far a plan and the sum of its steps may be apart before both are measured again, and how often
APART, SLACK_US, RACES = 2.0, 20.0, 3
# what timing the steps of one plan may take, and the most rounds that it needs
IN_PLACE_S, MAX_ROUNDS = 0.05, 10
# on each plan where the time limit is over: which plan it is decides more than which tactics
LEAST_S = 0.1
# plans this close to the best run against each other again; this close after that, the earlier one is taken
ALIKE, SAME = 0.08, 0.01
Made = TypeVar("Made", bound=Instance)


@dataclass
class Rival:
    """A whole plan that can be run, with the time of each of its steps as far as it is known."""

    instance: Instance
    steps_us: list[float | None]

    def is_apart(self, whole_us: float) -> bool:
        """Whether the steps add up to something else than the plan takes."""
        parts_us = sum(us or 0.0 for us in self.steps_us)
        short, long = sorted((parts_us, whole_us))
        return long > APART * short + SLACK_US

    def time_steps(self, whole_us: float) -> None:
        """Fill in what is not known; where the steps do not add up, take all of them as they run in place."""
        calls = self.instance.calls
        if len(calls) == 1:
            self.steps_us[self.instance.call_steps[0]] = whole_us
        is_complete = all(self.steps_us[i] is not None for i in self.instance.call_steps)
        if is_complete and not self.is_apart(whole_us):
            return
        rounds = max(1, min(MAX_ROUNDS, int(IN_PLACE_S * 1e6 / max(whole_us, 1.0))))
        medians = wall_times_in_turn(calls, rounds)
        totals: dict[int, float] = {}
        for index, us in zip(self.instance.call_steps, medians, strict=True):
            totals[index] = totals.get(index, 0.0) + us
        for index, us in totals.items():
            if self.steps_us[index] is None:
                self.steps_us[index] = round(us, 3)
        if self.is_apart(whole_us):
            for index, us in totals.items():
                self.steps_us[index] = round(us, 3)


def compare_plans(
    known: Mapping[str, Sequence[float | None]],
    make: Callable[[str], Instance],
    *,
    options: Options,
    deadline: Deadline,
) -> tuple[Entry, dict[str, list[float | None]]]:
    """Time whole plans as they will run; and what each of their steps takes, where that was not `known`."""
    affordable_s = deadline.left_s / (RACES * max(len(known), 1))
    plan_s = min(EFFORTS[options.level].plan_s, max(affordable_s, LEAST_S))
    options.tell("compare plans", 0, 2 * len(known))
    rivals: dict[str, Rival] = {}
    dropped = []
    for i, (name, steps_us) in enumerate(known.items()):
        options.tell("compare plans", i, 2 * len(known), name)
        try:
            rivals[name] = Rival(run_once(make(name)), list(steps_us))
        except LimitError:
            raise
        except Exception as error:  # a plan that breaks is refused with its message; another one may do
            dropped.append(Candidate(name, {}, refused=failure(error)))
    if not rivals:
        raise none_runs(dropped)
    times, is_unsteady = race_plans(list(rivals.values()), each_s=plan_s)
    tie_s = min(EFFORTS[options.level].tie_s, deadline.left_s / len(rivals))
    winner, times = break_tie([rival.instance.execute for rival in rivals.values()], times, each_s=tie_s)
    with torch.inference_mode():
        for rival, us in zip(rivals.values(), times, strict=True):
            rival.time_steps(us)  # a step that is the whole plan has the plan's time
    timed = [Candidate(name, {}, us) for name, us in zip(rivals, times, strict=True)]
    options.tell("compare plans", 2 * len(known), 2 * len(known))
    entry = Entry("whole plan", (*ranked(timed, winner), *dropped), is_unsteady=is_unsteady)
    return entry, {name: rival.steps_us for name, rival in rivals.items()}


def break_tie(
    calls: Sequence[Callable[[], object]], times: Sequence[float], *, each_s: float
) -> tuple[int, list[float]]:
    """The plan to take, and the times: those close to the best are timed again, each for `each_s`.

    They are compared round by round, so that what disturbs one disturbs both. The earlier plan is taken only
    where even that shows no difference, or where there is no time to look.
    """
    limit = min(times) * (1 + ALIKE)
    alike = [i for i, us in enumerate(times) if us <= limit]
    made = list(times)
    if len(alike) == 1 or each_s < LEAST_S:
        return fastest(times), made
    with torch.inference_mode():
        timings = interleave([calls[i] for i in alike], budget_s=each_s * len(alike), settle_s=SETTLE_S)
    best = 0
    for i, timing in enumerate(timings):
        made[alike[i]] = round(timing.median_us, 3)
        if paired_ratio(timings[best], timing) > 1 + SAME:
            best = i
    return alike[best], made


def race_plans(rivals: Sequence[Rival], *, each_s: float) -> tuple[list[float], bool]:
    """Medians of the plans in µs, and whether the best was unsteady; every step has a time afterwards.

    A plan that takes more than twice what its steps take was timed while the machine did something else, or
    its steps were: all are timed again, and the smaller time counts.
    """
    calls = [rival.instance.execute for rival in rivals]
    times: list[float] = []
    with torch.inference_mode():
        for _ in range(RACES):
            found, is_unsteady = race(calls, each_s=each_s, pause_s=SETTLE_S)
            times = [min(pair) for pair in zip(found, times or found, strict=True)]
            for rival, us in zip(rivals, times, strict=True):
                rival.time_steps(us)
            if not any(rival.is_apart(us) for rival, us in zip(rivals, times, strict=True)):
                return times, is_unsteady
    return times, True


def run_once(instance: Made) -> Made:
    with torch.inference_mode():
        instance.execute()
    return instance


def none_runs(refused: Sequence[Candidate]) -> BuildError:
    return BuildError("no plan for this model runs", rows=[f"{m.tactic}: {m.refused}" for m in refused])
