"""Nodes that were asked to be lower in precision and stayed as they are."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.analyze.findings.finding import Finding
from ridgeline.analyze.findings.kind import Kind, Planned
from ridgeline.base.grouping import grouped


def find(planned: Planned) -> Iterator[Finding]:
    lowered = planned.report.precision
    for why, kept in grouped(
        (each.why, each) for each in (lowered.kept if lowered is not None else ())
    ).items():
        assert lowered is not None, "nothing is kept where nothing was asked"
        steps = [step for step in planned.plan.steps if {each.node for each in kept} & set(step.sources)]
        yield Finding(
            "kept_precision",
            tuple(each.node for each in kept),
            f"{len(kept)} {'node' if len(kept) == 1 else 'nodes'} stayed out of {lowered.asked}: {why}",
            "allow a larger error with --budget, give samples of your own with --data, or change what the "
            "reason names",
            {"nodes": len(kept), "steps": len(steps), "asked": lowered.asked},
        )


KIND = Kind("kept_precision", "nodes that stayed in high precision, and why", find)
