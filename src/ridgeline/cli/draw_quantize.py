"""Draws the result of `ridge quantize`."""

from __future__ import annotations

from collections import Counter

from rich.console import Console

from ridgeline.cli.grid import put, put_lines, table
from ridgeline.cli.render import plural
from ridgeline.precision.quantize_report import QuantizeReport

SHOWN = 12
MEGA = 1e6


def draw_quantized(report: QuantizeReport, console: Console) -> None:
    """The sum of it, why nodes stayed in float, and the ranges that lost most of what was observed."""
    before, after = report.float_bytes / MEGA, report.quantized_bytes / MEGA
    lines = [
        ("format", f"{report.format}, opset {report.opset}"),
        ("products", f"{report.products} of {report.of_products} quantised"),
        ("weights", f"{before:.2f} MB → {after:.2f} MB"),
    ]
    for row in report.outputs:
        seen = "did not see" if report.held_out else "saw too"
        where = f"worst of {plural(report.judged_rows, 'row')} that calibration {seen}"
        lines.append(("error", f"{row.output}  relative L2 {row.relative_l2:.2e}, {where}"))
    if report.ranges:
        methods = Counter(row.method for row in report.ranges)
        lines.append(("ranges", ", ".join(f"{name} {count}" for name, count in methods.most_common())))
    if report.smoothed:
        changed = sum(row.alpha is not None for row in report.smoothed)
        lines.append(("smoothed", f"{changed} of {plural(len(report.smoothed), 'tensor')}"))
    put_lines([*lines, *(("note", note) for note in report.notes)], console)
    left = [row for row in report.decisions if row.scheme == "float" and row.role == "product"]
    if left:
        grid = table("left in float", "op", "why", keep=("why",))
        for decision in left[:SHOWN]:
            grid.add_row(decision.node, decision.op, decision.why)
        put(grid, console)
        if len(left) > SHOWN:
            console.print(f"  … and {len(left) - SHOWN} more (--json lists all)")
