"""Steps whose shapes or trips data decides: the host waits for them, and nothing is fused across."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.analyze.findings.finding import Finding
from ridgeline.analyze.findings.kind import Kind, Planned

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
    for island in planned.report.islands:
        sources = next((s.sources for s in planned.plan.steps if island.step in s.regions), (island.step,))
        advice = next((INSTEAD[op] for op in island.ops if op in INSTEAD), OTHERWISE)
        evidence = {"ops": " ".join(island.ops[:4]), "why": island.why}
        yield Finding(
            "island", sources, f"{' '.join(island.ops[:4])}: {island.why}", advice,
            evidence if island.median_us is None else {**evidence, "us": island.median_us},
            step=island.step,
        )  # fmt: skip


KIND = Kind("island", "a step whose shapes or trips depend on data", find)
