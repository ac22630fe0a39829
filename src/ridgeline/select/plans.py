"""Whole plans on a CPU: region choices put together, compared by their total time.

A span of neighbouring regions taken by one tactic competes with the sum of what it replaces, so it is only
believed when the whole plan has been timed with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

import torch

from ridgeline.base.choices import Candidate
from ridgeline.base.spec import Site
from ridgeline.errors import LimitError, failure
from ridgeline.ir.body import Region
from ridgeline.ir.sites import merge
from ridgeline.kernels.elements import fill
from ridgeline.plan.streams import Schedule
from ridgeline.runtime.instance import Instance, sites_of
from ridgeline.select.context import Selection, SelectionContext, StepChoice, check_workspace, left_out, stale
from ridgeline.select.experience import ON_CPU
from ridgeline.select.plan_times import Made, compare_plans, none_runs, run_once
from ridgeline.select.race import MARGIN
from ridgeline.select.site_race import TIME_OVER
from ridgeline.tactics.base import Launch, Offer, Refused, Tactic
from ridgeline.tactics.cache import Entry

REGIONS, MIXED = "regions", "mixed"
# what a change from one library to another costs
BORDER_US = 10.0


def compose_timed(context: SelectionContext, made: Selection) -> None:
    """The fastest whole plan: region by region, one span for all, or spans where the library is better."""
    plans = _plans(context, made)
    key = plan_key(context, made, list(plans))
    entry = context.find(key)
    if entry is None:
        if context.lock is not None:
            raise stale(context.options, ["the whole plan"])
        entry, times = compare_plans(
            {name: [step.median_us for step in steps] for name, steps in plans.items()},
            lambda name: _host_instance(context, plans[name]),
            options=context.options,
            deadline=context.deadline,
        )
        for name, steps_us in times.items():
            plans[name] = _with_times(context, made, plans[name], steps_us)
        made.timed += 1
        made.unsteady += entry.is_unsteady
        # with other regions it may be another plan that wins
        entry = replace(entry, is_partial=made.partial > 0)
    else:
        made.cached += 1
    _settle(context, made, key, entry)
    chosen = entry.candidates[entry.chosen].tactic
    if chosen not in plans:
        raise left_out(context.options, [f"the whole plan: {chosen}"])
    made.steps = tuple(plans[chosen])
    if chosen not in (REGIONS, MIXED):  # one step is the whole plan: it has the same time and the same rivals
        made.steps = (replace(made.steps[0], entry=entry),)


def compose_untimed(context: SelectionContext, made: Selection, try_regions: Callable[[], None]) -> None:
    """The library for the whole graph if it runs; else regions, which are tried one by one."""
    whole = whole_graph(context)
    failed = None if whole is None else _why_not(lambda: run_once(_host_instance(context, [whole])))
    if whole is not None and failed is None:
        rivals = [Candidate(whole.tactic, {}), Candidate(REGIONS, {})]
        made.steps = (replace(whole, entry=Entry("whole plan", tuple(rivals))),)
    else:
        try_regions()
        made.steps = tuple(context.single(region, made) for region in context.work)
        refused = [] if whole is None else [Candidate(whole.tactic, {}, refused=failed)]
        # the last plan need not run here: drawn values may not suit the model, and verification will tell
        broken = _why_not(lambda: _host_instance(context, made.steps))
        if broken is not None:
            raise none_runs([*refused, Candidate(REGIONS, {}, refused=broken)])
        rivals = [Candidate(REGIONS, {}), *refused]
    entry = Entry("whole plan", tuple(rivals))
    _settle(context, made, plan_key(context, made, [c.tactic for c in rivals]), entry)


def _settle(context: SelectionContext, made: Selection, key: str, entry: Entry) -> None:
    made.alternatives = entry
    made.keys.append(key)
    context.store(key, entry)


def _plans(context: SelectionContext, made: Selection) -> dict[str, list[StepChoice]]:
    """Whole plans worth comparing: region by region, one span for all, runs where the library is better."""
    plans = {REGIONS: [context.single(region, made) for region in context.work]}
    whole = whole_graph(context)
    if whole is not None:
        plans[whole.tactic] = [whole]
        mixed = _mixed(context, made, context.fused.tactics[whole.tactic])
        if mixed is not None:
            plans[MIXED] = mixed
    return plans


def whole_graph(context: SelectionContext) -> StepChoice | None:
    """One step for all regions, if there is a library that takes them."""
    library = next((tactic for tactic in context.fused.tactics.values() if tactic.takes_spans), None)
    if library is None or not context.work:
        return None
    whole = tuple(context.fused.program.regions)
    site = context.site(merge(context.fused.program, whole))
    offer = context.offer(library, site)
    if isinstance(offer, Refused):
        return None
    # alone in the engine, its threads are in nobody's way
    config = {**offer.configs[0], "spin": True}
    return StepChoice(whole, library.name, config, site, Entry(site.name, (Candidate(library.name, config),)))


def _mixed(context: SelectionContext, made: Selection, library: Tactic) -> list[StepChoice] | None:
    """Runs of regions that the library does no slower become spans; the rest stays as it is."""
    ours = [region for region in context.work if _wins_alone(made.entries.get(region.name), library)]
    if not ours or len(ours) == len(context.work):
        return None
    steps: list[StepChoice] = []
    run: list[Region] = []
    for region in context.work:
        if region in ours:
            steps += [*_span(context, made, library, run), context.single(region, made)]
            run = []
        else:
            run.append(region)
    steps += _span(context, made, library, run)
    return steps if any(len(step.regions) > 1 for step in steps) else None


def _span(
    context: SelectionContext, made: Selection, library: Tactic, run: Sequence[Region]
) -> list[StepChoice]:
    """These neighbours as one step of the library; a region alone stays as it is."""
    site = context.site(merge(context.fused.program, run)) if len(run) > 1 else None
    offer = context.offer(library, site) if site is not None else None
    if site is None or not isinstance(offer, Offer):
        return [context.single(region, made) for region in run]
    config = offer.configs[0]
    entry = context.find(context.key(site)) or Entry(site.name, (Candidate(library.name, config),))
    return [StepChoice(tuple(run), library.name, config, site, entry)]


def _wins_alone(entry: Entry | None, library: Tactic) -> bool:
    """Our tactic beats the library on this region by more than a border between them costs."""
    if entry is None:
        return False
    times = {c.tactic: c.median_us for c in reversed(entry.candidates) if c.median_us is not None}
    best = entry.candidates[entry.chosen]
    if best.tactic == library.name or best.median_us is None:
        return False
    theirs = times.get(library.name)
    if theirs is None:
        # it was not tried here since it was this many times slower on like regions, or more
        late = [
            c for c in entry.candidates if c.tactic == library.name and c.untimed not in (None, TIME_OVER)
        ]
        theirs = ON_CPU.tactic * best.median_us if late else 0.0
    return best.median_us * (1 + MARGIN) + BORDER_US < theirs


def _with_times(
    context: SelectionContext, made: Selection, steps: Sequence[StepChoice], times: Sequence[float | None]
) -> list[StepChoice]:
    """The steps with these times, kept for the next build. Equal sites have one entry, and one time."""
    by_key: dict[str, list[float]] = {}
    for step, us in zip(steps, times, strict=True):
        if us is not None:
            by_key.setdefault(context.key(step.site), []).append(us)
    timed = []
    for step in steps:
        key = context.key(step.site)
        us = median(by_key[key]) if key in by_key else None
        if us is not None and us != step.median_us:
            first, *others = step.regions
            # a graph of one region is a span with the region's own site: the region keeps its candidates
            is_own = not others and step.entry is made.entries.get(first.name)
            step = replace(step, entry=step.entry.changed(step.entry.chosen, median_us=us))
            if is_own:
                made.entries[first.name] = step.entry
            if is_own or others:
                made.keys.append(key)
                context.store(key, step.entry)
        timed.append(step)
    return timed


def instance_of(
    context: SelectionContext,
    steps: Sequence[StepChoice],
    make: type[Made],
    launches: dict[object, Launch] | None = None,
    schedule: Schedule | None = None,
) -> Made:
    """A plan of these steps that can be run, over drawn inputs. `launches` are kept from plan to plan."""
    regions = [merge(context.fused.program, step.regions) for step in steps]
    known = {} if launches is None else launches

    def bind(index: int, site: Site) -> Launch:
        step, region = steps[index], regions[index]
        place = (region.name, step.tactic, tuple(step.config.items()))
        if place in known:
            return known[place]
        island = None
        if context.islands and context.fused.tactics[step.tactic].is_floor:
            island = context.islands.bind(region, site)
        if island is not None:
            known[place] = island
        else:
            known[place] = context.bind(site, step.tactic, step.config, context.weights_of(region, site))
        return known[place]

    with torch.inference_mode():
        sites = sites_of(context.fused.program, regions, context.inferred, context.fused.target)
        program, weights = context.fused.program, context.fused.placed_weights
        instance = make(program, context.inferred, sites, weights, bind, None, schedule)
        for name, value in context.feeds.items():
            if name in instance.inputs:
                fill(instance.inputs[name], value)
            else:  # strings, sequences: steps are handed the value itself
                instance.dynamic_values[name] = value
    return instance


def _host_instance(context: SelectionContext, steps: Sequence[StepChoice]) -> Instance:
    instance = instance_of(context, steps, Instance)
    packed = sum(step.launch.packed_bytes for step in instance.steps if step.launch is not None)
    check_workspace(packed, context.options.workspace_bytes)
    return instance


def _why_not(attempt: Callable[[], object]) -> str | None:
    """What the attempt fails with, if it does. Beyond a limit no other plan is tried."""
    try:
        attempt()
    except LimitError:
        raise
    except Exception as error:
        return failure(error)
    return None


def plan_key(context: SelectionContext, made: Selection, names: Sequence[str]) -> str:
    sites = hashlib.sha256("|".join(site.key for site in made.sites.values()).encode()).hexdigest()
    rivals = "|".join([*names, *(context.key(site) for site in made.sites.values())])
    return f"plan{sites[:28]}-{hashlib.sha256(rivals.encode()).hexdigest()[:8]}"
