"""What is said of the streams of a plan: which step runs beside others, and what that gained or why not."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.base.units import duration, plural
from ridgeline.plan.plan import Plan, Step
from ridgeline.plan.streams import SEVERAL, Placed, schedule_of

LISTED = 4


def stream_notes(step: Step) -> tuple[str, ...]:
    """Nothing for a step of the main stream that waits for nobody."""
    if not step.stream and not step.waits:
        return ()
    where = f"runs on stream {step.stream}" if step.stream else "runs on the main stream"
    waits = ", ".join(str(other + 1) for other in step.waits[:LISTED])
    more = f" and {len(step.waits) - LISTED} more" if len(step.waits) > LISTED else ""
    word = "step" if len(step.waits) == 1 else "steps"
    return (where + (f", after {word} {waits}{more} of other streams" if step.waits else ""),)


def stream_names(steps: Sequence[Placed]) -> list[str]:
    """The stream of each step in a word; all empty where there is but one."""
    if schedule_of(steps) is None:
        return [""] * len(steps)
    return [str(step.stream) if step.stream else "main" for step in steps]


def streams_text(plan: Plan) -> str:
    """What came of putting independent steps side by side; empty where there was nothing to try."""
    schedule = schedule_of(plan.steps)
    several = next((each for each in plan.alternatives if each.tactic == SEVERAL), None)
    one = next((each for each in plan.alternatives if each.tactic != SEVERAL), None)
    times = ""
    if several is not None and one is not None and several.median_us and one.median_us:
        times = f"{duration(several.median_us)} a run, {duration(one.median_us)} on one stream"
    if schedule is not None:
        waits = plural(schedule.n_waits, "wait")
        found = f"{schedule.n_streams} side by side, {waits} between them"
        return f"{found}: {times}" if times else found
    if several is None:
        return ""
    return f"one: side by side {several.refused or f'is no faster: {times}'}"
