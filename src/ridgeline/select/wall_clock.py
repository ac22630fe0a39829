"""The timer of a CPU: candidates run side by side on the wall clock, then whole plans do.

The fastest wins by a margin. One that fails on the way is refused with its message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ridgeline.base.choices import Candidate
from ridgeline.base.spec import TensorSpec
from ridgeline.errors import failure
from ridgeline.kernels.elements import TORCH_DTYPES
from ridgeline.runtime.examples import site_inputs
from ridgeline.select.context import Contest, Selection, SelectionContext, Timer, check_workspace
from ridgeline.select.experience import ON_CPU
from ridgeline.select.heats import Heats, Timed, Trial, first_that_runs
from ridgeline.select.loop import precompile_all
from ridgeline.select.plans import compose_timed, compose_untimed
from ridgeline.select.race import EFFORTS, PAUSE_S, race
from ridgeline.select.site_race import SiteRace
from ridgeline.tactics.base import Launch
from ridgeline.tactics.cache import Entry

# of the time to choose in, what regions may take; whole plans have the rest
REGIONS = 0.75


class WallTrial:
    """Candidates of a site as calls over the same drawn inputs, in turns on the wall clock."""

    pruning = ON_CPU

    def __init__(self, context: SelectionContext) -> None:
        self._context, self._effort = context, EFFORTS[context.options.level]

    def is_raced(self, contest: Contest) -> bool:
        """Where shapes depend on data nobody knows what to time it with: the floor takes whatever comes.

        Nor does anybody know how often a loop goes round with drawn inputs. And one candidate alone need not
        run on values drawn without knowing the model.
        """
        is_alone = len(contest.willing) == 1 and self._context.options.workspace_bytes is None
        return contest.is_timeable and not is_alone

    def time(self, each: SiteRace, places: Sequence[int]) -> Timed:
        calls = self._calls(each, places)
        if len(calls) < 2:  # one alone has no time: it gets the one that it takes in the whole plan
            return Timed(ran=tuple(calls))
        tactics = self._context.fused.tactics
        spins = any(tactics[each.willing[place].tactic].spins_threads for place in calls)
        times, is_unsteady = race(
            list(calls.values()),
            each_s=self._effort.site_s,
            pause_s=PAUSE_S if spins else 0.0,
            long_rounds=self._effort.long_rounds,
        )
        return Timed(dict(zip(calls, times, strict=True)), is_unsteady=is_unsteady)

    def runs(self, each: SiteRace, place: int) -> bool:
        return bool(self._calls(each, [place]))

    def _calls(self, each: SiteRace, places: Sequence[int]) -> dict[int, Callable[[], object]]:
        contest = each.contest
        weights = self._context.weights_of(contest.region, contest.site)
        inputs = site_inputs(contest.site, weights)
        made = {}
        for place in places:
            try:
                made[place] = self._call(contest, each.willing[place], weights, inputs)
            except Exception as error:  # a candidate that breaks is refused with its message
                each.refuse(place, failure(error))
        return made

    def _call(
        self,
        contest: Contest,
        candidate: Candidate,
        weights: Mapping[str, Tensor],
        inputs: Sequence[Tensor | None],
    ) -> Callable[[], object]:
        """The candidate bound, examined, and run once."""
        context, site = self._context, contest.site
        launch = context.bind(site, candidate.tactic, candidate.config, weights)
        check_workspace(launch.packed_bytes, context.options.workspace_bytes)
        context.fused.tactics[candidate.tactic].examine(site, launch, inputs)
        call = _frozen(launch, inputs, site.outputs)
        call()
        return call


def _frozen(
    launch: Launch, inputs: Sequence[Tensor | None], outputs: Sequence[TensorSpec]
) -> Callable[[], object]:
    if launch.writes_out:
        return launch.frozen(inputs, [_empty(spec) for spec in outputs])
    return lambda: launch.run(inputs, ())


def _empty(spec: TensorSpec) -> Tensor:
    return torch.empty_strided(spec.shape, spec.strides, dtype=TORCH_DTYPES[spec.dtype])


class Measuring(Timer):
    """What timers have in common that run candidates on the machine at hand."""

    measures = True

    def find(self, context: SelectionContext, key: str) -> Entry | None:
        return context.cache.find(key, context.context)

    def decide(self, context: SelectionContext, contests: Sequence[Contest], made: Selection) -> None:
        fresh = [contest for contest in contests if not contest.is_known]
        self.choose(context, fresh)
        for contest in (contest for contest in contests if contest.is_known):
            _examine_chosen(context, contest)
        made.partial = sum(contest.entry.is_partial for contest in fresh)
        made.guessed = sum(_is_guess(contest.entry) for contest in fresh)
        if context.options.level:
            made.timed, made.unsteady = len(fresh), sum(contest.entry.is_unsteady for contest in fresh)

    def choose(self, context: SelectionContext, contests: Sequence[Contest]) -> None:
        """Give each contest its entry."""
        raise NotImplementedError


def _is_guess(entry: Entry) -> bool:
    return bool(entry.candidates) and entry.candidates[entry.chosen].untimed is not None


def _examine_chosen(context: SelectionContext, contest: Contest) -> None:
    """A tactic of a plugin that a lock or a cache chose is run here before it is believed."""
    site, best = contest.site, contest.entry.candidates[contest.entry.chosen]
    tactic = context.fused.tactics.get(best.tactic)
    if tactic is not None and tactic.is_examined and site.is_inferred:
        weights = context.weights_of(contest.region, site)
        launch = context.bind(site, best.tactic, best.config, weights)
        inputs = site_inputs(site, weights, device=context.fused.target.traits.device)
        tactic.examine(site, launch, inputs)


class WallClock(Measuring):
    """Every level from 1 on; and level 0 where a lock says what to choose."""

    def choose(self, context: SelectionContext, contests: Sequence[Contest]) -> None:
        Heats(context, contests, WallTrial(context), context.deadline.part(REGIONS)).run()

    def compose(self, context: SelectionContext, contests: Sequence[Contest], made: Selection) -> None:
        compose_timed(context, made)


class FirstThatRuns(Timer):
    """Level 0, where nothing is timed: the library for the whole graph, else the first that runs.

    Regions are compiled and tried only where the library does not run the whole graph.
    """

    def compose(self, context: SelectionContext, contests: Sequence[Contest], made: Selection) -> None:
        def try_regions() -> None:
            take_first(context, contests, WallTrial(context))
            made.entries = {region.name: contest.entry for contest in contests for region in contest.users}

        compose_untimed(context, made, try_regions)


def take_first(context: SelectionContext, contests: Sequence[Contest], trial: Trial) -> None:
    """Give each contest the first candidate that runs. Its kernels are compiled together beforehand."""
    precompile_all(context, [(contest.site, contest.willing[0]) for contest in contests if contest.willing])
    for i, contest in enumerate(contests):
        context.options.tell("take the first", i, len(contests), contest.region.name)
        with torch.inference_mode():
            contest.entry = first_that_runs(trial, contest)
    context.options.tell("take the first", len(contests), len(contests))
