"""The timer of a CPU: candidates run side by side on the wall clock, then whole plans do.

The fastest wins by a margin. One that fails on the way is refused with its message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ridgeline.base.choices import Candidate
from ridgeline.base.spec import Site, TensorSpec
from ridgeline.errors import failure
from ridgeline.kernels.elements import TORCH_DTYPES
from ridgeline.runtime.examples import site_inputs
from ridgeline.select.context import Contest, Selection, SelectionContext, Timer, check_workspace
from ridgeline.select.loop import precompile_all
from ridgeline.select.plans import compose_timed, compose_untimed
from ridgeline.select.race import EFFORTS, PAUSE_S, race, ranked
from ridgeline.tactics.base import Launch
from ridgeline.tactics.cache import Entry


class Measuring(Timer):
    """What timers have in common that run candidates on the machine at hand."""

    measures = True

    def find(self, context: SelectionContext, key: str) -> Entry | None:
        return context.cache.find(key, context.context)

    def decide(self, context: SelectionContext, contests: Sequence[Contest], made: Selection) -> None:
        fresh = [contest for contest in contests if not contest.is_known]
        precompile_all(context, [(contest.site, c) for contest in fresh for c in contest.willing])
        self.time_sites(context, fresh)
        for contest in (contest for contest in contests if contest.is_known):
            _examine_chosen(context, contest)
        if context.options.level:
            made.timed, made.unsteady = len(fresh), sum(contest.entry.is_unsteady for contest in fresh)

    def time_sites(self, context: SelectionContext, contests: Sequence[Contest], stage: str = "time") -> None:
        for i, contest in enumerate(contests):
            context.options.tell(stage, i, len(contests), contest.region.name)
            # where shapes depend on data nobody knows what to time it with: the floor takes whatever comes
            if contest.site.is_inferred:
                with torch.inference_mode():
                    contest.entry = self.time_site(context, contest)
        context.options.tell(stage, len(contests), len(contests))

    def time_site(self, context: SelectionContext, contest: Contest) -> Entry:
        """The candidates in the order of their times, then those that refused."""
        raise NotImplementedError


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

    def time_site(self, context: SelectionContext, contest: Contest) -> Entry:
        """A candidate alone has no time: it gets the one it takes in the whole plan.

        At level 0 nothing is timed: the first that runs is taken, and the others stay untried.
        """
        site, effort = contest.site, EFFORTS[context.options.level]
        # one candidate alone need not run on values drawn without knowing the model
        if len(contest.willing) == 1 and context.options.workspace_bytes is None:
            return contest.entry
        weights = context.weights_of(contest.region, site)
        dropped = list(contest.refused)
        runnable: list[tuple[Candidate, Callable[[], object]]] = []
        inputs = site_inputs(site, weights)
        untried = iter(contest.willing)
        for candidate in untried:
            try:
                launch = context.bind(site, candidate.tactic, candidate.config, weights)
                check_workspace(launch.packed_bytes, context.options.workspace_bytes)
                context.fused.tactics[candidate.tactic].examine(site, launch, inputs)
                call = _call(launch, site, inputs)
                call()
            except Exception as error:  # a candidate that breaks is refused with its message
                dropped.append(Candidate(candidate.tactic, candidate.config, refused=failure(error)))
            else:
                runnable.append((candidate, call))
                if effort.site_s == 0:
                    break
        if not runnable:
            raise contest.no_tactic(
                dropped, help="allow more tactics: drop --without, or lower --level to see the first error"
            )
        if len(runnable) == 1:
            return Entry(site.name, (runnable[0][0], *untried, *dropped), 0)
        pause_s = PAUSE_S if any(context.fused.tactics[c.tactic].spins_threads for c, _ in runnable) else 0.0
        times, is_unsteady = race(
            [call for _, call in runnable],
            each_s=effort.site_s,
            pause_s=pause_s,
            long_rounds=effort.long_rounds,
        )
        timed = [Candidate(c.tactic, c.config, us) for (c, _), us in zip(runnable, times, strict=True)]
        return Entry(site.name, (*ranked(timed), *dropped), is_unsteady=is_unsteady)

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
            WallClock().time_sites(context, contests, stage="take the first")
            made.entries = {region.name: contest.entry for contest in contests for region in contest.users}

        compose_untimed(context, made, try_regions)


def _call(launch: Launch, site: Site, inputs: Sequence[Tensor | None]) -> Callable[[], object]:
    if launch.writes_out:
        return launch.frozen(inputs, [_empty(spec) for spec in site.outputs])
    return lambda: launch.run(inputs, ())


def _empty(spec: TensorSpec) -> Tensor:
    return torch.empty_strided(spec.shape, spec.strides, dtype=TORCH_DTYPES[spec.dtype])
