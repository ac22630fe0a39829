"""Composition: region choices into whole plans, and whole plans compared by their total time.

A span of neighbouring regions taken by one tactic competes with the sum of what it replaces, so it is only
believed when the whole plan has been timed with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import TypeAlias

import torch
from torch import Tensor

from ridgeline.base.choices import Candidate
from ridgeline.base.spec import Site, TensorSpec
from ridgeline.errors import BuildError
from ridgeline.ir.body import Region
from ridgeline.ir.sites import make_site, merge
from ridgeline.ir.views import views_of
from ridgeline.kernels.elements import fill
from ridgeline.options import Options
from ridgeline.runtime.examples import site_inputs
from ridgeline.runtime.instance import Instance
from ridgeline.select.context import Selection, SelectionContext, StepChoice
from ridgeline.select.plan_times import compare_plans
from ridgeline.select.sites import EFFORTS, MARGIN, candidates_of, check_workspace, time_site
from ridgeline.tactics.base import Compiles, Launch
from ridgeline.tactics.cache import Entry

Offer: TypeAlias = tuple[Region, Site, list[Candidate], list[Candidate]]  # who is willing, who refused
Enter: TypeAlias = Callable[[SelectionContext, Sequence[tuple[Region, Site]]], dict[str, Entry]]


def select(
    context: SelectionContext, inputs: Mapping[str, TensorSpec], feeds: Mapping[str, Tensor]
) -> Selection:
    """Choose for every region, then between whole plans."""
    made = Selection()
    work = [region for region in context.program.regions if not context.inferred.is_host(region)]
    choose_regions(context, work, made, _time_sites)
    plans = _plans(context, work, made)
    key = plan_key(context, made, list(plans))
    entry = context.find(key)
    if entry is None:
        if context.lock is not None:
            raise stale(context.options, ["the whole plan"])
        entry, times = compare_plans(
            {name: [step.median_us for step in steps] for name, steps in plans.items()},
            lambda name: instance_of(context, plans[name], inputs, feeds),
            options=context.options,
        )
        for name, steps_us in times.items():
            plans[name] = _with_times(context, made, plans[name], steps_us)
        made.timed += 1
        made.unsteady += entry.is_unsteady
    else:
        made.cached += 1
    remember(context, made, key, entry)
    made.alternatives = entry
    chosen = entry.candidates[entry.chosen].tactic
    if chosen not in plans:
        raise _left_out(context.options, [f"the whole plan: {chosen}"])
    made.steps = tuple(plans[chosen])
    if chosen == "ort":  # one step is the whole plan: their times are the same, and so are their rivals
        made.steps = (replace(made.steps[0], entry=entry),)
    return made


def choose_regions(context: SelectionContext, work: Sequence[Region], made: Selection, enter: Enter) -> None:
    """An entry for every region; equal sites share one."""
    todo: dict[str, tuple[Region, Site]] = {}
    for region in work:
        site = context.site(region)
        made.sites[region.name] = site
        if views_of(site):
            continue
        if context.find(context.key(site)) is None:
            todo.setdefault(context.key(site), (region, site))
    if todo and context.lock is not None:
        raise stale(context.options, [region.name for region, _ in todo.values()])
    fresh = enter(context, list(todo.values()))
    for region in work:
        site = made.sites[region.name]
        if views_of(site):
            continue
        key = context.key(site)
        entry = fresh.get(key) or context.known(site)
        remember(context, made, key, entry)
        made.entries[region.name] = entry
    made.cached = len(set(made.keys)) - len(fresh)
    if context.options.level:
        made.timed, made.unsteady = len(fresh), sum(entry.is_unsteady for entry in fresh.values())


def _time_sites(context: SelectionContext, todo: Sequence[tuple[Region, Site]]) -> dict[str, Entry]:
    offers = offers_of(context, todo)
    precompile(context, [(site, candidate) for _, site, willing, _ in offers for candidate in willing])
    return enter_sites(context, offers, stage="time")


def offers_of(context: SelectionContext, todo: Sequence[tuple[Region, Site]]) -> list[Offer]:
    """Who is willing at each site, and who is not and why."""
    all_configs = EFFORTS[context.options.level].all_configs
    made = []
    for region, site in todo:
        willing, refused = candidates_of(site, context.tactics, all_configs=all_configs)
        willing, more = valid_everywhere(context, region, willing)
        made.append((region, site, willing, [*refused, *more]))
    return made


def precompile(context: SelectionContext, candidates: Sequence[tuple[Site, Candidate]]) -> None:
    """Compile what will be bound, several kernels at a time."""
    compilers = {tactic.name: tactic for tactic in context.tactics if isinstance(tactic, Compiles)}
    jobs = {name: [(site, c.config) for site, c in candidates if c.tactic == name] for name in compilers}
    done, total = 0, sum(map(len, jobs.values()))
    for name in (name for name in jobs if jobs[name]):
        context.options.tell("compile", done, total, name)
        compilers[name].precompile(jobs[name])
        done += len(jobs[name])
        context.options.tell("compile", done, total)


def enter_sites(context: SelectionContext, offers: Sequence[Offer], *, stage: str) -> dict[str, Entry]:
    """An entry for each site: its candidates in the order of their times, or the first that runs."""
    made = {}
    for i, (region, site, willing, refused) in enumerate(offers):
        context.options.tell(stage, i, len(offers), region.name)
        weights = context.weights_of(region, site)
        with torch.inference_mode():
            made[context.key(site)] = time_site(
                site,
                weights,
                context.tactics,
                effort=EFFORTS[context.options.level],
                willing=willing,
                refused=refused,
                draw=partial(site_inputs, site, weights),
                workspace_bytes=context.options.workspace_bytes,
            )
    context.options.tell(stage, len(offers), len(offers))
    return made


def valid_everywhere(
    context: SelectionContext, region: Region, willing: Sequence[Candidate]
) -> tuple[list[Candidate], list[Candidate]]:
    """Tactics are chosen at opt and must be valid from min to max."""
    by_name = {tactic.name: tactic for tactic in context.tactics}
    kept, dropped = [], []
    for candidate in willing:
        reason = None
        for inferred in context.profile_corners:
            site = make_site(context.program, region, inferred, context.target)
            reason = reason or by_name[candidate.tactic].why_not(site)
        if reason is None:
            kept.append(candidate)
        else:
            dropped.append(replace(candidate, refused=f"not over the whole profile: {reason}"))
    return kept, dropped


def _plans(context: SelectionContext, work: Sequence[Region], made: Selection) -> dict[str, list[StepChoice]]:
    """Whole plans worth comparing: region by region, one span for all, runs where the library is better."""
    plans: dict[str, list[StepChoice]] = {}
    plans["regions"] = [single(context, region, made) for region in work]
    whole = whole_graph(context) if work else None
    if whole is not None:
        plans["ort"] = [whole]
        mixed = _mixed(context, work, made)
        if mixed is not None:
            plans["mixed"] = mixed
    return plans


def whole_graph(context: SelectionContext) -> StepChoice | None:
    """One step for all regions, if there is a library that takes them."""
    span = next((t for t in context.tactics if t.name == "ort"), None)
    whole = tuple(context.program.regions)
    joined = merge(context.program, whole)
    site = make_site(context.program, joined, context.inferred, context.target)
    if span is None or span.why_not(site) is not None:
        return None
    # alone in the engine, its threads are in nobody's way
    config = {**next(iter(span.configs(site))), "spin": True}
    return StepChoice(whole, "ort", config, site, Entry(joined.name, (Candidate("ort", config),)))


def single(context: SelectionContext, region: Region, made: Selection) -> StepChoice:
    site = made.sites[region.name]
    entry = made.entries.get(region.name) or Entry(region.name, (Candidate("aten", {}),))
    best = entry.candidates[entry.chosen]
    if best.tactic not in {tactic.name for tactic in context.tactics}:
        raise _left_out(context.options, [f"{region.name}: {best.tactic}"])
    if best.refused is not None:
        raise BuildError(f"the lock pins {best.tactic} at {region.name}, which refused: {best.refused}")
    return StepChoice((region,), best.tactic, best.config, site, entry)


def _mixed(context: SelectionContext, work: Sequence[Region], made: Selection) -> list[StepChoice] | None:
    """Runs of regions that the library does no slower become spans; the rest stays as it is."""
    span = next(t for t in context.tactics if t.name == "ort")
    ours = [region for region in work if _wins_alone(made.entries.get(region.name))]
    if not ours or len(ours) == len(work):
        return None
    steps: list[StepChoice] = []
    run: list[Region] = []

    def close() -> None:
        if len(run) > 1:
            joined = merge(context.program, run)
            site = make_site(context.program, joined, context.inferred, context.target)
            config = next(iter(span.configs(site)))
            entry = context.find(context.key(site)) or Entry(joined.name, (Candidate("ort", dict(config)),))
            steps.append(StepChoice(tuple(run), "ort", config, site, entry))
        else:
            steps.extend(single(context, region, made) for region in run)
        run.clear()

    for region in work:
        if region in ours:
            close()
            steps.append(single(context, region, made))
        else:
            run.append(region)
    close()
    spans = sum(len(step.regions) > 1 for step in steps)
    return steps if spans else None


def _wins_alone(entry: Entry | None) -> bool:
    """Our tactic beats the library on this region by more than a border between them costs."""
    if entry is None:
        return False
    times = {c.tactic: c.median_us for c in reversed(entry.candidates) if c.median_us is not None}
    best = entry.candidates[entry.chosen]
    library = times.get("ort")
    if best.tactic == "ort" or best.median_us is None or library is None:
        return False
    border_us = 10.0
    return best.median_us * (1 + MARGIN) + border_us < library


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
            step = replace(step, entry=step.entry.with_time(us))
            remember(context, made, key, step.entry)
            made.entries.update({r.name: step.entry for r in step.regions if step.regions == (r,)})
        timed.append(step)
    return timed


def instance_of(
    context: SelectionContext,
    steps: Sequence[StepChoice],
    inputs: Mapping[str, TensorSpec],
    feeds: Mapping[str, Tensor],
) -> Instance:
    by_name = {tactic.name: tactic for tactic in context.tactics}
    regions = [merge(context.program, step.regions) for step in steps]

    def bind(index: int, site: Site) -> Launch:
        step = steps[index]
        island = (
            context.islands.bind(regions[index], site) if context.islands and step.tactic == "aten" else None
        )
        if island is not None:
            return island
        return by_name[step.tactic].bind(site, step.config, context.weights_of(regions[index], site))

    with torch.inference_mode():
        instance = Instance(
            context.program, regions, inputs, context.weights, context.target, bind, inferred=context.inferred
        )
        for name, value in feeds.items():
            if name in instance.inputs:
                fill(instance.inputs[name], value)
            else:  # strings, sequences: steps are handed the value itself
                instance.moving[name] = value
        packed = sum(step.launch.packed_bytes for step in instance.steps if step.launch is not None)
        check_workspace(packed, context.options.workspace_bytes)
    return instance


def plan_key(context: SelectionContext, made: Selection, names: Sequence[str]) -> str:
    sites = hashlib.sha256("|".join(site.key for site in made.sites.values()).encode()).hexdigest()
    rivals = "|".join([*names, *(context.key(site) for site in made.sites.values())])
    return f"plan{sites[:28]}-{hashlib.sha256(rivals.encode()).hexdigest()[:8]}"


def remember(context: SelectionContext, made: Selection, key: str, entry: Entry) -> None:
    made.keys.append(key)
    if context.lock is None:
        context.cache.entries[key] = replace(entry, context=context.context)


def _left_out(options: Options, what: Sequence[str]) -> BuildError:
    return BuildError(
        f"the lock {str(options.lock)!r} names tactics that this build leaves out",
        rows=what,
        help="drop --without, or edit `chosen` in the lock",
    )


def stale(options: Options, what: Sequence[str]) -> BuildError:
    return BuildError(
        f"the lock file does not cover {len(what)} of this model's choices",
        rows=what,
        help=f"the model, the shapes or ridgeline changed since: delete {options.lock} and build again",
    )
