"""What `ridge diff` compares: an engine, a profile or a benchmark, read as rows of one form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.base.typed_json import parse_json
from ridgeline.errors import OptionError, first_line
from ridgeline.plan.plan import Plan, total_us
from ridgeline.plan.trace import Trace
from ridgeline.runtime.description import read_description

BENCH = "ridgeline/bench/"
TRACE = "ridgeline/trace/"
BENCHMARK = "benchmark"
HELP = "an engine (.ridge), a profile (ridge profile --save FILE) or a benchmark (ridge bench --json > FILE)"


@dataclass(frozen=True)
class Part:
    """A step, or a runner of a benchmark: what it computes, how, and how long it takes."""

    name: str
    sources: tuple[str, ...]
    us: float | None
    samples_us: tuple[float, ...] = ()
    tactic: str = ""
    config: Mapping[str, Any] | None = None
    precision: str = ""
    ops: tuple[str, ...] = ()
    bytes: int = 0
    flops: int = 0


@dataclass(frozen=True)
class Side:
    """One of the two."""

    kind: str  # engine | profile | benchmark
    model: str
    target: str
    parts: tuple[Part, ...]
    total_us: float | None
    total_samples_us: tuple[float, ...] = ()
    versions: Mapping[str, str] | None = None
    total_spread: float | None = None  # of a benchmark: p90 over the least, which has no samples


def read_side(path: Path) -> Side:
    """`OptionError` for a file that is none of the three; errors of engine files are their own."""
    if path.suffix == ".ridge":
        found = read_description(path)
        return engine_side(found.plan, found.report.versions)
    try:
        text = path.read_text(encoding="utf-8")
        raw = parse_json(text)
    except FileNotFoundError:
        raise OptionError(f"there is no file {str(path)!r}", want=HELP) from None
    except UnicodeDecodeError:
        raise OptionError(
            f"{str(path)!r} cannot be compared", got="a file that is no text", want=HELP
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(f"{str(path)!r} cannot be compared", got=first_line(error), want=HELP) from error
    form = str(raw.get("format") or raw.get("schema") or "") if isinstance(raw, dict) else ""
    if form.startswith(TRACE):
        return trace_side(Trace.from_json(text, name=repr(str(path))))
    if form.startswith(BENCH):
        return bench_side(raw, path)
    raise OptionError(f"{str(path)!r} cannot be compared", got=form or "JSON of another form", want=HELP)


def require_comparable(a: Side, b: Side) -> None:
    """A benchmark has runners where engines and profiles have steps."""
    if (a.kind == BENCHMARK) != (b.kind == BENCHMARK):
        raise OptionError(
            "a benchmark compares with a benchmark only",
            got=f"{a.kind} and {b.kind}",
            help="profile both engines: ridge profile ENGINE --save FILE",
        )


def engine_side(plan: Plan, versions: Mapping[str, str] | None = None) -> Side:
    parts = [
        Part(
            name=step.name, sources=step.sources, us=step.median_us or step.predicted_us, tactic=step.tactic,
            config=dict(step.config), ops=step.op_types, bytes=step.work.bytes, flops=step.work.flops,
        )
        for step in plan.steps
    ]  # fmt: skip
    return Side("engine", plan.model, str(plan.target), tuple(parts), total_us(plan.steps), (), versions)


def trace_side(trace: Trace) -> Side:
    parts = [
        Part(
            name=step.name, sources=step.sources, us=step.median_us, samples_us=step.samples_us,
            tactic=step.tactic, config=dict(step.config), precision=step.precision, ops=step.op_types,
            bytes=step.bytes, flops=step.flops,
        )
        for step in trace.steps
    ]  # fmt: skip
    return Side(
        "profile", trace.model, trace.target, tuple(parts), trace.total_us, trace.total_samples_us,
        trace.versions,
    )  # fmt: skip


def bench_side(raw: Mapping[str, Any], path: Path) -> Side:
    """Runners are the parts; they have percentiles and no samples."""
    try:
        rows: Sequence[Mapping[str, Any]] = raw["rows"]
        parts = tuple(Part(str(row["name"]), (str(row["name"]),), float(row["median_us"])) for row in rows)
        return Side(
            BENCHMARK, str(raw["model"]), str(raw["target"]), parts, parts[0].us, (), dict(raw["versions"]),
            _spread(rows[0]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise OptionError(f"{str(path)!r} is not a whole benchmark", got=repr(error), want=HELP) from error


def _spread(row: Mapping[str, Any]) -> float | None:
    """How far the queries of a benchmark differ; None where its file does not tell."""
    high, low = row.get("p90_us"), row.get("min_us")
    return float(high) / float(low) if high and low else None
