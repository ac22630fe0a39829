"""Reports as files: which format a name asks for, and the text in it."""

from __future__ import annotations

from pathlib import Path

from ridgeline.analyze.findings.in_graph import find_all
from ridgeline.analyze.html.page import report_page
from ridgeline.analyze.report_data import EngineReport
from ridgeline.analyze.report_engine import report_engine
from ridgeline.analyze.report_graph import fused_graph
from ridgeline.analyze.report_text import report_csv, report_markdown
from ridgeline.base.ceilings import Ceilings
from ridgeline.base.files import path_given, require_place, whole_file
from ridgeline.base.result_json import document, to_json
from ridgeline.base.spec import Target
from ridgeline.base.version import VERSION
from ridgeline.errors import OptionError, TargetError, did_you_mean
from ridgeline.plan.trace import Trace
from ridgeline.runtime.embedded_kernels import collect
from ridgeline.runtime.engine import Engine
from ridgeline.targets.ceilings import find_ceilings

FORMATS = ("html", "md", "json", "csv")
SUFFIXES = {".html": "html", ".htm": "html", ".md": "md", ".markdown": "md", ".json": "json", ".csv": "csv"}


def write_report(
    engine: Engine, path: str | Path, *, format: str | None = None, trace: Trace | None = None
) -> Path:
    """Write all that is known of an engine: as a page, or as Markdown, JSON or CSV, by the name of the file.

    Times are those of `trace`, as `engine.profile()` gives it; without one, those of the build.
    """
    target = path_given(path, what="a report")
    if not isinstance(engine, Engine):
        raise OptionError("a report is of an engine", got=type(engine).__name__, want="ridgeline.load(FILE)")
    if trace is not None and not isinstance(trace, Trace):
        raise OptionError(
            "the times of a report are a trace", got=type(trace).__name__, want="trace=engine.profile()"
        )
    kind = format_of(format, target)
    text = report_text(report_of(engine, trace=trace), kind)
    try:
        with whole_file(require_place(target)) as file:
            file.write(text.encode("utf-8"))
    except OSError as error:
        raise OptionError(f"the report cannot be written to {str(target)!r}", got=str(error)) from error
    return target


def report_of(engine: Engine, *, trace: Trace | None = None) -> EngineReport:
    """The rows of an engine that is loaded."""
    store = engine.fused.kernels.store
    kernels = collect(engine.planned_sites(), engine.fused.tactics, store) if engine.fused.is_gpu else {}
    return report_engine(
        engine.plan,
        engine.report,
        graph=fused_graph(engine.fused_onnx(weights=False)),
        kernels=kernels,
        trace=trace,
        ceilings=ceilings_of(engine.plan.target),
        findings=find_all(engine),
    )


def ceilings_of(target: Target) -> Ceilings | None:
    """None where nothing is known of the machine; the report says so."""
    try:
        return find_ceilings(target) if target.exists else None
    except TargetError:
        return None


def format_of(given: str | None, path: Path | None) -> str:
    """The format that was asked for, else the one that the name of the file tells, else a page."""
    if given is not None:
        if given not in FORMATS:
            raise OptionError(
                f"a report has no format {given!r}",
                want=", ".join(FORMATS),
                help=did_you_mean(given, FORMATS),
            )
        return given
    if path is None or not path.suffix:
        return "html"
    if path.suffix.lower() not in SUFFIXES:
        raise OptionError(
            f"the name {path.name!r} does not say which format the report is to have",
            want=f"a name that ends so, or a format: {', '.join(FORMATS)}",
            help="--format html",
        )
    return SUFFIXES[path.suffix.lower()]


def report_text(report: EngineReport, kind: str, *, source: str = "") -> str:
    """The whole file; `source` is the engine file that it was read from."""
    made_by = f"ridgeline {VERSION}"
    if kind == "html":
        return report_page(report, made_by=made_by)
    if kind == "md":
        return report_markdown(report, made_by=made_by)
    if kind == "csv":
        return report_csv(report)
    return to_json(document("report", report, **({"source": source} if source else {}))) + "\n"
