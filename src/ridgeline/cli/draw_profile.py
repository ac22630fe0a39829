"""Draws a profile: the sum against the whole run, the steps with bars, groups, hot spots, memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.text import Text

from ridgeline.analyze.profile_report import HotSpot, ProfileReport, ProfileRow
from ridgeline.cli.grid import put, put_lines, table
from ridgeline.cli.render import DASH, bar, duration, percent, plural, size

COLOURS = {
    "memory": "cyan", "L2": "cyan", "tensor cores": "green", "ALU/SFU": "green", "launch": "yellow",
    "latency": "yellow", "tail/wave": "magenta", "host": "red", "unknown": "dim",
}  # fmt: skip
PARTS_LISTED = 4
NODES_LISTED = 10
WIDE = 130  # a terminal with room for every column
LEVELS = "▁▂▃▄▅▆▇█"
SMALLEST_PART = 0.02


def draw_profile(report: ProfileReport, console: Console, top: int = 0) -> None:
    """The whole report; with `top`, only so many steps."""
    _headline(report, console)
    _steps(report, console, top)
    _groups(report, console)
    _inside(report, console, top)
    _hot_spots(report, console)
    _cross(report, console)
    _sums(report, console)


TEXTS = ("class", "stream")  # columns that hold no numbers


def _headline(report: ProfileReport, console: Console) -> None:
    shapes = ", ".join(f"{name} {spec}" for name, spec in report.shapes.items())
    machine = f"  {report.target}, {plural(report.threads, 'thread')}, {report.device}"
    console.print(Text.assemble((report.model or "model", "bold"), (machine, "dim"), f"  {shapes}\n"))


def _steps(report: ProfileReport, console: Console, top: int) -> None:
    rows = sorted(report.rows, key=lambda row: -row.median_us)[:top] if top else list(report.rows)
    extra = _extra_columns(report, console)
    columns = ("#", "step", "ops", "tactic", "time", "share", "", *extra, "limited by")
    grid = table(*columns, numeric=("#", "time", "share", *(name for name in extra if name not in TEXTS)))
    for row in rows:
        grid.add_row(
            str(row.index), row.name, row.ops, row.tactic, duration(row.median_us), percent(row.share),
            Text(bar(row.share, 10), COLOURS[row.limiter]), *(show(row) for show in extra.values()),
            Text(row.limiter, COLOURS[row.limiter]),
        )  # fmt: skip
    shown = f"the {len(rows)} that take longest of " if top and top < len(report.rows) else ""
    put(grid, console, title=f"{shown}{plural(len(report.rows), 'step')}, {duration(report.steps_us)}")


def _extra_columns(report: ProfileReport, console: Console) -> dict[str, Callable[[ProfileRow], str]]:
    """What there is to show, and what the terminal has room for; `--json` has all of it."""
    columns: dict[str, Callable[[ProfileRow], str]] = {}
    if console.width >= WIDE:
        columns |= {"class": lambda row: row.op_class, "calls": lambda row: str(row.calls)}
    if any(row.stream for row in report.rows):
        columns["stream"] = lambda row: str(row.stream or "main")
    if report.gaps_us is not None:
        columns["gap"] = _gap
    if any(row.roofline is not None for row in report.rows):
        columns["roof"] = lambda row: percent(row.roofline)
    if console.width >= WIDE:
        columns["flop/B"] = lambda row: DASH if row.intensity is None else f"{row.intensity:.3g}"
    columns["bytes/s"] = lambda row: rate(row.tb_per_s, "B/s")
    columns["flop/s"] = lambda row: rate(row.tflop_per_s, "F/s")
    return columns


def _gap(row: ProfileRow) -> str:
    if row.overlap_us:
        return f"-{duration(row.overlap_us)}"
    return duration(row.gap_us) if row.gap_us else ""


def rate(tera: float | None, unit: str) -> str:
    """Three digits with the prefix that fits: 3.95 TB/s, 812 GF/s."""
    if tera is None:
        return DASH
    for prefix in ("T", "G", "M"):
        if tera >= 1 or prefix == "M":
            return f"{tera:.3g} {prefix}{unit}" if tera else DASH
        tera *= 1e3
    return DASH


def _groups(report: ProfileReport, console: Console) -> None:
    if not report.groups:
        return
    grid = table(report.by, "steps", "time", "share", "", numeric=("steps", "time", "share"))
    for group in report.groups:
        share = percent(group.share)
        grid.add_row(group.name, str(group.steps), duration(group.total_us), share, bar(group.share))
    put(grid, console, title=f"By {report.by}")


def _inside(report: ProfileReport, console: Console, top: int) -> None:
    """The nodes of hot steps that a library runs as a whole."""
    for spot in report.hot_spots:
        nodes = [part for part in spot.parts if part.us is not None]
        if not nodes:
            continue
        grid = table("node", "op", "time", "share", "", numeric=("time", "share"))
        for part in nodes[: top or NODES_LISTED]:
            share = part.time_share
            grid.add_row(part.name, part.op_type, duration(part.us), percent(share), bar(share))
        more = len(nodes) - len(grid.rows)
        shown = f"the {len(grid.rows)} that take longest of " if more else ""
        title = f"Inside step {spot.index}, by its own profiler: {shown}{plural(len(nodes), 'node')}"
        # a run of its own: these times need not add up to the step's
        all_us = sum(part.us or 0.0 for part in nodes)
        put(grid, console, title=f"{title}, {duration(all_us)} in all while it is on")


def _hot_spots(report: ProfileReport, console: Console) -> None:
    if not report.hot_spots:
        return
    console.print("What to look at", style="bold")
    for spot in report.hot_spots:
        saved = "" if spot.could_save_us is None else f"; its roof would save {duration(spot.could_save_us)}"
        mark = Text.assemble((spot.limiter, COLOURS[spot.limiter]), f": {spot.evidence}{saved}")
        head = (f"{spot.index} {percent(spot.share)}", Text(spot.name, "bold"))
        put_lines([head, ("", mark), ("", spot.advice), ("", _parts(spot))], console)
    console.print()


def _parts(spot: HotSpot) -> str:
    """The ops inside a fused step that matter, by their share of the work."""
    listed = []
    for part in spot.parts[:PARTS_LISTED]:
        if part.us is None and max(part.flops_share, part.bytes_share) >= SMALLEST_PART:
            flops, moved = percent(part.flops_share), percent(part.bytes_share)
            listed.append(f"{part.op_type} {flops} of flops, {moved} of bytes")
    more = len(spot.parts) - len(listed)
    return "inside: " + "; ".join(listed) + (f"; {more} more" if more > 0 else "") if listed else ""


def _cross(report: ProfileReport, console: Console) -> None:
    if not report.cross:
        return
    figures = ("here", "there", "in ops")
    grid = table("#", "step", "tactic", *figures, "that it sees", numeric=("#", *figures))
    for row in report.cross:
        times = map(duration, (row.median_us, row.range_us, row.seen_us))
        grid.add_row(str(row.index), row.name, row.tactic, *times, row.seen or "nothing")
    put(grid, console, title="Beside PyTorch's profiler")


def _sums(report: ProfileReport, console: Console) -> None:
    gaps = "" if report.gaps_us is None else f" + gaps {duration(report.gaps_us)}"
    early = "" if not report.overlap_us else f" - overlap {duration(report.overlap_us)}"
    whole = f"{duration(report.total_us)} ({duration(report.total_p10_us)} – {duration(report.total_p90_us)})"
    explained = f"steps {duration(report.steps_us)}{gaps}{early} = {duration(report.covered_us)}"
    memory = report.memory
    peak = f"{size(memory.peak_bytes)} live at step {memory.peak_step}"
    live = sparkline(memory.live_bytes)
    held = f"arena {size(memory.arena_bytes)}, weights {size(memory.weight_bytes)}"
    put_lines(
        (
            ("sum", f"{explained}, {percent(report.coverage)} of the whole run"),
            ("whole run", f"{whole}, median of {plural(report.rounds, 'round')}, p10 – p90"),
            ("measured", _how(report)),
            ("bound by", f"{report.bound}: {report.bound_evidence}"),
            ("memory", f"{live} {peak}; {held}"),
            ("ceilings", report.ceilings),
        ),
        console,
    )
    put_lines([("note", note) for note in report.notes], console, style="yellow")


def sparkline(values: Sequence[int], width: int = 40) -> str:
    """Values over the steps in one line, each column the largest of its part."""
    if not values or not max(values):
        return ""
    count = min(width, len(values))
    parts = [values[i * len(values) // count : (i + 1) * len(values) // count] for i in range(count)]
    return "".join(LEVELS[max(part) * (len(LEVELS) - 1) // max(values)] for part in parts)


def _how(report: ProfileReport) -> str:
    timer = f"; a time-stamp costs {report.timer_us * 1e3:.0f} ns, taken off" if report.timer_us else ""
    return f"{report.how}{timer}"
