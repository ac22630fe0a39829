"""Composition: region choices into whole plans, and whole plans compared by their total time.

A span of neighbouring regions taken by one tactic competes with the sum of what it replaces, so it is only
believed when the whole plan has been timed with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import TypeAlias

import torch
from torch import Tensor

from ridgeline.base.spec import Config, Site, Target, TensorSpec
from ridgeline.errors import BuildError
from ridgeline.ir.body import Program, Region
from ridgeline.ir.settle import Settled
from ridgeline.ir.sites import make_site, merge
from ridgeline.ir.views import views_of
from ridgeline.kernels.elements import fill
from ridgeline.options import Options
from ridgeline.runtime.examples import site_inputs
from ridgeline.runtime.instance import Instance
from ridgeline.runtime.islands import Islands
from ridgeline.select.plan_times import compare_plans
from ridgeline.select.sites import EFFORTS, MARGIN, candidates_of, check_workspace, time_site
from ridgeline.tactics.base import Compiles, Launch, Tactic
from ridgeline.tactics.cache import Entry, Measured, TimingCache, measuring_context, only_offered, site_of


@dataclass(frozen=True)
class StepChoice:
    """A step of a plan in the making."""

    regions: tuple[Region, ...]
    tactic: str
    config: Config
    site: Site
    entry: Entry

    @property
    def median_us(self) -> float | None:
        return self.entry.chosen_us


@dataclass
class Selection:
    """What was chosen, over what, and what that choice rests on."""

    steps: tuple[StepChoice, ...] = ()
    entries: dict[str, Entry] = field(default_factory=dict)  # by region name
    sites: dict[str, Site] = field(default_factory=dict)  # by region name
    alternatives: Entry | None = None
    keys: list[str] = field(default_factory=list)  # cache keys this build used, in order
    timed: int = 0
    unsteady: int = 0  # of those timed
    cached: int = 0
    predicted: int = 0  # sites chosen by a model, where nothing can be timed
    measured_at: tuple[str, ...] = ()  # where others measured what this build only read


@dataclass(frozen=True)
class Workshop:
    """What every stage of selection needs."""

    program: Program
    settled: Settled
    weights: Mapping[str, Tensor]  # where the target reads them
    host_weights: Mapping[str, Tensor]
    target: Target
    tactics: Sequence[Tactic]
    options: Options
    cache: TimingCache
    lock: TimingCache | None
    device_key: str = ""  # the GPU that timings are taken on; "" for one that is not here
    islands: Islands | None = None  # control flow whose bodies are planned
    body_keys: Sequence[str] = ()  # cache keys that planning those used
    elsewhere: Sequence[Settled] = ()  # the profile's other corners, where a tactic must be valid too

    @property
    def context(self) -> str:
        return measuring_context(self.target.threads, self.device_key)

    def site(self, region: Region) -> Site:
        return make_site(self.program, region, self.settled, self.target)

    def weights_of(self, region: Region, site: Site) -> dict[str, Tensor]:
        return {name: self.weights[region.outer(name)] for name in site.weights}

    def key(self, site: Site) -> str:
        """Timings count for the same rivals at the same effort only."""
        options = self.options
        names = " ".join(t.name for t in self.tactics)
        rivals = f"{options.level} {names} {options.deterministic} {options.workspace_bytes}"
        return f"{site.key}-{hashlib.sha256(rivals.encode()).hexdigest()[:8]}"

    def find(self, key: str) -> Entry | None:
        if self.lock is not None:
            return self.lock.entries.get(site_of(key))
        if self.target.is_null or (self.target.kind == "cpu" and not self.options.level):
            return None  # nothing was timed, and not every candidate was tried
        if self.target.kind == "cuda" and not self.device_key:
            return self.cache.find_anywhere(key)
        return self.cache.find(key, self.context)

    def known(self, site: Site) -> Entry:
        """What a file says about the site, which was found there before."""
        return only_offered(self.find(self.key(site)), site, self.tactics)


Offer: TypeAlias = tuple[Region, Site, list[Measured], list[Measured]]  # who is willing, who refused
Enter: TypeAlias = Callable[[Workshop, Sequence[tuple[Region, Site]]], dict[str, Entry]]


def select(shop: Workshop, inputs: Mapping[str, TensorSpec], feeds: Mapping[str, Tensor]) -> Selection:
    """Choose for every region, then between whole plans."""
    made = Selection()
    work = [region for region in shop.program.regions if not shop.settled.is_host(region)]
    choose_regions(shop, work, made, _time_sites)
    plans = _plans(shop, work, made)
    key = plan_key(shop, made, list(plans))
    entry = shop.find(key)
    if entry is None:
        if shop.lock is not None:
            raise stale(shop.options, ["the whole plan"])
        entry, times = compare_plans(
            {name: [step.median_us for step in steps] for name, steps in plans.items()},
            lambda name: instance_of(shop, plans[name], inputs, feeds),
            options=shop.options,
        )
        for name, steps_us in times.items():
            plans[name] = _with_times(shop, made, plans[name], steps_us)
        made.timed += 1
        made.unsteady += entry.is_unsteady
    else:
        made.cached += 1
    remember(shop, made, key, entry)
    made.alternatives = entry
    chosen = entry.candidates[entry.chosen].tactic
    if chosen not in plans:
        raise _left_out(shop.options, [f"the whole plan: {chosen}"])
    made.steps = tuple(plans[chosen])
    if chosen == "ort":  # one step is the whole plan: their times are the same, and so are their rivals
        made.steps = (replace(made.steps[0], entry=entry),)
    return made


def choose_regions(shop: Workshop, work: Sequence[Region], made: Selection, enter: Enter) -> None:
    """An entry for every region; equal sites share one."""
    todo: dict[str, tuple[Region, Site]] = {}
    for region in work:
        site = shop.site(region)
        made.sites[region.name] = site
        if views_of(site):
            continue
        if shop.find(shop.key(site)) is None:
            todo.setdefault(shop.key(site), (region, site))
    if todo and shop.lock is not None:
        raise stale(shop.options, [region.name for region, _ in todo.values()])
    fresh = enter(shop, list(todo.values()))
    for region in work:
        site = made.sites[region.name]
        if views_of(site):
            continue
        key = shop.key(site)
        entry = fresh.get(key) or shop.known(site)
        remember(shop, made, key, entry)
        made.entries[region.name] = entry
    made.cached = len(set(made.keys)) - len(fresh)
    if shop.options.level:
        made.timed, made.unsteady = len(fresh), sum(entry.is_unsteady for entry in fresh.values())


def _time_sites(shop: Workshop, todo: Sequence[tuple[Region, Site]]) -> dict[str, Entry]:
    offers = offers_of(shop, todo)
    precompile(shop, [(site, candidate) for _, site, willing, _ in offers for candidate in willing])
    return enter_sites(shop, offers, stage="time")


def offers_of(shop: Workshop, todo: Sequence[tuple[Region, Site]]) -> list[Offer]:
    """Who is willing at each site, and who is not and why."""
    all_configs = EFFORTS[shop.options.level].all_configs
    made = []
    for region, site in todo:
        willing, refused = candidates_of(site, shop.tactics, all_configs=all_configs)
        willing, more = valid_everywhere(shop, region, willing)
        made.append((region, site, willing, [*refused, *more]))
    return made


def precompile(shop: Workshop, candidates: Sequence[tuple[Site, Measured]]) -> None:
    """Compile what will be bound, several kernels at a time."""
    compilers = {tactic.name: tactic for tactic in shop.tactics if isinstance(tactic, Compiles)}
    jobs = {name: [(site, c.config) for site, c in candidates if c.tactic == name] for name in compilers}
    done, total = 0, sum(map(len, jobs.values()))
    for name in (name for name in jobs if jobs[name]):
        shop.options.tell("compile", done, total, name)
        compilers[name].precompile(jobs[name])
        done += len(jobs[name])
        shop.options.tell("compile", done, total)


def enter_sites(shop: Workshop, offers: Sequence[Offer], *, stage: str) -> dict[str, Entry]:
    """An entry for each site: its candidates in the order of their times, or the first that runs."""
    made = {}
    for i, (region, site, willing, refused) in enumerate(offers):
        shop.options.tell(stage, i, len(offers), region.name)
        weights = shop.weights_of(region, site)
        with torch.inference_mode():
            made[shop.key(site)] = time_site(
                site,
                weights,
                shop.tactics,
                effort=EFFORTS[shop.options.level],
                willing=willing,
                refused=refused,
                draw=partial(site_inputs, site, weights),
                workspace_bytes=shop.options.workspace_bytes,
            )
    shop.options.tell(stage, len(offers), len(offers))
    return made


def valid_everywhere(
    shop: Workshop, region: Region, willing: Sequence[Measured]
) -> tuple[list[Measured], list[Measured]]:
    """Tactics are chosen at opt and must be valid from min to max."""
    by_name = {tactic.name: tactic for tactic in shop.tactics}
    kept, dropped = [], []
    for candidate in willing:
        reason = None
        for settled in shop.elsewhere:
            site = make_site(shop.program, region, settled, shop.target)
            reason = reason or by_name[candidate.tactic].why_not(site)
        if reason is None:
            kept.append(candidate)
        else:
            dropped.append(replace(candidate, refused=f"not over the whole profile: {reason}"))
    return kept, dropped


def _plans(shop: Workshop, work: Sequence[Region], made: Selection) -> dict[str, list[StepChoice]]:
    """Whole plans worth comparing: region by region, one span for all, runs where the library is better."""
    plans: dict[str, list[StepChoice]] = {}
    plans["regions"] = [single(shop, region, made) for region in work]
    whole = whole_graph(shop) if work else None
    if whole is not None:
        plans["ort"] = [whole]
        mixed = _mixed(shop, work, made)
        if mixed is not None:
            plans["mixed"] = mixed
    return plans


def whole_graph(shop: Workshop) -> StepChoice | None:
    """One step for all regions, if there is a library that takes them."""
    span = next((t for t in shop.tactics if t.name == "ort"), None)
    whole = tuple(shop.program.regions)
    joined = merge(shop.program, whole)
    site = make_site(shop.program, joined, shop.settled, shop.target)
    if span is None or span.why_not(site) is not None:
        return None
    # alone in the engine, its threads are in nobody's way
    config = {**next(iter(span.configs(site))), "spin": True}
    return StepChoice(whole, "ort", config, site, Entry(joined.name, (Measured("ort", config),)))


def single(shop: Workshop, region: Region, made: Selection) -> StepChoice:
    site = made.sites[region.name]
    entry = made.entries.get(region.name) or Entry(region.name, (Measured("aten", {}),))
    best = entry.candidates[entry.chosen]
    if best.tactic not in {tactic.name for tactic in shop.tactics}:
        raise _left_out(shop.options, [f"{region.name}: {best.tactic}"])
    if best.refused is not None:
        raise BuildError(f"the lock pins {best.tactic} at {region.name}, which refused: {best.refused}")
    return StepChoice((region,), best.tactic, best.config, site, entry)


def _mixed(shop: Workshop, work: Sequence[Region], made: Selection) -> list[StepChoice] | None:
    """Runs of regions that the library does no slower become spans; the rest stays as it is."""
    span = next(t for t in shop.tactics if t.name == "ort")
    ours = [region for region in work if _wins_alone(made.entries.get(region.name))]
    if not ours or len(ours) == len(work):
        return None
    steps: list[StepChoice] = []
    run: list[Region] = []

    def close() -> None:
        if len(run) > 1:
            joined = merge(shop.program, run)
            site = make_site(shop.program, joined, shop.settled, shop.target)
            config = next(iter(span.configs(site)))
            entry = shop.find(shop.key(site)) or Entry(joined.name, (Measured("ort", dict(config)),))
            steps.append(StepChoice(tuple(run), "ort", config, site, entry))
        else:
            steps.extend(single(shop, region, made) for region in run)
        run.clear()

    for region in work:
        if region in ours:
            close()
            steps.append(single(shop, region, made))
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
    shop: Workshop, made: Selection, steps: Sequence[StepChoice], times: Sequence[float | None]
) -> list[StepChoice]:
    """The steps with these times, kept for the next build. Equal sites have one entry, and one time."""
    by_key: dict[str, list[float]] = {}
    for step, us in zip(steps, times, strict=True):
        if us is not None:
            by_key.setdefault(shop.key(step.site), []).append(us)
    timed = []
    for step in steps:
        key = shop.key(step.site)
        us = median(by_key[key]) if key in by_key else None
        if us is not None and us != step.median_us:
            step = replace(step, entry=step.entry.with_time(us))
            remember(shop, made, key, step.entry)
            made.entries.update({r.name: step.entry for r in step.regions if step.regions == (r,)})
        timed.append(step)
    return timed


def instance_of(
    shop: Workshop, steps: Sequence[StepChoice], inputs: Mapping[str, TensorSpec], feeds: Mapping[str, Tensor]
) -> Instance:
    by_name = {tactic.name: tactic for tactic in shop.tactics}
    regions = [merge(shop.program, step.regions) for step in steps]

    def bind(index: int, site: Site) -> Launch:
        step = steps[index]
        island = shop.islands.bind(regions[index], site) if shop.islands and step.tactic == "aten" else None
        if island is not None:
            return island
        return by_name[step.tactic].bind(site, step.config, shop.weights_of(regions[index], site))

    with torch.inference_mode():
        instance = Instance(
            shop.program, regions, inputs, shop.weights, shop.target, bind, settled=shop.settled
        )
        for name, value in feeds.items():
            if name in instance.inputs:
                fill(instance.inputs[name], value)
            else:  # strings, sequences: steps are handed the value itself
                instance.moving[name] = value
        packed = sum(step.launch.packed_bytes for step in instance.steps if step.launch is not None)
        check_workspace(packed, shop.options.workspace_bytes)
    return instance


def plan_key(shop: Workshop, made: Selection, names: Sequence[str]) -> str:
    sites = hashlib.sha256("|".join(site.key for site in made.sites.values()).encode()).hexdigest()
    rivals = "|".join([*names, *(shop.key(site) for site in made.sites.values())])
    return f"plan{sites[:28]}-{hashlib.sha256(rivals.encode()).hexdigest()[:8]}"


def remember(shop: Workshop, made: Selection, key: str, entry: Entry) -> None:
    made.keys.append(key)
    if shop.lock is None:
        shop.cache.entries[key] = replace(entry, context=shop.context)


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
