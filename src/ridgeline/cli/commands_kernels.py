"""`ridge kernels` lists the GPU kernels of an engine; `ridge settle` times its predicted choices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.arguments import AsJson, EngineFile, Trust
from ridgeline.cli.files import require_writable
from ridgeline.cli.render import emit, plural, talk


def kernels(
    engine: EngineFile,
    sass: Annotated[
        bool, typer.Option(help="disassemble each kernel, about 0.3 s each, to see its instructions")
    ] = True,
    json: AsJson = False,
) -> None:
    """List the engine's own GPU kernels: registers, spills, occupancy, and what their code shows.

    Needs no GPU, also for an engine that was built for another machine.

    Example:

      ridge kernels model.ridge
    """
    from ridgeline.analyze.kernel_report import report_kernels
    from ridgeline.cli.draw_kernels import draw_kernels
    from ridgeline.cli.plans import describe_with_kernels

    described = describe_with_kernels(engine)
    report = report_kernels(described.plan, described.kernels, with_evidence=sass)
    emit(report, draw_kernels, as_json=json, schema="kernels", file=str(engine))


def settle(
    engine: EngineFile,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="settled engine (default: ENGINE)")
    ] = None,
    trust: Trust = False,
    json: AsJson = False,
) -> None:
    """Time the candidates of an engine that was built without this GPU, check it, and save it again.

    The first run of such an engine does the same; this keeps the result.

    Example:

      ridge settle model.ridge --trust
    """
    from ridgeline.analyze.show import summarise
    from ridgeline.cli.draw_plan import draw_built
    from ridgeline.cli.engines import load_file

    path = output or engine
    require_writable(path, option="-o")
    loaded = load_file(engine, trust=trust)
    if not loaded.plan.is_predicted:
        talk.print(f"{engine} holds no predicted choice: there is nothing to settle", style="dim")
        untimed = sum(step.median_us is None for step in loaded.plan.steps)
        if untimed:
            hint = "build it at a level above 0 to time them"
            talk.print(f"{plural(untimed, 'step')} never timed: {hint}", style="dim")
    loaded.context()  # making a context times the predicted choices
    loaded.save(path)
    emit(
        summarise(loaded.plan, loaded.report), draw_built, as_json=json, schema="engine", file=str(path),
        file_bytes=path.stat().st_size,
    )  # fmt: skip
