"""Draws the GPU kernels of an engine, and their code, for `ridge kernels`."""

from __future__ import annotations

from itertools import groupby

from rich.console import Console
from rich.text import Text

from ridgeline.analyze.kernel_code import CodeReport
from ridgeline.analyze.kernel_report import KernelReport, KernelRow
from ridgeline.cli.grid import put, put_lines, table
from ridgeline.cli.render import DASH, percent, plural
from ridgeline.kernels.triton.sass_mix import Mix

LISTED = 2
NUMBERS = ("regs", "spill", "KiB", "warps", "per SM", "full")
LIMITS = {"registers": "regs", "shared memory": "shared"}
# the columns of the table of instructions: fields of `Mix`
KINDS = {
    "tensor": ("tensor_core",), "fp": ("fp32", "fp16", "fp64", "conversion"), "int": ("integer",),
    "move": ("move",), "global": ("global_memory",), "shared": ("shared_memory",),
    "const": ("constant",), "control": ("control",),
}  # fmt: skip


def draw_kernels(report: KernelReport, console: Console) -> None:
    """One row per kernel, what its instructions do, what costs time, and the number of steps without one."""
    head = f"  {plural(len(report.kernels), 'kernel')} of our own  ({report.target})"
    console.print(Text.assemble((report.model or "model", "bold"), head))
    console.print()
    columns = ("steps", "kernel", *NUMBERS, "limit", "tensor", "load", "store")
    grid = table(*columns, numeric=NUMBERS)
    for row in report.kernels:
        grid.add_row(*_cells(row))
    put(grid, console)
    _draw_mixes(report, console)
    for row in report.kernels:
        _draw_findings(row, console)
    others = f"{plural(report.library_steps, 'step')} without: views, and calls of a library"
    put_lines([("others", others if report.library_steps else ""), ("note", report.note)], console)


def draw_code(report: CodeReport, console: Console) -> None:
    """Source lines as headings, instructions below them."""
    for kernel in report.kernels:
        console.print(
            Text.assemble((kernel.name, "bold"), f"  {kernel.form}, {kernel.arch}, {kernel.digest}")
        )
        for source, lines in groupby(kernel.lines, lambda line: line.source):
            same = list(lines)
            if source:
                console.print(Text.assemble((f"  {source}", "cyan"), (f"  {same[0].source_text}", "dim")))
            for line in same:
                console.print(Text(f"      {line.text}"), soft_wrap=True)
        console.print()


def _cells(row: KernelRow) -> list[str | Text]:
    spills = Text(str(row.spilled_bytes), "red" if row.spilled_bytes else "")
    cells: list[str | Text] = [
        _steps(row),
        row.name,
        str(row.registers),
        spills,
        f"{row.shared_bytes / 1024:.1f}",
        str(row.warps),
        str(row.blocks_per_sm),
        percent(row.occupancy),
        LIMITS.get(row.limited_by, row.limited_by),
    ]
    seen = row.evidence
    if seen is None:
        return [*cells, DASH, DASH, DASH]
    load, store = _access(seen.load, seen.load_bits), _access(seen.store, seen.store_bits)
    return [*cells, seen.tensor_core or DASH, load, store]


def _steps(row: KernelRow) -> str:
    more = f" +{len(row.steps) - LISTED}" if len(row.steps) > LISTED else ""
    return ",".join(map(str, row.steps[:LISTED])) + more


def _draw_mixes(report: KernelReport, console: Console) -> None:
    rows = [(row, row.mix) for row in report.kernels if row.mix is not None]
    if not rows:
        return
    grid = table("steps", "kernel", "of", "all", *KINDS, numeric=("all", *KINDS))
    for row, mix in rows:
        grid.add_row(_steps(row), row.name, "kernel", str(mix.total), *_shares(mix))
        if row.loop_mix is not None:
            grid.add_row("", "", "inner loops", str(row.loop_mix.total), *_shares(row.loop_mix))
    put(grid, console, title="instructions, and how many of a hundred are of each kind")


def _shares(mix: Mix) -> list[str]:
    counts = [sum(getattr(mix, name) for name in names) for names in KINDS.values()]
    return [f"{100 * number / mix.total:.0f}" if number else DASH for number in counts]


def _draw_findings(row: KernelRow, console: Console) -> None:
    for finding in row.findings:
        style = "yellow" if finding.severity == "slow" else "cyan"
        console.print(
            Text.assemble((f"  {row.name} ", "bold"), f"(step {_steps(row)})  ", (finding.name, style))
        )
        put_lines([("", finding.what)], console)
        more = finding.count - len(finding.evidence)
        for line in finding.evidence:
            console.print(Text(f"               {line}", "dim"), soft_wrap=True)
        if more > 0:
            console.print(Text(f"               and {more} more", "dim"))


def _access(instruction: str, bits: int) -> str:
    """``LDG 128``: which instruction, and how many bits a thread moves with it."""
    return f"{instruction.split('.')[0]} {bits or ''}".strip() or DASH
