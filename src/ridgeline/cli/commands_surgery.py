"""`ridge extract`, `ridge lint`, `ridge reduce`: they cut, check and reduce an ONNX file."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.arguments import AsJson, Model
from ridgeline.cli.exits import USER_ERROR
from ridgeline.cli.files import require_file, require_writable
from ridgeline.cli.progress import StageProgress
from ridgeline.cli.render import emit, talk


def _load_plugins() -> None:
    """Plugins need torch, which these commands do without where none is installed."""
    if entry_points(group="ridgeline.plugins"):
        from ridgeline.plugins.entry_points import load_plugins

        load_plugins()


def extract(
    model: Model,
    starts: Annotated[
        list[str] | None,
        typer.Option(
            "--from", metavar="NAME", help="value or node to begin at (default: the model's inputs)"
        ),
    ] = None,
    ends: Annotated[
        list[str] | None,
        typer.Option("--to", metavar="NAME", help="value or node to end at (default: the model's outputs)"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="the part (default: MODEL_part.onnx)"),
    ] = None,
    json: AsJson = False,
) -> None:
    """Cut a part out of a model, as a model of its own.

    A value is cut where it is; a node brings what it reads, or what it makes. Both options may be repeated.

    Example:

      ridge extract model.onnx --from /layer.0/Add_output_0 --to /layer.1/Softmax -o part.onnx
    """
    from ridgeline.cli.draw_surgery import draw_extracted
    from ridgeline.surgery.extract import extract_file

    require_file(model)
    _load_plugins()
    path = output or Path(f"{model.stem}_part.onnx")
    require_writable(path, option="-o", source=model)
    made = extract_file(model, path, starts=starts or (), ends=ends or ())
    emit(made, draw_extracted, as_json=json, schema="part", source=str(model), file=str(path))
    talk.print(f"wrote {path}", style="dim")


def lint(model: Model, json: AsJson = False) -> None:
    """List every problem of a model at once. Exits with 1 if any is an error.

    Example:

      ridge lint model.onnx
    """
    from ridgeline.cli.draw_surgery import draw_lint
    from ridgeline.surgery.lint import lint as lint_model

    require_file(model)
    _load_plugins()
    report = lint_model(model)
    emit(report, draw_lint, as_json=json, schema="problems", source=str(model))
    if report.errors:
        raise typer.Exit(USER_ERROR)


def reduce(
    model: Model,
    check: Annotated[
        str,
        typer.Option(
            metavar="COMMAND",
            help="fails on a bad model; {} is the model's path, {inputs} a folder of .npz samples",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="default: MODEL_reduced.onnx")
    ] = None,
    inputs: Annotated[
        list[Path] | None,
        typer.Option("--inputs", metavar="FILE", help=".npz with all inputs; all samples given are used"),
    ] = None,
    match: Annotated[
        str, typer.Option(metavar="REGEX", help="only output that holds this is the failure looked for")
    ] = "",
    any_failure: Annotated[
        bool, typer.Option("--any-failure", help="another exit status than the first one counts too")
    ] = False,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="a run that takes longer has hung", min=0.1)
    ] = None,
    max_checks: Annotated[int, typer.Option(help="runs of the command at most", min=1)] = 500,
    json: AsJson = False,
) -> None:
    """Find the smallest part of a model on which a command still fails.

    Example:

      ridge reduce model.onnx --check 'ridge build {} --level 1' -o bad.onnx
    """
    from ridgeline.cli.draw_surgery import draw_reduced
    from ridgeline.surgery.check import read_command
    from ridgeline.surgery.reduce import reduce_file

    for file in (model, *(inputs or ())):
        require_file(file)
    path = output or Path(f"{model.stem}_reduced.onnx")
    require_writable(path, option="-o", source=model)
    command = read_command(check, timeout_s=timeout, match=match, any_failure=any_failure)
    with StageProgress(talk) as progress:
        made = reduce_file(
            model, path, command, samples=inputs or (), max_checks=max_checks, progress=progress
        )
    emit(made, draw_reduced, as_json=json, schema="reduced", source=str(model), file=str(path))
    talk.print(f"wrote {path}", style="dim")
