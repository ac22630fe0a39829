"""What `ridge diff` compares: an engine, a profile or a benchmark, read as rows of one form."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ridgeline.base.files import read_regular
from ridgeline.base.result_json import SCHEMA_VERSION
from ridgeline.base.typed_json import Misfit, parse_json, read_as
from ridgeline.errors import OptionError, first_line
from ridgeline.plan.plan import Plan, total_us
from ridgeline.plan.trace import Trace
from ridgeline.runtime.description import read_description

BENCH_OF_ANY = "ridgeline/bench/"
BENCH = f"{BENCH_OF_ANY}{SCHEMA_VERSION}"
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
    measured: Mapping[str, str] | None = None  # under what conditions; None: not measured as a whole
    total_spread: float | None = None  # of a benchmark: p90 over the least, which has no samples


def read_side(path: Path) -> Side:
    """`OptionError` for a file that is none of the three; errors of engine files are their own."""
    if path.suffix == ".ridge" or zipfile.is_zipfile(path):
        found = read_description(path)
        return engine_side(found.plan, found.report.versions)
    try:
        text = read_regular(path).decode("utf-8")
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
    if form == BENCH:
        return bench_side(raw, path)
    if form.startswith(BENCH_OF_ANY):
        raise OptionError(
            f"{str(path)!r} is a benchmark of another version", got=form, want=BENCH,
            help="ridge bench ENGINE --json > FILE makes one",
        )  # fmt: skip
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
        {"device": trace.device, "threads": str(trace.threads), "way to measure": trace.how,
         **{f"shape of {name}": shape for name, shape in trace.shapes.items()}},
    )  # fmt: skip


@dataclass(frozen=True)
class _Runner:
    """What a comparison needs of a benchmark's row."""

    name: str
    median_us: float
    min_us: float | None = None
    p90_us: float | None = None


@dataclass(frozen=True)
class _Bench:
    """What a comparison needs of a benchmark."""

    model: str
    target: str
    rows: tuple[_Runner, ...]
    versions: dict[str, str]
    threads: int | None = None
    concurrency: int | None = None
    transfers: bool | None = None
    shapes: dict[str, tuple[int, ...]] | None = None


def bench_side(raw: Mapping[str, Any], path: Path) -> Side:
    """Runners are the parts; they have percentiles and no samples."""
    try:
        read = read_as(_Bench, _needed(raw))
    except Misfit as error:
        raise _broken(path, str(error)) from error
    times = [row.median_us for row in read.rows]
    if not times or not all(0 < us < math.inf for us in times):
        raise _broken(path, f"median_us is {', '.join(map(str, times))}" if times else "no rows")
    names = [row.name for row in read.rows]
    if len({*names}) < len(names):
        raise _broken(path, f"runners of one name: {', '.join(names)}")
    first = read.rows[0]
    spread = first.p90_us / first.min_us if first.p90_us and first.min_us else None
    parts = tuple(Part(row.name, (row.name,), row.median_us) for row in read.rows)
    settings = {name: str(getattr(read, name)) for name in ("threads", "concurrency", "transfers")}
    shapes = {f"shape of {name}": str(list(shape)) for name, shape in (read.shapes or {}).items()}
    return Side(
        BENCHMARK, read.model, read.target, parts, parts[0].us, (), read.versions, settings | shapes,
        total_spread=spread,
    )  # fmt: skip


def _needed(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A benchmark has many more fields, and may have new ones."""
    rows = raw.get("rows")
    if isinstance(rows, list):
        runner = [f.name for f in fields(_Runner)]
        rows = [{k: row[k] for k in runner if k in row} if isinstance(row, dict) else row for row in rows]
    return {f.name: raw[f.name] for f in fields(_Bench) if f.name in raw} | {"rows": rows}


def _broken(path: Path, got: str) -> OptionError:
    return OptionError(
        f"{str(path)!r} is not a whole benchmark", got=got, want="a time above 0 for each runner, once",
        help="ridge bench ENGINE --json > FILE makes one",
    )  # fmt: skip
