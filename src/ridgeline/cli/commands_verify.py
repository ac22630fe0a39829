"""`ridge verify`: the checks of a build, again, on the machine that will run the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.arguments import AsJson, EngineFile, Trust
from ridgeline.cli.files import require_file
from ridgeline.cli.render import emit, talk


def verify(
    engine: EngineFile,
    model: Annotated[
        Path,
        typer.Option("--model", metavar="MODEL", help="the ONNX file it was made from", show_default=False),
    ],
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="folder of .npz files to verify with")
    ] = None,
    trust: Trust = False,
    json: AsJson = False,
) -> None:
    """Verify an engine file against its model, as the build did: exit status 3 if it computes something else.

    Examples:

      ridge verify model.ridge --model model.onnx

      ridge verify model.ridge --model model.onnx --data recordings --json
    """
    from ridgeline.cli.draw_plan import draw_checks
    from ridgeline.cli.engines import load_file, tell_notes
    from ridgeline.cli.progress import StageProgress
    from ridgeline.precision.recheck import verify_engine

    loaded = load_file(engine, trust=trust)
    require_file(model)
    with StageProgress(talk) as progress:
        report = verify_engine(loaded, model, data=data, progress=progress)
    tell_notes(loaded)
    emit(report, draw_checks, as_json=json, schema="checks", source=str(model), file=str(engine))
