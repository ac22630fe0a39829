"""Draws the summary of an engine for `ridge build` and `ridge show`."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from ridgeline.analyze.runs import graphs_text
from ridgeline.analyze.show import Summary, Verdict, verdict_of
from ridgeline.cli.draw_runs import draw_runs
from ridgeline.cli.grid import put, put_lines, table
from ridgeline.cli.render import bar, duration, error_size, percent, plural, shape_text, size
from ridgeline.options import DimRange
from ridgeline.plan.report import Check, Precision, Report

LISTED = 8


def draw_built(summary: Summary, console: Console) -> None:
    """The summary that `ridge build` prints, in a few lines."""
    _headline(summary, console)
    put_lines(
        (
            ("profiles", _profiles_text(summary)),
            ("tuned", "; ".join(f"at {row.tuned_at} for {row.takes}" for row in summary.parts)),
            ("steps", _steps_text(summary)),
            ("tactics", _tactics_text(summary)),
            ("streams", summary.streams),
            ("memory", _memory_text(summary)),
            ("time", _time_text(summary)),
            ("precision", _built_precision_text(summary)),
            ("graphs", graphs_text(summary.run_parts)),
            ("verified", verdict_text(summary.verdict)),
            ("build", _stages_text(summary)),
        ),
        console,
    )
    _warnings(summary, console)


def draw_summary(summary: Summary, console: Console) -> None:
    """The whole summary, for `ridge show`."""
    _headline(summary, console)
    _ports(summary, console)
    _paragraph("Profiles", _profiles_text(summary), console)
    _parts(summary, console)
    _paragraph("Real shapes", summary.planned_again, console)
    _steps(summary, console)
    _paragraph("Streams", summary.streams, console)
    draw_runs(summary.run_parts, console)
    _memory(summary, console)
    _paragraph("Precision", _precision_text(summary), console)
    _kept(summary, console)
    _paragraph("Verification", verdict_text(summary.verdict), console)
    _paragraph("Time", _time_text(summary), console)
    _paragraph("Versions", ", ".join(f"{k} {v}" for k, v in summary.versions.items()), console)
    _warnings(summary, console)


def draw_checks(report: Report, console: Console) -> None:
    """Every check with its error, for `ridge verify`."""
    grid = table("check", "output", "off", "allowed", numeric=("off", "allowed"))
    for check in report.checks:
        grid.add_row(check.name, check.output, error_size(check.max_error), error_size(check.tolerance))
    put(grid, console, title="Checks")
    put_lines([("verified", verdict_text(verdict_of(report)))], console)
    put_lines([("warning", text) for text in report.warnings], console, style="yellow")


def verdict_text(verdict: Verdict) -> Text:
    if not verdict.checks and not verdict.unverified:
        return Text.assemble(("not verified", "yellow"), " (--verify off)")
    worst = verdict.worst
    where = f"; {_off_text(worst)} ({worst.output}, {worst.name})" if worst else ""
    against = f" against {verdict.reference}" if verdict.reference else ""
    if verdict.unverified:
        graph = (
            f"; the fused graph passed {plural(verdict.checks, 'check')}{against}" if verdict.checks else ""
        )
        return Text.assemble(("not yet ", "yellow"), f"({verdict.unverified}){graph}")
    if verdict.verified:
        return Text.assemble(("✓ ", "green"), f"{plural(verdict.checks, 'check')}{against}{where}")
    failed = f"✗ {verdict.failed} of {plural(verdict.checks, 'check')} failed"
    return Text.assemble((failed, "red"), f"{against}{where}")


def _off_text(check: Check) -> str:
    if check.max_error == check.tolerance == 0:
        return "every value equal, and none may differ"
    return f"worst error {error_size(check.max_error)} of {error_size(check.tolerance)} allowed"


def _headline(summary: Summary, console: Console) -> None:
    machine = f"  {summary.target}, {plural(summary.threads, 'thread')}, {summary.precision}"
    console.print(Text.assemble((summary.model or "model", "bold"), (machine, "dim")))


def _ports(summary: Summary, console: Console) -> None:
    console.print()
    ranged = any(row.moves for row in summary.inputs)
    grid = table("", "name", "type", "shape", "planned for", *(["range"] if ranged else []))
    for way, rows in (("in", summary.inputs), ("out", summary.outputs)):
        for row in rows:
            dims = ",".join(
                "?" if dim is None else str(dim) for dim in (row.dims if row.dims is not None else [None])
            )
            planned = "" if row.planned is None else shape_text(row.planned)
            ranges = "×".join(str(DimRange(*dim)) for dim in row.ranges or ()) if row.moves else ""
            grid.add_row(way, row.name, row.dtype, f"[{dims}]", planned, *([ranges] if ranged else []))
    put(grid, console)


def _steps(summary: Summary, console: Console) -> None:
    timed = summary.steps_us is not None
    title = f"{plural(len(summary.steps), 'step')} for {plural(summary.nodes, 'node')} of the model"
    title += f", {duration(summary.steps_us)}" if timed else ""
    is_predicted = any(row.predicted_us is not None for row in summary.steps)
    figures = ["median", "share", ""] if timed else ["predicted"] if is_predicted else []
    is_forked = any(row.stream for row in summary.steps)
    columns = ["#", "step", "ops", "tactic", *(["stream"] if is_forked else []), *figures]
    grid = table(*columns, numeric=("#", "median", "share", "predicted"), keep=("tactic",))
    for row in summary.steps:
        times = [duration(row.median_us), percent(row.share), bar(row.share)] if timed else []
        times = [duration(row.predicted_us)] if is_predicted and not timed else times
        stream = [row.stream] if is_forked else []
        grid.add_row(str(row.index), row.name, row.ops, row.tactic, *stream, *times)
    put(grid, console, title=title)


def _memory(summary: Summary, console: Console) -> None:
    grid = table("what", "size", "owner", "", numeric=("size",))
    for row in summary.memory:
        grid.add_row(
            row.kind, size(row.nbytes), "context" if row.per_context else "engine", Text(row.note, "dim")
        )
    put(grid, console, title="Memory")


def _profiles_text(summary: Summary) -> str:
    """Empty for one profile without padding, whose ranges are in the table of inputs."""
    if len(summary.profiles) < 2 and not summary.pads:
        return ""
    each = "; ".join(text or "any shapes" for text in summary.profiles)
    padding = "; inputs that fit none are padded to the next larger" if summary.pads else ""
    return f"{len(summary.profiles)}: {each}{padding}"


def _parts(summary: Summary, console: Console) -> None:
    """The plans of profiles that are tuned at several points; what is below them is of the first."""
    if not summary.parts:
        return
    has_several = len(summary.profiles) > 1
    numbers = (*(("profile",) if has_several else ()), "part", "steps", "median")
    grid = table(*numbers[:-2], "tuned at", "takes", *numbers[-2:], numeric=numbers)
    for row in summary.parts:
        which = [str(row.profile), str(row.part)] if has_several else [str(row.part)]
        grid.add_row(*which, row.tuned_at, row.takes, str(row.steps), duration(row.steps_us))
    put(grid, console, title="Tuned at several points")


def _steps_text(summary: Summary) -> str:
    timed = f", {duration(summary.steps_us)} at the planned shapes" if summary.steps_us is not None else ""
    return f"{len(summary.steps)} for {plural(summary.nodes, 'node')}{timed}"


def _tactics_text(summary: Summary) -> str:
    shown = [f"{row.tactic} ×{row.steps}" for row in summary.tactics[:LISTED]]
    more = len(summary.tactics) - len(shown)
    return ", ".join(shown) + (f", {more} more" if more else "")


def _memory_text(summary: Summary) -> str:
    return ", ".join(f"{row.kind} {size(row.nbytes)}" for row in summary.memory if row.nbytes)


def _time_text(summary: Summary) -> str:
    if summary.run_us is None:
        return ""
    overhead = summary.call_overhead_us
    return f"{duration(summary.run_us)} a run" + (
        f", {duration(overhead)} of it outside the steps" if overhead is not None else ""
    )


def _stages_text(summary: Summary) -> str:
    stages = summary.stage_seconds
    if not stages:
        return ""
    each = ", ".join(f"{name} {seconds:.1f}" for name, seconds in stages.items() if seconds >= 0.05)
    sites = [
        plural(count, f"site {word}").replace(f"site {word}s", f"sites {word}")
        for count, word in ((summary.sites_timed, "timed"), (summary.sites_cached, "from the cache"))
        if count
    ]
    parts = f" ({each})" if each else ""
    whole = sum(stages.values()) if summary.build_s is None else summary.build_s
    engines = [f"{summary.engines_built} engines built"] if summary.engines_built > 1 else []
    return f"{whole:.1f} s{parts}" + "".join(f"; {', '.join(each)}" for each in (engines, sites) if each)


def _precision_text(summary: Summary) -> str:
    """Empty for a model that was built in its own types."""
    found = summary.lowered
    if found is None:
        return ""
    kinds = sorted(found.nodes.items(), key=lambda pair: pair[0] == "fp32")
    first, *more = kinds or [("fp32", 0)]
    counted = [f"{plural(first[1], found.counted.removesuffix('s'))} in {first[0]}"]
    counts = ", ".join(counted + [f"{count} in {kind}" for kind, count in more])
    helped = f" after {' and '.join(found.helped_by)}" if found.helped_by else ""
    return f"{counts}; {_judged_text(found)}{helped}{_times_text(found)}"


def _built_precision_text(summary: Summary) -> str:
    """As `_precision_text`, with where to read more."""
    found = summary.lowered
    reasons = "; `ridge show` lists what was kept, and why" if found is not None and found.kept else ""
    return _precision_text(summary) + reasons


def _judged_text(found: Precision) -> str:
    allowed = f"of {error_size(found.budget)} allowed"
    if found.error is None:
        foreseen = "" if found.emulated is None else f", {error_size(found.emulated)} {allowed} as emulated"
        return f"not judged yet{foreseen}: `ridge verify ENGINE --model MODEL` on the target judges it"
    kind = "random" if found.drawn else "held-out" if found.held_out else "calibration"
    samples = plural(found.samples, f"{kind} sample")
    return f"off {error_size(found.error)} {allowed} on {samples}"


def _times_text(found: Precision) -> str:
    """The engines that were timed in the same build."""
    if found.lowered_us is None or found.plain_us is None:
        return ""
    asked = "the mixture" if found.asked == "auto" else found.asked
    times = f"{duration(found.lowered_us)} in {asked} against {duration(found.plain_us)} in {found.plain}"
    return f"; {times}, {found.plain_us / found.lowered_us:.2f}× the speed"


def _kept(summary: Summary, console: Console) -> None:
    found = summary.lowered
    if found is None or not found.kept:
        return
    grid = table("node", "why", keep=("node", "why"))
    for kept in found.kept:
        grid.add_row(kept.node, kept.why)
    kinds = [kind for kind in found.nodes if kind != found.asked]
    high = "fp32" if "fp32" in kinds or not kinds else kinds[-1]
    put(grid, console, title=f"Kept in {high}")


def _warnings(summary: Summary, console: Console) -> None:
    notes = [("slow", op) for op in summary.slow_ops] + [("warning", text) for text in summary.warnings]
    put_lines(notes, console, style="yellow")


def _paragraph(title: str, text: str | Text, console: Console) -> None:
    if text:
        console.print(title, style="bold")
        console.print(Padding(text, (0, 0, 1, 2), expand=False))
