"""What is in which CUDA graph, in words: for runs that one graph does not hold, and their subgraphs."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.base.grouping import grouped
from ridgeline.base.units import plural
from ridgeline.plan.report import RunPart


def graphs_text(parts: Sequence[RunPart]) -> str:
    """One line for all; empty without parts."""
    by_graph = grouped((part.graph, part) for part in parts)
    return "; ".join(_graph_text(name, own) for name, own in by_graph.items())


def _graph_text(name: str, parts: Sequence[RunPart]) -> str:
    captured = [part for part in parts if part.is_captured]
    steps = sum(len(part.steps) for part in captured)
    between = sum(len(part.steps) for part in parts if not part.is_captured)
    graphs = "one CUDA graph" if len(captured) == 1 else f"{len(captured)} CUDA graphs"
    where = f"{name}: " if name else ""
    if not captured:
        return f"{where}{plural(between, 'step')} one by one, without a CUDA graph"
    left = f", {between} one by one" if between else ""
    return f"{where}{plural(steps, 'step')} in {graphs}{left}"


def part_rows(parts: Sequence[RunPart]) -> list[tuple[str, str, str, str]]:
    """For each part what runs it, the graph or subgraph, its steps and why it is not captured."""
    rows = []
    for part in parts:
        first, last = part.steps[0], part.steps[-1]
        steps = first if len(part.steps) == 1 else f"{first} … {last} ({len(part.steps)})"
        rows.append((part.graph or "model", "CUDA graph" if part.is_captured else "alone", steps, part.why))
    return rows
