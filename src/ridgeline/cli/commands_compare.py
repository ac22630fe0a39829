"""`ridge compare`: two models, engines, precisions or runtimes on the same inputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.cli.arguments import AsJson, Trust
from ridgeline.cli.exits import FAILED_GATE
from ridgeline.cli.files import require_writable
from ridgeline.cli.render import emit, say_error, talk
from ridgeline.cli.shared_options import with_build_options
from ridgeline.errors import OptionError

DRAWS = 3
First = Annotated[
    str,
    typer.Argument(
        metavar="A", help="MODEL.onnx, MODEL.onnx@HOW, ENGINE.ridge or saved outputs", show_default=False
    ),
]
Second = Annotated[
    str | None, typer.Argument(metavar="B", help="the reference, of the same kinds", show_default=False)
]
Layers = Annotated[bool, typer.Option("--layers", help="compare every tensor that exists on both sides")]
Unfused = Annotated[
    bool, typer.Option("--unfused", help="build and run without fusion, so that more tensors exist")
]
Samples = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="folder of .npz files; without it inputs are drawn"),
]
Draws = Annotated[int, typer.Option(min=1, help="how many inputs are drawn")]
Allow = Annotated[
    float | None,
    typer.Option(
        metavar="ERROR",
        help="largest relative L2 error of an output (default: the budget of a lowered engine, else 0.01)",
    ),
]
Atol = Annotated[
    float | None, typer.Option(metavar="ERROR", help="in place of --allow: |a - b| <= atol + rtol·|b|")
]
Rtol = Annotated[float | None, typer.Option(metavar="ERROR", help="as --atol")]
SaveOutputs = Annotated[
    Path | None, typer.Option(metavar="FILE", help="write A's inputs and outputs (.npz or .safetensors)")
]
LoadOutputs = Annotated[
    Path | None, typer.Option(metavar="FILE", help="compare with outputs that were saved, in place of B")
]


@with_build_options
def compare(
    a: First,
    b: Second = None,
    layers: Layers = False,
    unfused: Unfused = False,
    data: Samples = None,
    draws: Draws = DRAWS,
    allow: Allow = None,
    atol: Atol = None,
    rtol: Rtol = None,
    save_outputs: SaveOutputs = None,
    load_outputs: LoadOutputs = None,
    trust: Trust = False,
    json: AsJson = False,
    *,
    options: dict[str, Any],
) -> None:
    """Compare two models, engines, precisions or runtimes on the same inputs. Exit status 3 if they differ.

    HOW is reference (ONNX Runtime, optimisations off; the default), onnxruntime, floor (PyTorch op by op),
    engine (built now), or a precision to build in, such as fp16.

    Examples:

      ridge compare model.ridge model.onnx --data recordings

      ridge compare model.onnx@fp16 model.onnx --layers

      ridge compare model.onnx@engine --save-outputs here.npz     (and elsewhere:)

      ridge compare model.onnx@engine --load-outputs here.npz
    """
    from ridgeline.analyze.compare_command import Request

    if b is not None and load_outputs is not None:
        raise OptionError("B and --load-outputs are given together", want="one of them: the reference")
    if save_outputs is not None:
        require_writable(save_outputs, option="--save-outputs")
    request = Request(
        a, b if load_outputs is None else str(load_outputs), _allowed(allow, atol, rtol), options,
        data=data, draws=draws, with_layers=layers, is_unfused=unfused, trust=trust, save_to=save_outputs,
    )  # fmt: skip
    _show(request, as_json=json)


def _allowed(allow: float | None, atol: float | None, rtol: float | None) -> Any:
    """What the user allows; None leaves it to the budget of an engine."""
    from ridgeline.analyze.compare import Allowed

    if allow is not None:
        return Allowed(allow, atol, rtol)
    return None if atol is None and rtol is None else Allowed(atol=atol, rtol=rtol)


def _show(request: Any, *, as_json: bool) -> None:
    from ridgeline.analyze.compare_command import run_comparison
    from ridgeline.cli.draw_compare import draw_comparison
    from ridgeline.cli.progress import StageProgress

    with StageProgress(talk) as progress:
        report = run_comparison(replace(request, options={**request.options, "progress": progress}))
    if request.save_to is not None:
        talk.print(f"wrote {request.save_to}", style="dim")
    if report is None:
        return
    emit(report, draw_comparison, as_json=as_json, schema="comparison")
    if not report.passed:
        differ = "the two sides differ by more than is allowed"
        say_error(differ if report.has_values else "nothing was compared")
        raise typer.Exit(FAILED_GATE)
