"""Composition on a GPU: site by site first, then the best few of each site in the whole plan.

Isolated timings are warm in the caches and know no neighbours. So the choice between a site's best is made by
the time of the whole captured graph: every site that could matter tries its runners-up in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import TypeAlias

import torch
from torch import Tensor

from ridgeline.base.choices import Candidate
from ridgeline.base.gpu_graph import CaptureError
from ridgeline.base.gpu_timing import interleave_graphs, times_in_turn
from ridgeline.base.spec import Site, TensorSpec
from ridgeline.errors import failure
from ridgeline.ir.body import Region
from ridgeline.ir.views import views_of
from ridgeline.runtime.cuda_instance import CudaInstance
from ridgeline.runtime.examples import site_inputs
from ridgeline.select.context import Selection, SelectionContext
from ridgeline.select.plans import remember, single, stale, valid_everywhere
from ridgeline.select.sites import candidates_of
from ridgeline.select.sites_cuda import time_site_cuda
from ridgeline.tactics.base import Compiles, Launch
from ridgeline.tactics.cache import Entry

# timing rounds of a site, and of a whole plan, by optimisation level
SITE_ROUNDS = (0, 3, 5, 5, 9, 15)
PLAN_ROUNDS = (0, 0, 5, 9, 15, 31)
# a runner-up this close alone may be the better neighbour
CLOSE = 1.35
RUNNERS_UP = 3
# the whole plan must gain this much before a site changes hands
PLAN_MARGIN = 0.002
# the candidates of a site: willing ones, and those that refused with their reasons
Offer: TypeAlias = Callable[[Site], tuple[list[Candidate], list[Candidate]]]


def select_cuda(
    context: SelectionContext,
    inputs: Mapping[str, TensorSpec],
    feeds: Mapping[str, Tensor],
    *,
    offer: Offer | None = None,  # who may compete for a site; None: whoever is willing
) -> Selection:
    """Choose for every region alone, then between the best in the whole plan."""
    made = Selection()
    work = [region for region in context.program.regions if not context.inferred.is_host(region)]
    fresh = _choose_regions(context, work, made, offer or _all_willing(context))
    if fresh and SITE_ROUNDS[context.options.level]:
        refinement = _Refinement(context, work, made, inputs, feeds)
        if PLAN_ROUNDS[context.options.level]:
            refinement.run(fresh)
        refinement.time_the_rest(SITE_ROUNDS[context.options.level])
    for region in work:
        if region.name in made.entries:
            remember(context, made, context.key(made.sites[region.name]), made.entries[region.name])
    made.steps = tuple(single(context, region, made) for region in work)
    return made


def _all_willing(context: SelectionContext) -> Offer:
    all_configs = SITE_ROUNDS[context.options.level] > 0
    return lambda site: candidates_of(site, context.tactics, all_configs=all_configs)


def _choose_regions(
    context: SelectionContext, work: Sequence[Region], made: Selection, offer: Offer
) -> list[str]:
    """An entry for every region; returns the keys of those timed now."""
    todo: dict[str, tuple[Region, Site]] = {}
    for region in work:
        site = made.sites[region.name] = context.site(region)
        if not views_of(site) and context.find(context.key(site)) is None:
            todo.setdefault(context.key(site), (region, site))
    if todo and context.lock is not None:
        raise stale(context.options, [region.name for region, _ in todo.values()])
    fresh = _time_sites(context, todo, offer)
    for region in work:
        site = made.sites[region.name]
        if views_of(site):
            continue
        made.entries[region.name] = fresh.get(context.key(site)) or context.known(site)
    keys = {context.key(made.sites[name]) for name in made.entries}
    made.cached = len(keys) - len(fresh)
    if context.options.level:
        made.timed, made.unsteady = len(fresh), sum(entry.is_unsteady for entry in fresh.values())
    return list(fresh)


def _time_sites(
    context: SelectionContext, todo: Mapping[str, tuple[Region, Site]], offer: Offer
) -> dict[str, Entry]:
    rounds = SITE_ROUNDS[context.options.level]
    offers = {}
    for key, (region, site) in todo.items():
        willing, refused = offer(site)
        willing, more = valid_everywhere(context, region, willing)
        offers[key] = (willing, [*refused, *more])
    for i, tactic in enumerate(context.tactics):
        if isinstance(tactic, Compiles):
            context.options.tell("compile", i, len(context.tactics), tactic.name)
            jobs = [(todo[key][1], m.config) for key, (ms, _) in offers.items() for m in ms
                    if m.tactic == tactic.name]  # fmt: skip
            tactic.precompile(jobs)
    context.options.tell("compile", len(context.tactics), len(context.tactics))
    made = {}
    for i, (key, (willing, refused)) in enumerate(offers.items()):
        region, site = todo[key]
        context.options.tell("time", i, len(offers), region.name)
        weights = context.weights_of(region, site)
        with torch.inference_mode():
            made[key] = time_site_cuda(
                site, weights, context.tactics, rounds=rounds, willing=willing, refused=refused,
                draw=partial(site_inputs, site, weights, device="cuda"),
                workspace_bytes=context.options.workspace_bytes,
            )  # fmt: skip
    context.options.tell("time", len(offers), len(offers))
    return made


class _Refinement:
    """Tries runners-up in place, one site at a time, and keeps what makes the whole plan faster."""

    def __init__(
        self,
        context: SelectionContext,
        work: Sequence[Region],
        made: Selection,
        inputs: Mapping[str, TensorSpec],
        feeds: Mapping[str, Tensor],
    ) -> None:
        self.context, self.work, self.made = context, work, made
        self.inputs, self.feeds = inputs, feeds
        self.by_name = {tactic.name: tactic for tactic in context.tactics}
        self.launches: dict[tuple[str, int], Launch] = {}  # by region and candidate
        self.users: dict[str, list[Region]] = {}
        for region in work:
            if region.name in made.entries:
                self.users.setdefault(context.key(made.sites[region.name]), []).append(region)
        self.chosen = {key: self._entry(key).chosen for key in self.users}

    def _entry(self, key: str) -> Entry:
        return self.made.entries[self.users[key][0].name]

    def run(self, fresh: Sequence[str]) -> None:
        options = self.context.options
        rounds = PLAN_ROUNDS[options.level]
        try:
            with torch.inference_mode():
                best = self._graph(self.chosen)
        except CaptureError:  # steps that wait for the host decide the time; the engine says so when it runs
            return
        ranking = sorted(fresh, key=self._weight, reverse=True)
        for i, key in enumerate(ranking):
            options.tell("refine", i, len(ranking), self.users[key][0].name)
            for rival in self._rivals(key):
                try:
                    with torch.inference_mode():
                        graph = self._graph({**self.chosen, key: rival})
                except Exception as error:  # it ran alone but not here: left out with the reason
                    self._refuse(key, rival, failure(error))
                    continue
                old, new = interleave_graphs([best, graph], rounds=rounds)
                if new.median_us < old.median_us * (1 - PLAN_MARGIN):
                    self.chosen[key], best = rival, graph
        for key, index in self.chosen.items():
            for region in self.users[key]:
                self.made.entries[region.name] = replace(self._entry(key), chosen=index)
        options.tell("refine", len(ranking), len(ranking))

    def time_the_rest(self, rounds: int) -> None:
        """Times, in the running plan, of steps that could not be timed alone: data decides their shapes."""
        is_untimed = {key for key in self.users if self._entry(key).chosen_us is None}
        if not is_untimed:
            return
        with torch.inference_mode():
            instance = self._instance(self.chosen)
            medians = times_in_turn(instance.calls, rounds)
        totals: dict[str, float] = {}
        for index, us in zip(instance.call_steps, medians, strict=True):
            totals[self.work[index].name] = totals.get(self.work[index].name, 0.0) + us
        for key in is_untimed:
            times = [totals[region.name] for region in self.users[key] if region.name in totals]
            for region in self.users[key] if times else ():
                self.made.entries[region.name] = self._entry(key).with_time(round(median(times), 3))

    def _weight(self, key: str) -> float:
        """Time that the site's users spend: where a change matters most."""
        return (self._entry(key).chosen_us or 0.0) * len(self.users[key])

    def _rivals(self, key: str) -> list[int]:
        entry = self._entry(key)
        best = entry.candidates[entry.chosen].median_us
        timed = [
            i
            for i, m in enumerate(entry.candidates)
            if i != entry.chosen
            and m.median_us is not None
            and best is not None
            and m.median_us <= CLOSE * best
        ]
        return timed[:RUNNERS_UP]

    def _refuse(self, key: str, index: int, reason: str) -> None:
        entry = self._entry(key)
        candidates = list(entry.candidates)
        candidates[index] = replace(candidates[index], refused=f"in the whole plan: {reason}")
        for region in self.users[key]:
            self.made.entries[region.name] = replace(entry, candidates=tuple(candidates))

    def _graph(self, chosen: Mapping[str, int]) -> torch.cuda.CUDAGraph:
        """The whole plan with these candidates, captured."""
        instance = self._instance(chosen)
        if instance.graph is None:
            raise CaptureError(instance.why_eager)
        # the graph's memory is the instance's
        instance.graph.instance = instance  # type: ignore[attr-defined]
        return instance.graph

    def _instance(self, chosen: Mapping[str, int]) -> CudaInstance:
        """The whole plan with these candidates, run once."""

        def bind(index: int, site: Site) -> Launch:
            region = self.work[index]
            place = (region.name, chosen.get(self.context.key(site), 0))
            if place not in self.launches:
                measured = self._measured(region, place[1])
                tactic = self.by_name[measured.tactic]
                weights = self.context.weights_of(region, site)
                self.launches[place] = tactic.bind(site, measured.config, weights)
            return self.launches[place]

        instance = CudaInstance(
            self.context.program, self.work, self.inputs, self.context.weights, self.context.target, bind,
            inferred=self.context.inferred,
        )  # fmt: skip
        for name, tensor in self.feeds.items():
            instance.inputs[name].copy_(tensor)
        instance.execute()
        return instance

    def _measured(self, region: Region, index: int) -> Candidate:
        return self.made.entries[region.name].candidates[index]
