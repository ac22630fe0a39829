"""Draws what `ridge report` has written: the file, and the figures that people look for first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ridgeline.analyze.report_data import EngineReport
from ridgeline.cli.draw_plan import verdict_text
from ridgeline.cli.grid import put_lines
from ridgeline.cli.render import duration, percent, plural, size


def draw_report(path: Path) -> Callable[[EngineReport, Console], None]:
    """How the report that was written to this file is told on a terminal."""

    def draw(report: EngineReport, console: Console) -> None:
        summary = report.summary
        name = Text.assemble((str(path), "bold"), (f"  {size(path.stat().st_size)}", "dim"))
        console.print(name, soft_wrap=True)
        reached = f"{percent(report.roofline)} of {report.roof.name}" if report.roof is not None else ""
        put_lines(
            (
                ("engine", f"{summary.model or 'model'}, {summary.target}, {summary.precision}"),
                ("latency", f"{duration(report.latency_us)}, {report.latency_of}"),
                ("steps", f"{len(report.steps)} for {plural(summary.nodes, 'node')}"),
                ("roofline", reached),
                ("verified", verdict_text(summary.verdict)),
            ),
            console,
        )

    return draw
