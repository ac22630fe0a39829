"""A plan is chosen again where more is known: on the GPU it was predicted for, at shapes once guessed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ridgeline.base.choices import Candidate
from ridgeline.base.spec import Config, Site, TensorSpec
from ridgeline.options import Options
from ridgeline.runtime.device import require_device
from ridgeline.runtime.embedded_kernels import collect
from ridgeline.runtime.executable import Executable
from ridgeline.runtime.islands import Islands
from ridgeline.runtime.memory_report import planned_memory
from ridgeline.runtime.profiles import Variant
from ridgeline.select.context import APART, Competitors, Selection, SelectionContext, Timer
from ridgeline.select.deadline import Deadline
from ridgeline.select.loop import select
from ridgeline.select.planning import planned_steps, region_notes, slow_ops, whole_plans
from ridgeline.tactics.cache import TimingCache
from ridgeline.tactics.offer import kernels_of


def retune(variant: Variant, timer: Timer) -> tuple[Variant, Selection]:
    """A plan that was predicted without its GPU, with its candidates timed there, and what was timed.

    Only candidates whose kernels are embedded compete, so that nothing more is compiled here.
    """
    variant = _with_bodies_retuned(variant, timer)
    executable, target = variant.executable, variant.plan.target
    fused = executable.fused
    # kernels of a file that is not trusted are made again here; of one that is, all are found
    collect(variant.sites_to_embed(), fused.tactics, fused.kernels.store)
    context = context_at(executable.planned_shapes, executable, timer, Options(target=str(target)))
    return choose_again(
        variant, replace(context, device_key=require_device(target).key, competitors=embedded(variant))
    )


def _with_bodies_retuned(variant: Variant, timer: Timer) -> Variant:
    """The variant with its subgraphs chosen anew: whole plans are timed with them."""
    plan, executable = variant.plan, variant.executable
    bodies: dict[str, Variant] = {}
    for key, body in executable.islands.found():
        assert isinstance(body, Executable), "bound by the planner"
        own = Variant(plan.bodies[key], body)
        bodies[key] = retune(own, timer)[0] if own.plan.is_predicted else own
    if not bodies:
        return variant
    plans = {key: body.plan for key, body in bodies.items()}
    islands = Islands(executable.fused, plans, lambda body, own, fused: bodies[own.model].executable)
    again = Executable(executable.fused, plan.steps, plan.planned_shapes, islands)
    return replace(variant, plan=replace(plan, bodies=plans), executable=again)


def plan_at(
    variant: Variant,
    shapes: Mapping[str, TensorSpec],
    timer: Timer,
    limit_s: Callable[[Options], float | None] = lambda options: options.time_limit,
) -> tuple[Variant, Selection]:
    """A plan whose shapes were guessed, chosen again at these by whoever competed for it then.

    `limit_s`: how long a build may take on the target.
    """
    plan, guess = variant.plan, variant.plan.guess
    assert guess is not None, "only a guess is replaced"
    competed = {c.tactic for note in plan.regions for c in note.candidates}
    competed |= {step.tactic for step in plan.steps} | {c.tactic for c in plan.alternatives}
    fused = variant.executable.fused
    known = {name: t for name, t in fused.tactics.items() if t.is_floor or name in competed}
    options = Options(
        target=str(plan.target.kind),
        threads=plan.target.threads,
        level=guess.level,
        workspace_bytes=guess.workspace_bytes,
        time_limit=guess.time_limit,
        progress=False,
    )
    executable = Executable(
        replace(fused, tactics=known), plan.steps, plan.planned_shapes, variant.executable.islands
    )
    deadline = Deadline.of_choosing(limit_s(options), spent_s=0.0, is_verified=True)
    unguessed = Variant(replace(plan, guess=None), executable)
    return choose_again(unguessed, replace(context_at(shapes, executable, timer, options), deadline=deadline))


def context_at(
    shapes: Mapping[str, TensorSpec], executable: Executable, timer: Timer, options: Options
) -> SelectionContext:
    """What selection needs to choose at these shapes without a cache or a lock."""
    fused = executable.fused
    return SelectionContext(
        fused=fused,
        inferred=fused.inference.at(shapes),
        inputs=shapes,
        timer=timer,
        options=options,
        cache=TimingCache(),
        lock=None,
        islands=executable.islands,
    )


def choose_again(variant: Variant, context: SelectionContext) -> tuple[Variant, Selection]:
    """The variant with every choice made anew in this context, at its shapes."""
    plan, islands = variant.plan, variant.executable.islands
    selection = select(context)
    chosen = Executable(context.fused, planned_steps(context, selection), context.inputs, islands)
    memory, steps = planned_memory(chosen)
    made = replace(
        plan,
        planned_shapes=dict(context.inputs),
        steps=steps,
        memory=memory,
        slow_ops=slow_ops(steps),
        regions=region_notes(context, selection),
    )
    if selection.alternatives is not None:
        made = replace(made, **whole_plans(selection.alternatives))
    return replace(variant, plan=made, executable=chosen), selection


def embedded(variant: Variant) -> Callable[[Site], Competitors]:
    """Who may compete for a site: those the plan kept whose kernels are embedded."""
    executable = variant.executable
    tactics, store = executable.fused.tactics, executable.fused.kernels.store
    known = {step.name: _candidates(step.tactic, step.config, step.losers) for step in executable.steps}
    parts = {name for step in executable.steps if len(step.regions) > 1 for name in step.regions}
    for note in variant.plan.regions:
        if note.name in parts and note.candidates:
            first, *losers = note.candidates
            known[note.name] = _candidates(first.tactic, first.config, losers)

    def is_embedded(site: Site, candidate: Candidate) -> bool:
        kernels = kernels_of(tactics, site, candidate.tactic, candidate.config)
        return all(store.find(kernel, site.target.arch) is not None for kernel in kernels)

    def competitors(site: Site) -> Competitors:
        # no pair is tried that the plan did not consider best: nothing of it is embedded
        found = [
            m if m.refused or is_embedded(site, m) else replace(m, refused="its kernels are not embedded")
            for m in known.get(site.name, ())
            if m.tactic != APART
        ]
        return [m for m in found if m.refused is None], [m for m in found if m.refused is not None]

    return competitors


def _candidates(tactic: str, config: Config, losers: Sequence[Candidate]) -> list[Candidate]:
    """Without their predictions: what is not timed now stays without a time."""
    return [Candidate(tactic, config), *(Candidate(c.tactic, c.config, refused=c.refused) for c in losers)]
