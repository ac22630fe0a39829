"""Choices on a GPU refined in place: each site that could matter tries its runners-up in the whole plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import torch

from ridgeline.base.gpu_graph import CaptureError
from ridgeline.base.gpu_timing import interleave_graphs, times_in_turn
from ridgeline.base.timing import paired_ratio
from ridgeline.errors import failure
from ridgeline.ir.body import Region
from ridgeline.runtime.cuda_instance import CudaInstance
from ridgeline.runtime.islands import subgraphs
from ridgeline.select.context import Contest, Pair, Selection, SelectionContext, StepChoice, in_order
from ridgeline.select.plan_times import run_once
from ridgeline.select.plans import instance_of
from ridgeline.select.site_race import TIME_OVER
from ridgeline.tactics.base import Launch

# a runner-up this close alone may be the better neighbour
CLOSE = 1.35
RUNNERS_UP = 3
# the whole plan must gain this much before a site changes hands
PLAN_MARGIN = 0.002
# and once more, in so many times the rounds: of a hundred rivals as fast as the winner, a few look faster
CONFIRMING = 2


class Refinement:
    """Tries runners-up in place, one site at a time, and keeps what makes the whole plan faster."""

    def __init__(self, context: SelectionContext, contests: Sequence[Contest], made: Selection) -> None:
        self.context, self.contests, self.made = context, contests, made
        self.launches: dict[object, Launch] = {}
        self.contest_of = {region.name: contest for contest in contests for region in contest.users}

    def run(self, fresh: Sequence[Contest], rounds: int) -> None:
        options = self.context.options
        try:
            best = self._graph()
        except CaptureError:  # steps that wait for the host decide the time; the engine says so when it runs
            return
        ranking = sorted(fresh, key=_weight_us, reverse=True)
        for i, contest in enumerate(ranking):
            if self.context.deadline.is_over:  # what was chosen alone stays
                break
            options.tell("refine", i, len(ranking), contest.region.name)
            for rival in _rivals(contest):
                try:
                    graph = self._graph(contest, rival)
                except Exception as error:  # it ran alone but not here: left out with the reason
                    contest.refuse(rival, f"in the whole plan: {failure(error)}")
                    continue
                if _is_faster(graph, best, rounds) and _is_faster(graph, best, CONFIRMING * rounds):
                    contest.entry, best = replace(contest.entry, chosen=rival), graph
        options.tell("refine", len(ranking), len(ranking))

    def run_pairs(self, rounds: int) -> bool:
        """Tries new pairs of regions as one step each; False where no graph holds the whole plan.

        What the deadline leaves untried stays apart.
        """
        fresh = [pair for pair in self.made.pairs if not pair.contest.is_known]
        try:
            best = self._graph()
        except CaptureError:
            return False
        for pair in sorted(fresh, key=lambda pair: -(pair.apart_us or 0.0) * len(pair.parts)):
            if self.context.deadline.is_over:
                pair.why_apart = TIME_OVER
                continue
            places = [i for i in pair.places if pair.us(i) <= CLOSE * (pair.apart_us or 0.0)]
            alone = f"one step takes {pair.us(pair.places[0]):.2f} µs" if pair.places else "no candidate ran"
            pair.why_apart = f"{alone}, its regions {pair.apart_us or 0.0:.2f}"
            for place in places[:RUNNERS_UP]:
                try:
                    graph = self._graph(pair=(pair, place))
                except Exception as error:  # it ran alone but not here: left out with the reason
                    pair.contest.refuse(place, f"in the whole plan: {failure(error)}")
                    continue
                if _is_faster(graph, best, rounds) and _is_faster(graph, best, CONFIRMING * rounds):
                    pair.taken, pair.why_apart, best = place, "", graph
            if places and pair.taken is None:
                pair.why_apart += "; the whole plan is no faster with it"
        return True

    def time_the_rest(self, rounds: int) -> None:
        """Times, in the running plan, of steps that could not be timed alone: data decides their shapes.

        And of control flow: alone, its bodies ran op by op.
        """
        bodies = {} if self.context.islands is None else self.context.islands.plans
        untimed = [
            contest
            for contest in self.contests
            if contest.entry.chosen_us is None or any(key in bodies for key, *_ in subgraphs(contest.region))
        ]
        if not untimed:
            return
        instance = self._instance()
        with torch.inference_mode():
            medians = times_in_turn(instance.calls, rounds)
        totals: dict[str, float] = {}
        for index, us in zip(instance.call_steps, medians, strict=True):
            name = self.context.work[index].name
            totals[name] = totals.get(name, 0.0) + us
        for contest in untimed:
            times = [totals[region.name] for region in contest.users if region.name in totals]
            if times:
                us = round(median(times), 3)
                contest.entry = contest.entry.changed(contest.entry.chosen, median_us=us)

    def _graph(
        self, contest: Contest | None = None, rival: int = 0, *, pair: tuple[Pair, int] | None = None
    ) -> torch.cuda.CUDAGraph:
        """The whole plan captured, with this rival in place of the contest's winner, or with this pair."""
        instance = self._instance(contest, rival, pair=pair)
        if instance.graph is None:
            raise CaptureError(instance.why_eager)
        # the graph's memory is the instance's
        instance.graph.instance = instance  # type: ignore[attr-defined]
        return instance.graph

    def _instance(
        self, contest: Contest | None = None, rival: int = 0, *, pair: tuple[Pair, int] | None = None
    ) -> CudaInstance:
        """The whole plan, run once."""

        def single(region: Region) -> StepChoice:
            own = self.contest_of.get(region.name)
            step = self.context.single(region, self.made)
            if own is None:  # a view: nothing is bound
                return step
            best = own.entry.candidates[rival if own is contest else own.entry.chosen]
            return replace(step, tactic=best.tactic, config=best.config)

        steps = in_order(self.context.work, self.made.joined(pair), single)
        return run_once(instance_of(self.context, steps, CudaInstance, self.launches))


def _is_faster(graph: torch.cuda.CUDAGraph, than: torch.cuda.CUDAGraph, rounds: int) -> bool:
    old, new = interleave_graphs([than, graph], rounds=rounds)
    return paired_ratio(old, new) > 1 + PLAN_MARGIN


def _weight_us(contest: Contest) -> float:
    """Time that the site's users spend: where a change matters most."""
    return (contest.entry.chosen_us or 0.0) * len(contest.users)


def _rivals(contest: Contest) -> list[int]:
    """Places of the runners-up that may be better neighbours."""
    entry = contest.entry
    limit_us = CLOSE * (entry.chosen_us or 0.0)
    times = [(i, m.median_us) for i, m in enumerate(entry.candidates) if i != entry.chosen]
    return [i for i, us in times if us is not None and us <= limit_us][:RUNNERS_UP]
