"""Retuning: a plan that was predicted without its GPU is measured there, and becomes a new plan.

Only candidates whose kernels are embedded compete, so that nothing more is compiled here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ridgeline.base.choices import Candidate
from ridgeline.base.spec import Site
from ridgeline.options import Options
from ridgeline.plan.plan import Step
from ridgeline.runtime.device import require_device
from ridgeline.runtime.embedded_kernels import collect
from ridgeline.runtime.executable import Executable
from ridgeline.runtime.memory_report import planned_memory
from ridgeline.runtime.profiles import Variant
from ridgeline.select.context import Competitors, Selection, SelectionContext, Timer
from ridgeline.select.loop import select
from ridgeline.select.planning import planned_steps, region_notes, slow_ops
from ridgeline.tactics.cache import TimingCache
from ridgeline.tactics.offer import kernels_of


def retune(variant: Variant, timer: Timer) -> tuple[Variant, Selection]:
    """A new plan with the candidates of this one timed in place, and what was timed."""
    plan, executable = variant.plan, variant.executable
    fused, shapes = executable.fused, executable.planned_shapes
    # kernels of a file that is not trusted are made again here; of one that is, all are found
    collect(executable.planned_sites(), fused.tactics, fused.kernels.store)
    context = SelectionContext(
        fused=fused,
        inferred=fused.inference.at(shapes),
        inputs=shapes,
        device_key=require_device(fused.target).key,
        timer=timer,
        competitors=embedded(executable),
        options=Options(target=str(fused.target)),
        cache=TimingCache(),
        lock=None,
        islands=executable.islands,
    )
    selection = select(context)
    retuned = Executable(fused, planned_steps(context, selection), shapes, executable.islands)
    memory, steps = planned_memory(retuned)
    made = replace(
        plan, steps=steps, memory=memory, slow_ops=slow_ops(steps), regions=region_notes(context, selection)
    )
    return Variant(made, retuned), selection


def embedded(executable: Executable) -> Callable[[Site], Competitors]:
    """Who may compete for a site: those the plan kept whose kernels are embedded."""
    steps = {region: step for step in executable.steps for region in step.regions}
    tactics, store = executable.fused.tactics, executable.fused.kernels.store

    def is_embedded(site: Site, candidate: Candidate) -> bool:
        kernels = kernels_of(tactics, site, candidate.tactic, candidate.config)
        return all(store.find(kernel, site.target.arch) is not None for kernel in kernels)

    def competitors(site: Site) -> Competitors:
        known = [
            m if m.refused or is_embedded(site, m) else replace(m, refused="its kernels are not embedded")
            for m in _candidates(steps[site.name])
        ]
        return [m for m in known if m.refused is None], [m for m in known if m.refused is not None]

    return competitors


def _candidates(step: Step) -> list[Candidate]:
    """Without their predictions: what is not timed now stays without a time."""
    chosen = Candidate(step.tactic, step.config)
    return [chosen, *(Candidate(c.tactic, c.config, refused=c.refused) for c in step.losers)]
