"""Draws the GPU kernels of an engine for `ridge kernels`."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ridgeline.analyze.kernel_report import KernelReport, KernelRow
from ridgeline.cli.grid import put, put_lines, table
from ridgeline.cli.render import DASH, percent, plural

LISTED = 2
NUMBERS = ("regs", "spill", "KiB", "warps", "per SM", "full", "local")


def draw_kernels(report: KernelReport, console: Console) -> None:
    """One row per kernel, then the number of steps without one."""
    head = f"  {plural(len(report.kernels), 'kernel')} of our own  ({report.target})"
    console.print(Text.assemble((report.model or "model", "bold"), head))
    console.print()
    columns = ("steps", "kernel", *NUMBERS[:6], "tensor", "load", "store", "local")
    grid = table(*columns, numeric=NUMBERS)
    for row in report.kernels:
        grid.add_row(*_cells(row))
    put(grid, console)
    others = f"{plural(report.library_steps, 'step')} without: views, and calls of a library"
    put_lines([("others", others if report.library_steps else ""), ("note", report.note)], console)


def _cells(row: KernelRow) -> list[str | Text]:
    more = f" +{len(row.steps) - LISTED}" if len(row.steps) > LISTED else ""
    spills = Text(str(row.spilled_bytes), "red" if row.spilled_bytes else "")
    cells: list[str | Text] = [
        ",".join(map(str, row.steps[:LISTED])) + more,
        row.name,
        str(row.registers),
        spills,
        f"{row.shared_bytes / 1024:.1f}",
        str(row.warps),
        str(row.blocks_per_sm),
        percent(row.occupancy),
    ]
    seen = row.evidence
    if seen is None:
        return [*cells, DASH, DASH, DASH, DASH]
    load, store = _access(seen.load, seen.load_bits), _access(seen.store, seen.store_bits)
    return [*cells, seen.tensor_core or DASH, load, store, str(seen.local)]


def _access(instruction: str, bits: int) -> str:
    """``LDG 128``: which instruction, and how many bits a thread moves with it."""
    return f"{instruction.split('.')[0]} {bits or ''}".strip() or DASH
