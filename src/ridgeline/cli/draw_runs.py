"""Draws what of a run is in which CUDA graph, for `ridge show` and `ridge explain`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from ridgeline.analyze.runs import graphs_text, part_rows
from ridgeline.cli.grid import put, table
from ridgeline.plan.report import RunPart


def draw_runs(parts: Sequence[RunPart], console: Console) -> None:
    """Nothing where one graph holds the whole run, or where no GPU has run it."""
    if not parts:
        return
    grid = table("of", "run as", "steps", "why", keep=("why",))
    for row in part_rows(parts):
        grid.add_row(*row)
    put(grid, console, title=f"Runs: {graphs_text(parts)}")
