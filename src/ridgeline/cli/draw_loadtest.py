"""How answers of a server, and a server under load, look on a terminal."""

from __future__ import annotations

from math import prod

from rich.console import Console
from rich.text import Text

from ridgeline.base.units import DASH
from ridgeline.cli.grid import put, put_lines, table
from ridgeline.cli.render import bar, duration, ms_format, number, percent, plural, shape_text, size
from ridgeline.serve.clients.rows import Inference
from ridgeline.serve.loadtest.rows import PERCENTILES, LevelRow, LoadReport

BAR_WIDTH = 18
LISTED = 3


def draw_inference(report: Inference, console: Console) -> None:
    """One line per output."""
    head = Text.assemble(
        (report.model, "bold"), (f"  {report.url}, {duration(report.round_trip_us)}\n", "dim")
    )
    console.print(head)
    has_files = any(row.file for row in report.rows)
    grid = table(
        "output", "type", "shape", "values", *(["file"] if has_files else []), keep=("values", "file")
    )
    for row in report.rows:
        more = " …" if prod(row.shape) > len(row.head) else ""
        values = ", ".join(number(v) if isinstance(v, float) else str(v) for v in row.head) + more
        grid.add_row(
            row.name, row.datatype, shape_text(row.shape), values, *([row.file] if has_files else [])
        )
    put(grid, console)


def draw_load(report: LoadReport, console: Console) -> None:
    """Throughput and latency by level, with bars; below, what server and generator counted."""
    inputs = ", ".join(f"{name} {report.types[name]}[{shape_text(s)}]" for name, s in report.shapes.items())
    about = f"  {report.url}, {report.loop} loop" + (
        f", {report.arrivals} arrivals" if report.arrivals else ""
    )
    console.print(Text.assemble((report.model, "bold"), (about, "dim"), f"  {inputs}\n"))
    if report.rows:
        _latencies(report, console)
        _counted(report, console)
    _notes(report, console)


def _latencies(report: LoadReport, console: Console) -> None:
    level = "clients" if report.loop == "closed" else "asked/s"
    tails = tuple(f"p{name}" for name in PERCENTILES)
    per_row = ("rows/s",) if report.rows_per_request > 1 else ()
    figures = (level, "requests/s", *per_row, *tails, "errors")
    grid = table(*figures, "", numeric=figures)
    ms = ms_format(min((row.percentiles_us["50"] for row in report.rows if row.percentiles_us), default=0))
    most = max(row.throughput_rps for row in report.rows)
    for row in report.rows:
        latencies = [ms(row.percentiles_us[p]) if row.percentiles_us else DASH for p in PERCENTILES]
        errors = sum(row.errors.values())
        bars = bar(row.throughput_rps / most if most else None, BAR_WIDTH)
        kept = report.p99_bound_us is None or row.keeps(report.p99_bound_us)
        grid.add_row(
            _level(row), f"{row.throughput_rps:,.1f}",
            *([f"{row.rows_per_s:,.1f}"] if per_row else []), *latencies,
            Text(f"{errors:,}" if errors else "", "red"), Text(bars, "cyan" if kept else "dim"),
        )  # fmt: skip
    put(grid, console)


def _counted(report: LoadReport, console: Console) -> None:
    """Means per request: what the server says, and what the generator itself took."""
    level = "clients" if report.loop == "closed" else "asked/s"
    server = ("queue", "input", "compute", "output", "rows / batch")
    own = ("generator", "of a core")
    with_server = any(row.server is not None for row in report.rows)
    columns = (level, *(server if with_server else ()), *own)
    grid = table(*columns, numeric=columns)
    for row in report.rows:
        cells = [_level(row)]
        if with_server:
            cells += _server_cells(row)
        grid.add_row(*cells, duration(row.generator_us), percent(row.generator_share))
    put(grid, console, title="per request, in the server and in the generator" if with_server else "")


def _server_cells(row: LevelRow) -> list[str]:
    told = row.server
    if told is None:
        return [DASH] * 5
    times = (told.queue_us, told.input_us, told.infer_us, told.output_us)
    return [*map(duration, times), f"{told.rows_per_batch:.2f}"]


def _notes(report: LoadReport, console: Console) -> None:
    console.print(
        "  latency in ms" + (", from the time in the schedule" if report.loop == "open" else ""), style="dim"
    )
    console.print(
        f"  each request {size(report.request_bytes)}, {plural(report.rows_per_request, 'row')}", style="dim"
    )
    if report.p99_bound_us is not None:
        bound = duration(report.p99_bound_us)
        found = f"{report.best_rps:,.1f} requests/s" if report.best_rps else "none of these rates"
        console.print(Text.assemble(f"  highest rate with p99 within {bound}: ", (found, "bold")))
    for row in report.rows:
        if row.errors:
            counts = ", ".join(f"{count:,} × {status}" for status, count in row.errors.items())
            put_lines([(f"at {_level(row)}", f"{counts}: {row.first_error}")], console, style="red")
    warnings: dict[str, list[str]] = {}
    for row in report.rows:
        for warning in row.warnings:
            warnings.setdefault(warning, []).append(_level(row))
    put_lines([(_places(at), text) for text, at in warnings.items()], console, style="yellow")


def _level(row: LevelRow) -> str:
    return f"{row.level:,.4g}" if row.level < 1e4 else f"{row.level:,.0f}"


def _places(levels: list[str]) -> str:
    return f"at {', '.join(levels)}" if len(levels) <= LISTED else f"at {len(levels)} levels"
