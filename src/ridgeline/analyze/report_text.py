"""A report as Markdown and as CSV. Names come from strangers' models: none is markup or a formula here."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

from ridgeline.analyze.explain import config_text
from ridgeline.analyze.report_data import EngineReport, ReportStep
from ridgeline.analyze.runs import graphs_text, part_rows
from ridgeline.base.units import DASH, count_text, duration, error_size, percent, plural, size
from ridgeline.errors import visible

SLOWEST = 20
LISTED = 25
LONGEST = 120
# what Markdown or the HTML in it would read as more than text
_MARKUP = re.compile(r"([\\`*_{}\[\]<>|#~&])")
# how programs for tables tell a formula from text
_FORMULA = ("=", "+", "-", "@", "\t", "\r")

CSV_COLUMNS = (
    "index", "name", "kind", "precision", "ops", "nodes", "regions", "tactic", "config", "us", "p10_us",
    "p90_us", "start_us", "gap_us",
    "share", "bytes", "flops", "intensity", "bytes_per_us", "flops_per_us", "bound_us",
    "bound_by", "roofline", "limiter", "runner_up", "behind", "why",
)  # fmt: skip


def report_csv(report: EngineReport) -> str:
    """One row for each step, with a line of names above."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    writer.writerows(_csv_row(step) for step in report.steps)
    return file.getvalue()


def _csv_row(step: ReportStep) -> Sequence[object]:
    second = step.contest.runner_up
    row = (
        step.index, step.name, step.op_class, step.precision, " ".join(step.ops), len(step.nodes),
        len(step.regions), step.tactic, config_text(step.config), step.us, step.p10_us, step.p90_us,
        step.start_us, step.gap_us,
        step.share, step.bytes, step.flops, step.intensity, step.bytes_per_us, step.flops_per_us,
        step.bound_us, step.bound_by, step.roofline, step.limiter, second.tactic if second else "",
        second.behind if second else None, step.why,
    )  # fmt: skip
    return [plain_cell(cell) if isinstance(cell, str) else cell for cell in row]


def plain_cell(text: str) -> str:
    shown = visible(text)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown


def report_markdown(report: EngineReport, *, made_by: str) -> str:
    """The summary, the slowest steps, memory, refusals, checks and versions, for a pull request or a wiki."""
    summary = report.summary
    shapes = ", ".join(
        f"{_text(port.name)} {port.dtype}[{','.join(map(str, port.planned or ()))}]"
        for port in summary.inputs
    )
    parts = [
        f"# {_text(summary.model or 'model')}\n",
        f"{summary.target}, {plural(summary.threads, 'thread')}, {summary.precision}; {shapes}\n",
        _table(("", ""), _cards(report)),
        _section("Tuned at several points", _parts(report)),
        _section("Slowest steps", _slowest(report)),
        _section("Findings", _findings(report)),
        _section("CUDA graphs", _runs(report)),
        _section("Memory", _memory(report)),
        _section("Fusions that did not happen", _unfused(report)),
        _section("Verification", _checks(report)),
        _section("Environment", _table(("", ""), [(k, v) for k, v in summary.versions.items()])),
        f"\n{made_by}\n",
    ]
    return "\n".join(part for part in parts if part)


def _parts(report: EngineReport) -> str:
    """Which plan of a profile takes which sizes; the rest of the report is about the first."""
    rows = [
        (str(row.profile), str(row.part), _text(row.tuned_at), _text(row.takes), duration(row.steps_us))
        for row in report.summary.parts
    ]
    return _table(("profile", "part", "tuned at", "takes", "steps"), rows) if rows else ""


def _runs(report: EngineReport) -> str:
    """Where one CUDA graph does not hold the whole run: the graphs, and the steps between them."""
    parts = report.summary.run_parts
    rows = [tuple(map(_text, row)) for row in part_rows(parts)]
    if not rows:
        return ""
    return f"{_text(graphs_text(parts))}\n\n{_table(('of', 'run as', 'steps', 'why'), rows, left=4)}"


def _section(title: str, content: str) -> str:
    return f"## {title}\n\n{content}" if content else ""


def _cards(report: EngineReport) -> list[tuple[str, str]]:
    summary, verdict = report.summary, report.summary.verdict
    total = sum(row.nbytes for row in summary.memory)
    if verdict.verified:
        checked = f"yes, {plural(verdict.checks, 'check')} against {_text(verdict.reference)}"
    else:
        checked = f"no: {_text(verdict.unverified)}" if verdict.unverified else "no"
    rooflined = percent(report.roofline)
    if report.roof is not None:
        rooflined += f" ({_text(report.roof.name)}, {_text(report.roof.source)})"
    return [
        ("latency", f"{duration(report.latency_us)} ({report.latency_of})"),
        ("steps", f"{len(report.steps)} for {plural(summary.nodes, 'node')}"),
        ("of the roofline", rooflined),
        ("memory", size(total)),
        ("verified", checked),
        ("precision", summary.precision),
        ("build", DASH if summary.build_s is None else duration(summary.build_s * 1e6)),
    ]


def _slowest(report: EngineReport) -> str:
    timed = sorted((step for step in report.steps if step.us is not None), key=lambda step: -(step.us or 0.0))
    rows = [
        (
            str(step.index), _text(step.name), _text(step.ops_text), _text(step.tactic), duration(step.us),
            percent(step.share), percent(step.roofline), size(step.bytes), count_text(step.flops, "FLOP"),
        )
        for step in timed[:SLOWEST]
    ]  # fmt: skip
    heads = ("#", "step", "ops", "tactic", "time", "share", "of the roofline", "bytes", "flops")
    return _table(heads, rows, left=4) if rows else "The steps of this engine were not timed.\n"


def _findings(report: EngineReport) -> str:
    rows = [
        (each.severity, _text(each.what), _text(each.change), _text(each.nodes[0]), duration(each.gain_us))
        for each in report.findings[:LISTED]
        if each.nodes
    ]
    return _table(("severity", "what", "change", "at", "gain"), rows, left=4) if rows else ""


def _memory(report: EngineReport) -> str:
    return _table(
        ("what", "size", "held by"),
        [
            (row.kind, size(row.nbytes), "context" if row.per_context else "engine")
            for row in report.summary.memory
        ],
        left=1,
    )


def _unfused(report: EngineReport) -> str:
    rows = [
        (_text(row.rule), _text(row.reason), str(row.count), size(row.bytes_lost), _text(row.nodes[0]))
        for row in report.unfused[:LISTED]
    ]
    return _table(("rule", "reason", "times", "bytes lost", "first at"), rows) if rows else ""


def _checks(report: EngineReport) -> str:
    rows = [
        (
            _text(c.name),
            _text(c.output),
            error_size(c.max_error),
            error_size(c.tolerance),
            "yes" if c.passed else "no",
        )
        for c in report.checks[:LISTED]
    ]
    return _table(("check", "output", "off", "allowed", "passed"), rows) if rows else ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 99) -> str:
    """The first `left` columns are words, the others numbers."""
    rule = ["---" if i < left else "---:" for i, _ in enumerate(heads)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rule, *rows)) + "\n"


def _text(name: str) -> str:
    """A name that stays on its line and is no markup."""
    shown = visible(name).replace("\n", " ").replace("\t", " ")
    short = shown if len(shown) <= LONGEST else f"{shown[: LONGEST // 2]}…{shown[-LONGEST // 2 :]}"
    return _MARKUP.sub(r"\\\1", short)
