"""Kinds of findings that plan and report alone tell of. A new one is a file with a `KIND`, and a line here.

Nothing here needs a framework: `ridge explain` reads an engine file as text.
"""

from __future__ import annotations

from collections.abc import Iterable

from ridgeline.analyze.findings import close_race, islands, kept_precision, open_shapes
from ridgeline.analyze.findings.finding import SEVERITIES, Finding
from ridgeline.analyze.findings.kind import Kind, Planned
from ridgeline.plan.plan import Plan
from ridgeline.plan.report import Report

PLAN_KINDS: tuple[Kind[Planned], ...] = (
    islands.KIND,
    kept_precision.KIND,
    open_shapes.KIND,
    close_race.KIND,
)
# what no reader of text alone can look for: regions of a graph, and what they would cost otherwise
GRAPH_KIND_NAMES = (
    "alignment", "channels", "broadcast_residual", "kept_output", "precision_island", "gather_axis",
    "unfused_qdq", "layout", "tail_reduction", "topk", "tiny_kernels", "floor_op", "duplicate",
)  # fmt: skip


def find_in_plan(plan: Plan, report: Report) -> tuple[Finding, ...]:
    """What plan and report tell."""
    planned = Planned(plan, report)
    return tuple(finding for kind in PLAN_KINDS for finding in kind.find(planned))


def ranked(findings: Iterable[Finding], min_gain: float | None = None) -> tuple[Finding, ...]:
    """The largest gain first. Without a least gain, those that are more than a note or have no gain."""
    kept = [f for f in findings if _is_shown(f, min_gain)]
    return tuple(sorted(kept, key=lambda finding: -(finding.gain_us or 0.0)))


def _is_shown(finding: Finding, min_gain: float | None) -> bool:
    if min_gain is not None:
        return finding.share is not None and finding.share >= min_gain
    return finding.gain_us is None or (finding.share or 0.0) >= min(SEVERITIES.values())
