"""Draws what `ridge debug` found: histograms of magnitudes, and what each node costs alone."""

from __future__ import annotations

import math

from rich.console import Console
from rich.text import Text

from ridgeline.analyze.ranges import OVERFLOWS, SATURATES, RangeReport, RangeRow
from ridgeline.analyze.sensitivity import NodeRow, SensitivityReport
from ridgeline.cli.grid import put, put_lines, table
from ridgeline.cli.render import DASH, bar, error_size, number, plural

LISTED = 40
CELLS = 20
WHOLE = ("min", "max", "magnitudes", "over", "under", "sub")
LEGEND = {
    "over": "become infinite or are clipped to the largest number",
    "under": "become zero",
    "sub": "are subnormal and keep fewer digits",
}
LEVELS = " ▁▂▃▄▅▆▇█"
# powers of two that are shown beyond the ends of the format
BEYOND = 4


def draw_ranges(report: RangeReport, console: Console) -> None:
    drawn = "random inputs, which prove little: give --data" if report.is_drawn else ""
    put_lines(
        [
            ("format", f"{report.format}: {number(report.smallest)} … {number(report.largest)}"),
            ("samples", f"{report.samples} {drawn}".strip()),
            ("suffering", f"{plural(report.suffering, 'value')}"),
        ],
        console,
    )
    console.print()
    if not report.rows:
        return
    shown = report.rows[:LISTED]
    every = {row.value: (row.overflow, row.underflow, row.subnormal) for row in shown}
    # a column of zeros says nothing, and names need the room
    used = [i for i in range(len(LEGEND)) if any(shares[i] for shares in every.values())]
    columns = [list(LEGEND)[i] for i in used]
    grid = table(
        "value",
        "node",
        "min",
        "max",
        "magnitudes",
        *columns,
        "verdict",
        numeric=WHOLE,
        keep=("value", "node"),
    )
    for row in shown:
        style = "bold red" if row.verdict in (OVERFLOWS, SATURATES) else ""
        ends = [DASH if end is None else number(end) for end in (row.low, row.high)]
        shares = [_share(every[row.value][i]) for i in used]
        name = row.node or row.kind
        grid.add_row(row.value, name, *ends, _histogram(row, report), *shares, Text(row.verdict, style))
    low, high = _ends(report)
    axis = f"magnitudes from 2^{low} to 2^{high}, of each value in units of its scale"
    more = len(report.rows) - LISTED
    put(grid, console, title=axis + (f"; {more} more values" if more > 0 else ""))
    put_lines([(name, f"share of the elements that {LEGEND[name]}") for name in columns], console)


def _ends(report: RangeReport) -> tuple[int, int]:
    low = math.floor(math.log2(report.smallest)) - 2 * BEYOND
    return low, math.ceil(math.log2(report.largest)) + BEYOND


def _histogram(row: RangeRow, report: RangeReport) -> Text:
    """One cell for several powers of two: red beyond the format, yellow where digits go, dim below it."""
    low, high = _ends(report)
    width = max(1, math.ceil((high - low) / CELLS))
    cells = [0] * math.ceil((high - low) / width)
    shift = round(math.log2(row.scale)) if row.scale > 0 else 0
    for power, count in row.histogram.items():
        place = min(max((power - shift - low) // width, 0), len(cells) - 1)
        cells[place] += count
    most = max(cells, default=0)
    made = Text()
    for i, count in enumerate(cells):
        level = 0 if not count else max(1, round(8 * count / most))
        power = low + i * width
        style = (
            "red" if power > math.log2(report.largest)
            else "dim" if power < math.log2(report.smallest) - 1
            else "yellow" if power < math.log2(report.smallest_normal)
            else "green"
        )  # fmt: skip
        made.append(LEVELS[level], style)
    return made


def _share(part: float) -> str:
    return DASH if not part else f"{part:.1%}" if part >= 1e-3 else error_size(part)


def draw_sensitivity(report: SensitivityReport, console: Console) -> None:
    kept = [row for row in report.nodes if row.is_kept]
    drawn = ": random inputs, which prove little: give --data" if report.is_drawn else ""
    put_lines(
        [
            (
                "precision",
                f"{report.precision}, budget {report.budget:g} (relative L2, worst output and sample)",
            ),
            ("all low", _error(report.error_all_low)),
            (
                "with these",
                f"{_error(report.error_kept)}, {plural(len(kept), 'node')} kept in high precision",
            ),
            ("runs", f"{report.runs} emulated, {plural(report.samples, 'sample')}{drawn}"),
        ],
        console,
    )
    console.print()
    if kept:
        _nodes(kept, console, title="Keep these: without any one of them the error is over the budget")
        for option in report.keep_options[:LISTED]:
            console.print(f"  --keep '{option}'")
        console.print()
    else:
        console.print("  nothing need be kept: all nodes together are inside the budget\n", style="green")
    ranked = sorted(report.nodes, key=lambda row: -row.error)[:LISTED]
    _nodes(ranked, console, title=f"Each alone, the worst of {plural(len(report.nodes), 'node')}")


def _nodes(rows: list[NodeRow], console: Console, *, title: str) -> None:
    finite = [row.error for row in rows if math.isfinite(row.error)]
    most = max(finite, default=0.0)
    grid = table("#", "node", "op", "error alone", "", "worst output", numeric=("#", "error alone"))
    for row in rows:
        share = 1.0 if math.isinf(row.error) else row.error / most if most else 0.0
        mark = Text(bar(share), "red" if row.is_kept else "")
        grid.add_row(str(row.index), row.node, row.op_type, _error(row.error), mark, row.output)
    put(grid, console, title=title)


def _error(value: float) -> str:
    return "∞" if math.isinf(value) else error_size(value)
