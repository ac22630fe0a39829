"""Draws findings: what costs time, where, what a change would gain, and the change."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ridgeline.analyze.explain import Explanation
from ridgeline.analyze.findings.finding import NOTE, Finding
from ridgeline.cli.grid import put, put_lines, table
from ridgeline.cli.render import duration, percent, plural

STYLES = {"high": "bold red", "medium": "yellow", "low": "cyan", NOTE: "dim"}


def draw_findings(story: Explanation, console: Console) -> None:
    """The findings alone, each with its evidence and how its gain was computed."""
    put_findings(story, console)
    for number, finding in enumerate(story.findings, start=1):
        _page(number, finding, console)
    if not story.findings and not story.not_looked_for:
        console.print("No findings: nothing in the model that a change is known to speed up.", style="dim")


def put_findings(story: Explanation, console: Console) -> None:
    """The table, and what was not looked for."""
    if story.findings:
        grid = table(
            "severity", "where", "what", "gain", "change", numeric=("gain",), keep=("what", "change")
        )
        for finding in story.findings:
            grid.add_row(
                Text(finding.severity, STYLES[finding.severity]), _where(finding), finding.what,
                gain_text(finding), finding.change,
            )  # fmt: skip
        put(grid, console, title="Findings: what to change in the model")
    if story.not_looked_for and not story.node:
        text = f"{plural(len(story.not_looked_for), 'kind')} of findings need the graph: --findings reads it"
        console.print(Text(text, "dim"))
        console.print()


def gain_text(finding: Finding) -> str:
    """``12.3 µs, 4 %``; nothing for a note that has none."""
    if finding.gain_us is None:
        return ""
    return f"{duration(finding.gain_us)}, {percent(finding.share)}"


def _where(finding: Finding) -> str:
    first, *others = finding.nodes or (finding.step,)
    return f"{first} and {len(others)} more" if others else first


def _page(number: int, finding: Finding, console: Console) -> None:
    title = (
        f"{number}  ",
        (finding.severity, STYLES[finding.severity]),
        f"  {finding.kind}  {_where(finding)}",
    )
    console.print(Text.assemble("", *title))
    evidence = ", ".join(f"{name} {_figure(value)}" for name, value in finding.evidence.items())
    lines = [
        ("what", finding.what), ("change", finding.change), ("gain", gain_text(finding)),
        ("computed by", finding.how), ("evidence", evidence), ("nodes", ", ".join(finding.nodes[:8])),
    ]  # fmt: skip
    put_lines(lines, console)
    console.print()


def _figure(value: float | str) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
