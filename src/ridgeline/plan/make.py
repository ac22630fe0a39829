"""Making the plan: choices, memory and provenance into one frozen value."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.base.choices import Candidate
from ridgeline.base.spec import Config, Site
from ridgeline.ir.body import Region
from ridgeline.ir.work import body_bytes, body_flops
from ridgeline.plan.plan import RegionNote, Step, Work
from ridgeline.tactics.cache import Entry


def candidates(entry: Entry) -> tuple[Candidate, ...]:
    """The chosen one first, then the rest as they stand."""
    chosen = entry.chosen
    return (entry.candidates[chosen], *entry.candidates[:chosen], *entry.candidates[chosen + 1 :])


def step_of(
    region: Region,
    parts: Sequence[Region],
    *,
    tactic: str,
    config: Config,
    site: Site,
    entry: Entry,
    kernels: Sequence[str] = (),
) -> Step:
    ranked = candidates(entry)
    return Step(
        name=region.name,
        regions=tuple(part.name for part in parts),
        op_types=region.op_types,
        sources=region.sources,
        inputs=region.inputs,
        outputs=region.outputs,
        tactic=tactic,
        config=dict(config),
        site=site.key,
        work=work_of(site),
        median_us=ranked[0].median_us,
        predicted_us=ranked[0].predicted_us,
        losers=ranked[1:],
        why=reason(ranked),
        kernels=tuple(kernels),
    )


def region_note(region: Region, site: Site, entry: Entry | None) -> RegionNote:
    return RegionNote(
        name=region.name,
        function=region.function,
        op_types=region.op_types,
        sources=region.sources,
        site=site.key,
        work=work_of(site),
        candidates=() if entry is None else candidates(entry),
    )


def work_of(site: Site) -> Work:
    return Work(flops=body_flops(site.body, site.specs), bytes=body_bytes(site.body, site.specs))


def reason(ranked: Sequence[Candidate]) -> str:
    """One sentence: what made this choice."""
    best, rest = ranked[0], [c for c in ranked[1:] if c.median_us is not None]
    if best.predicted_us is not None:
        return _prediction(best, [c for c in ranked[1:] if c.refused is None])
    if best.median_us is None:
        others = [c for c in ranked[1:] if c.refused is None]
        return "the first willing, not timed" if others else "the only one willing"
    if not rest:
        return "the only one that was timed"
    second = min(rest, key=lambda c: c.median_us or 0.0)
    assert second.median_us is not None, "only timed candidates are ranked"
    if second.median_us < best.median_us:
        return f"as fast as {second.tactic} within the margin, and simpler"
    return f"{second.median_us / best.median_us:.2f}× faster than {second.tactic}, the runner-up"


def _prediction(best: Candidate, rest: Sequence[Candidate]) -> str:
    """A choice that nobody has measured says so."""
    others = [c for c in rest if c.predicted_us is not None and c.tactic != best.tactic]
    if not others or best.predicted_us is None:
        return "predicted, not timed: the only tactic that is willing"
    second = min(others, key=lambda c: c.predicted_us or 0.0)
    lead = (second.predicted_us or 0.0) / best.predicted_us
    return f"predicted {lead:.2f}× faster than {second.tactic}, not timed"
