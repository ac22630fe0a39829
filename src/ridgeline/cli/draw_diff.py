"""Draws what changed between two builds or measurements."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ridgeline.analyze.diff import Change, Diff
from ridgeline.cli.grid import put, put_lines, table
from ridgeline.cli.render import DASH, duration, percent, plural

STYLES = {"slower": "bold red", "faster": "bold green", "changed": "yellow"}


def draw_diff(report: Diff, console: Console, *, every: bool) -> None:
    console.print(f"{report.model}  {plural(len(report.rows), 'row')} compared ({report.kind})", style="bold")
    put_lines(
        [
            ("whole run", _total(report)),
            (
                "noise",
                f"rows of these two runs differ by {percent(report.noise)} anyway" if report.noise else "",
            ),
            *(("note", note) for note in report.notes),
        ],
        console,
    )
    console.print()
    shown = [row for row in report.rows if every or row.verdict != "same"]
    if not shown:
        what = "no layer changed" if report.is_total_slower else "nothing changed"
        console.print(f"  {what} beyond noise")
        return
    grid = table(
        "layer", "A", "B", "change", "interval", "of the run", "", "what is different",
        numeric=("A", "B", "change", "interval", "of the run"), keep=("what is different",),
    )  # fmt: skip
    for row in shown:
        grid.add_row(
            row.name, duration(row.a_us), duration(row.b_us), _signed(row.ratio), _interval(row),
            DASH if row.of_total is None else f"{row.of_total * 100:+.2f} %",
            Text(row.verdict, STYLES.get(row.verdict, "")), "; ".join(row.causes),
        )  # fmt: skip
    put(grid, console, title="Layers")


def _total(report: Diff) -> str:
    if report.total_ratio is None:
        return ""
    told = f"{duration(report.a_total_us)} → {duration(report.b_total_us)} ({_signed(report.total_ratio)})"
    if report.total_low is None or report.total_high is None:
        return told
    return f"{told}, between {_signed(report.total_low)} and {_signed(report.total_high)}"


def _signed(ratio: float | None) -> str:
    return DASH if ratio is None else f"{(ratio - 1) * 100:+.1f} %"


def _interval(row: Change) -> str:
    if row.low is None or row.high is None:
        return DASH
    return f"{(row.low - 1) * 100:+.1f} … {(row.high - 1) * 100:+.1f} %"
