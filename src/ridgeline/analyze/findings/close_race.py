"""Choices that rest on a difference that the next build may measure the other way round."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.analyze.findings.finding import Finding
from ridgeline.analyze.findings.kind import Kind, Planned
from ridgeline.plan.plan import Step

# as selection has it (`select/race.py`), which no reader of text can import
MARGIN = 0.03


def find(planned: Planned) -> Iterator[Finding]:
    close = [(step, lead) for step in planned.plan.steps if (lead := _lead(step)) is not None]
    if not close:
        return
    first, lead = min(close, key=lambda each: abs(each[1]))
    yield Finding(
        "close_race",
        tuple(name for step, _ in close for name in step.sources),
        f"{len(close)} of {len(planned.plan.steps)} tactics won by less than {MARGIN:.0%}, which two builds "
        f"may measure differently; the closest is {first.tactic} at {first.name}, {lead:+.1%}",
        "nothing in the model: pin the choices with --lock, or build again on a quiet machine",
        {"steps": len(close), "closest": first.name, "lead": round(lead, 4)},
    )


def _lead(step: Step) -> float | None:
    """How far the best of another tactic is behind, if that is less than the margin."""
    rivals = [c.median_us for c in step.losers if c.median_us is not None and c.tactic != step.tactic]
    if not rivals or not step.median_us:
        return None
    lead = min(rivals) / step.median_us - 1
    return lead if abs(lead) < MARGIN else None


KIND = Kind("close_race", "tactics that won by a margin inside the noise", find)
