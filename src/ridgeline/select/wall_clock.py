"""The timer of a CPU: candidates run side by side on the wall clock, then whole plans do.

The fastest wins by a margin. One that fails on the way is refused with its message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from ridgeline.base.choices import Candidate
from ridgeline.errors import failure
from ridgeline.runtime.examples import site_inputs
from ridgeline.select.context import Contest, Selection, SelectionContext, Timer
from ridgeline.select.heats import Heats
from ridgeline.select.loop import precompile_all
from ridgeline.select.plans import compose_timed, compose_untimed
from ridgeline.select.race import EFFORTS
from ridgeline.select.site_race import HELP, TIME_OVER, SiteCalls
from ridgeline.tactics.cache import Entry

# of the time to choose in, what regions may take; whole plans have the rest
REGIONS = 0.75


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
        """Give each contest its entry. Beyond the deadline the first candidate runs against the floor."""
        precompile_all(context, [(contest.site, c) for contest in contests for c in contest.willing])
        for i, contest in enumerate(contests):
            context.options.tell("time", i, len(contests), contest.region.name)
            # where shapes depend on data nobody knows what to time it with: the floor takes whatever comes
            if contest.site.is_inferred:
                with torch.inference_mode():
                    if context.deadline.is_over:
                        contest.entry = self._time_few(context, contest)
                    else:
                        contest.entry = self.time_site(context, contest)
        context.options.tell("time", len(contests), len(contests))

    def _time_few(self, context: SelectionContext, contest: Contest) -> Entry:
        willing = contest.willing
        few = [c for i, c in enumerate(willing) if not i or c.tactic == context.floor.name]
        late = [replace(c, untimed=TIME_OVER) for c in willing if c not in few]
        entry = self.time_site(context, replace(contest, willing=few))
        return replace(entry, candidates=(*entry.candidates, *late), is_partial=bool(late))

    def time_site(self, context: SelectionContext, contest: Contest) -> Entry:
        """The candidates in the order of their times, then those that refused."""
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
        effort = EFFORTS[context.options.level]
        Heats(context, contests, effort, context.deadline.part(REGIONS)).run()

    def compose(self, context: SelectionContext, contests: Sequence[Contest], made: Selection) -> None:
        compose_timed(context, made)


class FirstThatRuns(Timer):
    """Level 0, where nothing is timed: the library for the whole graph, else the first that runs.

    Regions are compiled and tried only where the library does not run the whole graph.
    """

    def compose(self, context: SelectionContext, contests: Sequence[Contest], made: Selection) -> None:
        def try_regions() -> None:
            first = [(contest.site, contest.willing[0]) for contest in contests if contest.willing]
            precompile_all(context, first)
            for i, contest in enumerate(contests):
                context.options.tell("take the first", i, len(contests), contest.region.name)
                if contest.site.is_inferred:
                    with torch.inference_mode():
                        contest.entry = _first_that_runs(context, contest)
            context.options.tell("take the first", len(contests), len(contests))
            made.entries = {region.name: contest.entry for contest in contests for region in contest.users}

        compose_untimed(context, made, try_regions)


def _first_that_runs(context: SelectionContext, contest: Contest) -> Entry:
    """The first candidate that runs is taken; those after it stay untried."""
    # one candidate alone need not run on values drawn without knowing the model
    if len(contest.willing) == 1 and context.options.workspace_bytes is None:
        return contest.entry
    calls, dropped = SiteCalls(context, contest), list(contest.refused)
    for place, candidate in enumerate(contest.willing):
        try:
            calls.call(candidate)
        except Exception as error:  # a candidate that breaks is refused with its message
            dropped.append(Candidate(candidate.tactic, candidate.config, refused=failure(error)))
        else:
            return Entry(contest.site.name, (*contest.willing[place:], *dropped), 0)
    raise contest.no_tactic(dropped, help=HELP)
