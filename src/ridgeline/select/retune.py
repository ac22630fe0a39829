"""Retuning: a plan that a build elsewhere could only predict is measured and checked on its own GPU.

Only candidates whose kernels are embedded compete, so that nothing more is compiled here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

from ridgeline.base.choices import Candidate
from ridgeline.base.spec import Site
from ridgeline.options import Options
from ridgeline.plan.plan import Plan, Step
from ridgeline.plan.report import Check, Report
from ridgeline.runtime.device import require_device
from ridgeline.runtime.embedded_kernels import collect
from ridgeline.runtime.engine import Engine
from ridgeline.runtime.memory_report import with_memory
from ridgeline.runtime.weights import DeviceWeights
from ridgeline.select.context import Competitors, SelectionContext
from ridgeline.select.graph_replay import GraphReplay
from ridgeline.select.loop import select
from ridgeline.select.planning import planned_steps, region_notes
from ridgeline.tactics.cache import TimingCache
from ridgeline.tactics.offer import kernels_of

UNCHECKED = "settled on its GPU, but the file holds no outputs to check it against"


def retune(engine: Engine, *, check: Callable[[Engine], list[Check]]) -> tuple[Plan, Report]:
    """The plan with its candidates timed in place, and the report with its first run checked."""
    start = perf_counter()
    plan, shapes = engine.plan, engine.plan.planned_shapes
    # kernels of a file that is not trusted are made again here; of one that is, all are found
    collect(engine.planned_sites(), {tactic.name: tactic for tactic in engine.tactics}, engine.store)
    context = _context(engine)
    selection = select(context)
    engine.choose(
        replace(plan, steps=planned_steps(context, selection), regions=region_notes(context, selection))
    )
    engine.choose(with_memory(engine, shapes))
    rows = check(engine) if engine.expected else []
    report = replace(
        engine.report,
        checks=(*engine.report.checks, *rows),
        unverified="" if rows else UNCHECKED,
        limits={},
        sites_timed=selection.timed,
        stage_seconds={**engine.report.stage_seconds, "settle": round(perf_counter() - start, 3)},
    )
    return engine.plan, report


def _context(engine: Engine) -> SelectionContext:
    target = engine.plan.target
    return SelectionContext(
        inference=engine.inference,
        inferred=engine.inference.at(engine.plan.planned_shapes),
        weights=DeviceWeights(engine.weights),
        target=target,
        device_key=require_device(target).key,
        tactics=engine.tactics,
        timer=GraphReplay(),
        inputs=engine.plan.planned_shapes,
        competitors=embedded(engine),
        options=Options(target=str(target)),
        cache=TimingCache(),
        lock=None,
    )


def embedded(engine: Engine) -> Callable[[Site], Competitors]:
    """Who may compete for a site: those the plan kept whose kernels are embedded."""
    steps = {region: step for step in engine.plan.steps for region in step.regions}
    tactics = {tactic.name: tactic for tactic in engine.tactics}

    def is_embedded(site: Site, candidate: Candidate) -> bool:
        kernels = kernels_of(tactics, site, candidate.tactic, candidate.config)
        return all(engine.store.find(kernel, site.target.arch) is not None for kernel in kernels)

    def competitors(site: Site) -> Competitors:
        known = _candidates(steps[site.name])
        willing = [m for m in known if m.refused is None and is_embedded(site, m)]
        kept = {id(m) for m in willing}
        left = [
            m if m.refused else replace(m, refused="its kernels are not embedded")
            for m in known
            if id(m) not in kept
        ]
        return willing, left

    return competitors


def _candidates(step: Step) -> list[Candidate]:
    """Without their predictions: what is not timed now stays without a time."""
    chosen = Candidate(step.tactic, step.config)
    return [chosen, *(Candidate(c.tactic, c.config, refused=c.refused) for c in step.losers)]
