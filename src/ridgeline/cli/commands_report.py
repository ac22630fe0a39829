"""`ridge report`: all that is known of an engine as one page, or as Markdown, JSON or CSV."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline import __version__
from ridgeline.cli.arguments import AsJson, EngineFile, Trust
from ridgeline.cli.files import require_engine_file, require_writable, write_atomically
from ridgeline.cli.render import document, emit, talk, to_json
from ridgeline.errors import OptionError, did_you_mean

if TYPE_CHECKING:
    from ridgeline.analyze.report_data import EngineReport
    from ridgeline.base.ceilings import Ceilings
    from ridgeline.base.spec import Target
    from ridgeline.plan.trace import Trace

FORMATS = ("html", "md", "json", "csv")
SUFFIXES = {".html": "html", ".htm": "html", ".md": "md", ".markdown": "md", ".json": "json", ".csv": "csv"}


def report(
    engine: EngineFile,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="default: ENGINE's name with .html, here"),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option("--format", metavar="|".join(FORMATS), help="default: by the name of FILE, else html"),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="run the engine first, and time every step")
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="times that `ridge profile --save FILE` has measured"),
    ] = None,
    trust: Trust = False,
    json: AsJson = False,
) -> None:
    """Write all that is known of an engine into one page that needs no network.

    Times are those of the build, unless a profile is made or given.

    Examples:

      ridge report model.ridge -o report.html

      ridge report model.ridge --profile -o report.html

      ridge report model.ridge --format md -o report.md
    """
    require_engine_file(engine)
    kind = _format(format, output)
    path = output or Path(f"{engine.stem}.{kind}")
    require_writable(path, option="-o", source=engine)
    if profile and trace is not None:
        raise OptionError("--profile measures a trace, and --trace brings one", help="leave one of them out")
    made = _make(engine, _trace(engine, profile=profile, saved=trace, trust=trust))
    text = _text(made, kind, file=str(engine))
    write_atomically(path, lambda file: file.write(text.encode("utf-8")))

    from ridgeline.cli.draw_report import draw_report

    written = {"file": str(path), "file_bytes": path.stat().st_size, "source": str(engine)}
    emit(made, draw_report(path), as_json=json, schema="report", **written)


def _format(given: str | None, output: Path | None) -> str:
    if given is not None:
        if given not in FORMATS:
            raise OptionError(
                f"--format has no {given!r}", want=", ".join(FORMATS), help=did_you_mean(given, FORMATS)
            )
        return given
    if output is None or not output.suffix:
        return "html"
    if output.suffix.lower() not in SUFFIXES:
        raise OptionError(
            f"the name {output.name!r} does not say which format it is to have",
            want=f"--format {'|'.join(FORMATS)}, or a name that ends so",
        )
    return SUFFIXES[output.suffix.lower()]


def _trace(engine: Path, *, profile: bool, saved: Path | None, trust: bool) -> Trace | None:
    if saved is not None:
        from ridgeline.analyze.trace import read_trace

        return read_trace(saved)
    if not profile:
        return None
    from ridgeline.cli.engines import load_file, tell_notes

    loaded = load_file(engine, trust=trust)
    talk.print("timing every step", style="dim")
    made = loaded.profile()
    tell_notes(loaded)
    return made


def _make(engine: Path, trace: Trace | None) -> EngineReport:
    from ridgeline.analyze.report_engine import report_engine
    from ridgeline.analyze.report_graph import read_fused_graph
    from ridgeline.cli.plans import describe_file

    described = describe_file(engine)
    return report_engine(
        described.plan,
        described.report,
        graph=read_fused_graph(engine),
        kernels=described.kernels,
        trace=trace,
        ceilings=_ceilings(described.plan.target),
    )


def _ceilings(target: Target) -> Ceilings | None:
    """None where nothing is known of the machine; the report says so."""
    from ridgeline.errors import TargetError
    from ridgeline.targets.ceilings import find_ceilings

    try:
        return find_ceilings(target) if target.exists else None
    except TargetError:
        return None


def _text(made: EngineReport, kind: str, **more: Any) -> str:
    from ridgeline.analyze.html.page import report_page
    from ridgeline.analyze.report_text import report_csv, report_markdown

    made_by = f"ridgeline {__version__}"
    if kind == "html":
        return report_page(made, made_by=made_by)
    if kind == "md":
        return report_markdown(made, made_by=made_by)
    return report_csv(made) if kind == "csv" else to_json(document("report", made, **more)) + "\n"
