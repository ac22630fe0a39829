"""How measurements and tensors look on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from ridgeline.analyze.bench import BenchReport, Versus
from ridgeline.analyze.bench_figures import Average
from ridgeline.analyze.bench_sweep import SweepReport
from ridgeline.analyze.headline import Headline
from ridgeline.analyze.tensors import TensorRow
from ridgeline.cli.grid import put, put_lines, table
from ridgeline.cli.render import bar, duration, error_size, ms_format, number, plural, ratio, shape_text, size

BAR_WIDTH = 24
LISTED = 10  # averages shown at the start, and as many at the end


def draw_bench(report: BenchReport, console: Console) -> None:
    """As trtexec reports, with the peers of the same run side by side."""
    shapes = ", ".join(
        f"{name} {report.types[name]}[{','.join(map(str, shape))}]" for name, shape in report.shapes.items()
    )
    machine = f"  {report.target}, {plural(report.threads, 'thread')}"
    console.print(Text.assemble((report.model or "model", "bold"), (machine, "dim"), f"  {shapes}\n"))
    _latencies(report, console)
    _parts(report, console)
    _averages(report.averages, console)
    _versus(report.versus, console)
    _surroundings(report, console)


def draw_csv(_: object, console: Console, *, text: str) -> None:
    """Rows as CSV: as they are, whatever the width of the terminal."""
    console.file.write(text)


def draw_sweep(report: SweepReport, console: Console) -> None:
    """Throughput and latency against the size of a dim, with bars for the items per second."""
    machine = f"  {report.target}, {plural(report.threads, 'thread')}"
    console.print(Text.assemble((report.model or "model", "bold"), (machine, "dim"), f"  {report.dim}\n"))
    tails = list(report.rows[0].percentiles_us)
    figures = ("median", *(f"p{name}" for name in tails), "ms / item", "queries/s", "items/s")
    grid = table(report.dim, *figures, "", numeric=(report.dim, *figures))
    ms = ms_format(min(row.median_us for row in report.rows))
    item_ms = ms_format(min(row.us_per_item for row in report.rows))
    most = max(row.items_per_s for row in report.rows)
    for row in report.rows:
        values = (row.median_us, *row.percentiles_us.values())
        bars = bar(row.items_per_s / most if most else None, BAR_WIDTH)
        grid.add_row(
            Text(str(row.size), "bold" if row.size == report.best else ""), *map(ms, values),
            item_ms(row.us_per_item), f"{row.throughput_qps:,.1f}", f"{row.items_per_s:,.1f}",
            Text(bars, "cyan"),
        )  # fmt: skip
    put(grid, console)
    one = f"one plan for all sizes, tuned for {report.tuned_for}; --rebuild tunes each size"
    lines = [
        "latency in ms; an item is one index of the dim",
        f"most items per second at {report.dim} = {report.best}",
        "each size has an engine of its own" if report.rebuilt else one,
    ]
    if report.concurrency > 1:
        lines.append(f"{report.concurrency} contexts side by side")
    for line in lines:
        console.print(f"  {line}", style="dim")
    warnings: dict[str, list[int]] = {}
    for row in report.rows:
        for warning in row.warnings:
            warnings.setdefault(warning, []).append(row.size)
    shown = [(f"at {', '.join(map(str, sizes))}", text) for text, sizes in warnings.items()]
    put_lines(shown, console, style="yellow")


def draw_outputs(rows: Sequence[TensorRow], console: Console) -> None:
    """One line per output of `ridge run`."""
    saved = any(row.file for row in rows)
    grid = table(
        "output", "type", "shape", "min", "mean", "max", "NaN", "inf", *(["file"] if saved else []),
        numeric=("min", "mean", "max", "NaN", "inf"), keep=("file",),
    )  # fmt: skip
    for row in rows:
        bad = [Text(str(count), "red" if count else "") for count in (row.nans, row.infs)]
        figures = [number(row.min), number(row.mean), number(row.max)]
        grid.add_row(
            row.name, row.dtype, shape_text(row.shape), *figures, *bad, *([row.file] if saved else [])
        )
    put(grid, console)


def gate_text(row: Versus) -> Text:
    """The correctness gate of a speed row."""
    apart = error_size(row.max_difference)
    if row.tolerance is None:
        text = " (no tolerance: unverified, or in a lower precision and judged by its budget)"
        return Text.assemble(apart, (text, "yellow"))
    if row.agrees:
        return Text.assemble(("✓ ", "green"), f"{apart} of {error_size(row.tolerance)}")
    return Text.assemble(("✗ ", "red"), f"{apart} of {error_size(row.tolerance)} ({row.output})")


def _latencies(report: BenchReport, console: Console) -> None:
    tails = list(report.rows[0].percentiles_us)
    figures = ("min", "mean", "median", *(f"p{name}" for name in tails), "max")
    grid = table("latency, ms", *figures, "queries/s", numeric=(*figures, "queries/s"), keep=("latency, ms",))
    ms = ms_format(min(row.median_us for row in report.rows))
    for row in report.rows:
        values = (row.min_us, row.mean_us, row.median_us, *row.percentiles_us.values(), row.max_us)
        name = Text(row.name, "bold" if row is report.rows[0] else "")
        grid.add_row(name, *map(ms, values), f"{row.throughput_qps:,.1f}")
    put(grid, console)


def _parts(report: BenchReport, console: Console) -> None:
    """The parts of a query, under the query itself."""
    if not report.parts:
        return
    tails = list(report.rows[0].percentiles_us)
    figures = ("min", "mean", "median", *(f"p{name}" for name in tails), "max")
    grid = table("of a query, ms", *figures, numeric=figures, keep=("of a query, ms",))
    ms = ms_format(max(part.median_us for part in report.parts))
    for part in report.parts:
        values = (part.min_us, part.mean_us, part.median_us, *part.percentiles_us.values(), part.max_us)
        grid.add_row(part.label, *map(ms, values))
    put(grid, console)


def _averages(rows: Sequence[Average], console: Console) -> None:
    """As trtexec lists them: the first and the last, with a count of those between."""
    if not rows:
        return
    parts = [
        (name, field)
        for name, field in (("compute", "compute_us"), ("enqueue", "enqueue_us"))
        if getattr(rows[0], field) is not None
    ]
    figures = ("at, s", "queries", "latency, ms", *(f"{name}, ms" for name, _ in parts))
    grid = table("context", *figures, numeric=("context", *figures))
    ms = ms_format(min(row.latency_us for row in rows))
    for row in (*rows[:LISTED], *rows[max(LISTED, len(rows) - LISTED) :]):
        cells = [ms(row.latency_us), *(ms(getattr(row, field)) for _, field in parts)]
        grid.add_row(str(row.context), f"{row.start_us / 1e6:.3f}", str(row.queries), *cells)
    put(grid, console, title=f"averages of {rows[0].queries} queries in a row")
    if len(rows) > 2 * LISTED:
        console.print(f"  {len(rows) - 2 * LISTED:,} between the first and the last {LISTED} are left out")


def _spread_text(row: Versus | Headline) -> str:
    """The range of ratios; if it contains 1.00, neither is faster."""
    spread = f"{row.ratio_p10:.2f} – {row.ratio_p90:.2f}"
    return f"{spread}, within noise" if row.is_noise else spread


def _versus(rows: Sequence[Versus], console: Console) -> None:
    if not rows:
        return
    grid = table("against", "speed", "p10 – p90", "greatest difference", numeric=("speed", "p10 – p90"))
    for row in rows:
        speed = ratio(row.ratio, is_noise=row.is_noise)
        grid.add_row(row.peer, speed, _spread_text(row), gate_text(row))
    put(grid, console)


def _surroundings(report: BenchReport, console: Console) -> None:
    ours = report.rows[0]
    lines = [
        f"walltime {report.walltime_s:.2f} s; ours: {ours.queries:,} queries;"
        f" warm-up: {report.warmup_ms:.0f} ms for each runner, {report.warmup_queries:,} queries"
    ]
    if report.concurrency > 1:
        equal = (
            "all compute the same"
            if all(c.max_difference == 0 for c in report.contexts)
            else "outputs differ"
        )
        lines.append(f"{report.concurrency} contexts side by side, queries/s of all together; {equal}")
    if not report.transfers:
        lines.append("without transfers: inputs and outputs stay where the steps read and write them")
    if ours.queries_per_sample > 1:
        lines.append(f"each sample is the mean of {ours.queries_per_sample} calls in a row")
    if report.call_overhead_us is not None:
        lines.append(
            f"call overhead {duration(report.call_overhead_us)} (engine.run minus its steps, from the build)"
        )
    lines += [f"{row.name}: {row.note}" for row in report.rows if row.note]
    for line in lines:
        console.print(f"  {line}", style="dim")
    put_lines([("warning", warning) for warning in report.warnings], console, style="yellow")


def draw_headlines(rows: Sequence[Headline], console: Console) -> None:
    """One row per model."""
    numbers = ("nodes → steps", "peer, ms", "ridgeline, ms", "speed", "memory", "build, s")
    columns = ("model", *numbers[:4], "error of allowed", *numbers[4:])
    grid = table(*columns, numeric=numbers, keep=("error of allowed",))
    for row in rows:
        ms = ms_format(min(row.peer_us, row.ours_us))
        mark = ("✓ ", "green") if row.verified and row.agrees else ("✗ ", "red")
        grid.add_row(
            Text(row.model, "bold"),
            f"{row.nodes} → {row.steps}",
            ms(row.peer_us),
            ms(row.ours_us),
            ratio(row.ratio, is_noise=row.is_noise),
            Text.assemble(mark, f"{error_size(row.max_error or 0.0)} of {error_size(row.tolerance or 0.0)}"),
            size(row.memory_bytes),
            f"{row.build_s:.1f}",
        )
    console.print()
    put(grid, console)
    for row in rows:
        shapes = ", ".join(map(shape_text, row.shapes.values()))
        text = f"input {shapes}, p10 – p90 of speed {_spread_text(row)}, engine {row.engine_file}"
        put_lines([(row.model, text)], console)
    put_lines([("peer", " and ".join(dict.fromkeys(row.peer for row in rows)) + ", same run")], console)
