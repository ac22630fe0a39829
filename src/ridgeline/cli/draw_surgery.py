"""Draws the results of `ridge extract`, `ridge lint` and `ridge reduce`."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ridgeline.cli.grid import put, put_lines, table
from ridgeline.cli.render import plural
from ridgeline.surgery.extract import Extracted, PortRow
from ridgeline.surgery.lint import LintReport
from ridgeline.surgery.reduce import Reduced

COLOURS = {"error": "bold red", "warning": "yellow", "note": "dim"}


def draw_extracted(made: Extracted, console: Console) -> None:
    weights = plural(made.weights, "weight") + (
        f", {plural(made.functions, 'function')}" if made.functions else ""
    )
    lines = [("nodes", f"{made.nodes} of {made.of_nodes}"), ("kept", weights)]
    lines += [("input", _port(row)) for row in made.inputs]
    lines += [("output", _port(row)) for row in made.outputs]
    put_lines([*lines, *(("note", note) for note in made.notes)], console)


def _port(row: PortRow) -> str:
    return f"{row.name}  {row.type}" + ("  (new)" if row.is_new else "")


def draw_lint(report: LintReport, console: Console) -> None:
    """A problem is its first line and what goes with it, the worst first."""
    head = f"  {plural(report.nodes, 'node')}, opset {report.opset}" if report.nodes else ""
    console.print(Text.assemble((report.model, "bold"), head))
    for problem in report.problems:
        severity = (f"{problem.severity}: ", COLOURS[problem.severity])
        console.print(Text.assemble(severity, f"{problem.where}: {problem.what}"), soft_wrap=True)
        put_lines([("got", problem.got), ("want", problem.want), ("help", problem.help)], console)
    counts = {s: sum(p.severity == s for p in report.problems) for s in COLOURS}
    console.print(", ".join(plural(n, word) for word, n in counts.items() if n) or "no problem found")


def draw_reduced(made: Reduced, console: Console) -> None:
    lines = [("nodes", f"{made.nodes} of {made.of_nodes}: {' '.join(made.ops[:12])}")]
    lines += [("input", text) for text in made.inputs] + [("output", name) for name in made.outputs]
    lines += [("samples", plural(made.samples, "file")), *(("note", note) for note in made.notes)]
    put_lines(lines, console)
    console.print()
    grid = table("#", "what was tried", "nodes", "ended", "s", numeric=("#", "nodes", "s"))
    for i, step in enumerate(made.steps, start=1):
        verdict = Text(step.outcome, "red" if step.still_fails else "green")
        grid.add_row(str(i), step.action, str(step.nodes), verdict, f"{step.seconds:.2f}")
    put(grid, console, title="Steps")
