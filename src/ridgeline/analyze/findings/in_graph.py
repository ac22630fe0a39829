"""Kinds of findings that need the graph of an engine. A new one is a file with a `KIND`, and a line here."""

from __future__ import annotations

from ridgeline.analyze.findings import (
    alignment,
    broadcast_residual,
    channels,
    duplicates,
    floor_ops,
    gather_axis,
    kept_output,
    layout,
    precision_island,
    tail_reduction,
    tiny_kernels,
    topk,
    unfused_qdq,
)
from ridgeline.analyze.findings.finding import Finding
from ridgeline.analyze.findings.in_plan import find_in_plan, ranked
from ridgeline.analyze.findings.kind import Kind
from ridgeline.analyze.findings.subject import Subject
from ridgeline.runtime.engine import Engine

GRAPH_KINDS: tuple[Kind[Subject], ...] = (
    alignment.KIND,
    channels.KIND,
    broadcast_residual.KIND,
    kept_output.KIND,
    precision_island.KIND,
    gather_axis.KIND,
    unfused_qdq.KIND,
    layout.KIND,
    tail_reduction.KIND,
    topk.KIND,
    tiny_kernels.KIND,
    floor_ops.KIND,
    duplicates.KIND,
)


def find_in_graph(subject: Subject) -> list[Finding]:
    """What the regions of an engine tell, kind by kind."""
    return [finding for kind in GRAPH_KINDS for finding in kind.find(subject)]


def find_all(engine: Engine, *, place: int = 0, min_gain: float | None = None) -> tuple[Finding, ...]:
    """Every finding in one of an engine's plans, the largest gain first. Nothing is run or timed."""
    subject = Subject(engine, place)
    return ranked([*find_in_graph(subject), *find_in_plan(subject.plan, subject.report)], min_gain)
