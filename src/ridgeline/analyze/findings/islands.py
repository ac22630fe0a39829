"""Steps whose shapes or trips data decides: the host waits for them, and nothing is fused across."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.analyze.findings.finding import Finding
from ridgeline.analyze.findings.kind import Kind, Planned
from ridgeline.base.grouping import grouped

# by op: what a model can do instead, so that every shape is known before the run
INSTEAD = {
    "NonZero": "keep the mask and use Where, or TopK with a fixed k",
    "NonMaxSuppression": "pad its result to max_output_boxes_per_class, or run it outside the engine",
    "Unique": "sort with TopK and mask repeated values",
    "Compress": "keep all rows and mask them with Where",
    "Loop": "unroll it where the number of trips is known at export",
    "Scan": "unroll it where the number of trips is known at export",
    "If": "compute both branches and choose with Where, or export the branch that is taken",
}
OTHERWISE = "make the size a constant, or an input with a range (--shapes)"


def find(planned: Planned) -> Iterator[Finding]:
    alike = grouped(((island.ops, island.why), island) for island in planned.report.islands)
    for (ops, why), group in alike.items():
        names = {island.step for island in group}
        sources = [s for step in planned.plan.steps if names & set(step.regions) for s in step.sources]
        timed = [island.median_us for island in group if island.median_us is not None]
        evidence = {"steps": len(group), **({"us": sum(timed)} if timed else {})}
        yield Finding(
            "island", tuple(dict.fromkeys(sources)) or tuple(sorted(names)), f"{' '.join(ops[:4])}: {why}",
            next((INSTEAD[op] for op in ops if op in INSTEAD), OTHERWISE), evidence,
            step=group[0].step if len(group) == 1 else "",
        )  # fmt: skip


KIND = Kind("island", "a step whose shapes or trips depend on data", find)
