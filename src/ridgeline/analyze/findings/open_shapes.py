"""Tactics that would take a step at the planned sizes, and refuse other sizes of its profile."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.analyze.findings.finding import Finding
from ridgeline.analyze.findings.kind import Kind, Planned
from ridgeline.base.grouping import grouped

REFUSED = "not over the whole profile: "  # as `select/candidates.py` says it


def find(planned: Planned) -> Iterator[Finding]:
    moving = [
        f"{name} axis {axis}: {dim.min}..{dim.max}"
        for name, dims in planned.plan.profile.items()
        for axis, dim in enumerate(dims)
        if dim.min != dim.max
    ]
    refused = [
        ((candidate.tactic, candidate.refused), step)
        for step in planned.plan.steps
        for candidate in step.losers
        if (candidate.refused or "").startswith(REFUSED)
    ]
    for (tactic, reason), steps in grouped(refused).items():
        yield Finding(
            "open_shapes",
            tuple(name for step in steps for name in step.sources),
            f"{tactic} takes {len(steps)} of the steps at the planned sizes only: "
            f"{(reason or '').removeprefix(REFUSED)}",
            f"fix the sizes that never change (--shapes), or give each size a profile of its own; now open: "
            f"{', '.join(moving[:3])}",
            {"steps": len(steps), "tactic": tactic},
        )


KIND = Kind("open_shapes", "a range of sizes keeps a tactic out that takes the planned ones", find)
