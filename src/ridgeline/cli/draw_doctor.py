"""Draws the report of `ridge doctor`."""

from __future__ import annotations

from itertools import groupby

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ridgeline.analyze.doctor import DoctorReport
from ridgeline.analyze.doctor_rows import DoctorRow
from ridgeline.cli.render import plural

MARKS = {
    "fine": ("✓", "green"),
    "note": ("·", "cyan"),
    "distorts": ("!", "yellow"),
    "problem": ("✗", "bold red"),
}


def draw_doctor(report: DoctorReport, console: Console) -> None:
    """Topic by topic; below what is not fine stand the reason and the command."""
    for topic, rows in groupby(report.rows, lambda row: row.topic):
        console.print(topic, style="bold")
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column(no_wrap=True, min_width=14)
        grid.add_column(overflow="fold")
        for row in rows:
            mark, style = MARKS[row.verdict]
            grid.add_row(Text(mark, style), row.name, _told(row))
        console.print(Padding(grid, (0, 0, 1, 2), expand=False))
    counts = [
        plural(report.count("problem"), "problem"),
        f"{report.count('distorts')} that distort a benchmark",
        plural(report.count("note"), "note"),
    ]
    console.print("  " + ", ".join(counts), style="bold" if report.worst in ("distorts", "problem") else "")


def _told(row: DoctorRow) -> Text:
    text = Text(row.value)
    if row.reason:
        style = "dim" if row.verdict in ("fine", "note") else MARKS[row.verdict][1]
        text.append(f"\n{row.reason}" if row.verdict != "fine" else f"  ({row.reason})", style)
    if row.fix:
        text.append("\nfix: ", "dim")
        text.append(row.fix)
    return text
