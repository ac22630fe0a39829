"""`ridge report`: all that is known of an engine as one page, or as Markdown, JSON or CSV."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.arguments import AsJson, EngineFile, Trust
from ridgeline.cli.files import require_distinct, require_engine_file, require_writable, write_atomically
from ridgeline.cli.render import emit, talk
from ridgeline.errors import OptionError

if TYPE_CHECKING:
    from ridgeline.analyze.report_data import EngineReport


def report(
    engine: EngineFile,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="default: ENGINE's name with .html, here"),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option("--format", metavar="html|md|json|csv", help="default: by the name of FILE, else html"),
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
    from ridgeline.analyze.report_files import format_of, report_text
    from ridgeline.cli.draw_report import draw_report

    kind = format_of(format, output)
    path = output or Path(f"{engine.stem}.{kind}")
    require_writable(path, option="-o", source=engine)
    require_distinct({"-o": path}, {"--trace": trace})
    if profile and trace is not None:
        raise OptionError("--profile measures a trace, and --trace brings one", help="leave one of them out")
    made = _profiled(engine, trust=trust) if profile else _read(engine, trace)
    text = report_text(made, kind, source=str(engine))
    write_atomically(path, lambda file: file.write(text.encode("utf-8")))
    written = {"file": str(path), "file_bytes": path.stat().st_size, "source": str(engine)}
    emit(made, draw_report(path), as_json=json, schema="report", **written)


def _profiled(engine: Path, *, trust: bool) -> EngineReport:
    """The engine as it ran: choices that a build elsewhere could only predict are made before."""
    from ridgeline.analyze.report_files import report_of
    from ridgeline.cli.engines import load_file, tell_notes

    loaded = load_file(engine, trust=trust)
    talk.print("timing every step", style="dim")
    trace = loaded.profile()
    tell_notes(loaded)
    return report_of(loaded, trace=trace)


def _read(engine: Path, trace: Path | None) -> EngineReport:
    from ridgeline.analyze.report_engine import report_engine
    from ridgeline.analyze.report_files import ceilings_of
    from ridgeline.analyze.report_graph import read_fused_graph
    from ridgeline.analyze.trace import read_trace
    from ridgeline.cli.plans import describe_file

    described = describe_file(engine)
    return report_engine(
        described.plan,
        described.report,
        graph=read_fused_graph(engine),
        kernels=described.kernels,
        trace=read_trace(trace) if trace is not None else None,
        ceilings=ceilings_of(described.plan.target),
    )
