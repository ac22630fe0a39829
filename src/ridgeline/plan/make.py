"""What a plan says of a choice: its candidates in order, the work at the least, and the reason."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.base.choices import Candidate
from ridgeline.base.spec import Site
from ridgeline.ir.work import body_bytes, body_flops
from ridgeline.plan.plan import Work
from ridgeline.tactics.cache import Entry


def candidates(entry: Entry) -> tuple[Candidate, ...]:
    """The chosen one first, then the rest as they stand."""
    chosen = entry.chosen
    return (entry.candidates[chosen], *entry.candidates[:chosen], *entry.candidates[chosen + 1 :])


def work_of(site: Site) -> Work:
    return Work(flops=body_flops(site.body, site.specs), bytes=body_bytes(site.body, site.specs))


def reason(ranked: Sequence[Candidate]) -> str:
    """One sentence: what made this choice."""
    best, rest = ranked[0], [c for c in ranked[1:] if c.median_us is not None]
    willing = [c for c in ranked[1:] if c.refused is None]
    if best.untimed is not None:
        return f"not timed: {best.untimed}"
    if best.predicted_us is not None:
        return _prediction(best, willing)
    if best.median_us is None:
        return "the first willing, not timed" if willing else "the only one willing"
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
