"""`ridge quantize`: a float model as standard Q/DQ ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.arguments import AsJson, LimitOption, Model, parse_limits
from ridgeline.cli.files import require_file, require_writable
from ridgeline.cli.render import emit, talk

Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="the quantised model (default: MODEL.qdq.onnx)"),
]
FormatOption = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="int8|uint8|fp8|w8|wfp8|w4|nvfp4|mxfp8",
        help="activations and weights, or weights alone (from w8 on)",
    ),
]
DataFolder = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="folder of .npz files to calibrate with; a part judges"),
]
Method = Annotated[
    str, typer.Option(metavar="auto|max|percentile|entropy|mse", help="how ranges are found; auto compares")
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(metavar="PATTERN", help="nodes to leave alone: an op type, a name or a glob"),
]
Smooth = Annotated[
    bool, typer.Option("--smooth", help="move scales of channels between activations and weights")
]
Compensate = Annotated[
    bool, typer.Option("--compensate", help="round weights so that their errors make up for one another")
]
Block = Annotated[
    int, typer.Option(min=0, help="weights that share a scale (w4; default: 64)", show_default=False)
]
ReducedRange = Annotated[
    bool, typer.Option("--reduced-range", help="7-bit weights, for x86 processors without VNNI")
]
CalibrationPath = Annotated[
    Path | None, typer.Option(metavar="FILE", help="ranges as JSON: read if they fit, else found and written")
]


def quantize(
    model: Model,
    output: Output = None,
    format: FormatOption = "int8",
    data: DataFolder = None,
    method: Method = "auto",
    exclude: Exclude = None,
    smooth: Smooth = False,
    compensate: Compensate = False,
    block: Block = 0,
    reduced_range: ReducedRange = False,
    calibration: CalibrationPath = None,
    limit: LimitOption = None,
    json: AsJson = False,
) -> None:
    """Write a model with QuantizeLinear and DequantizeLinear, and say what was quantised and why.

    Weights alone (w8, wfp8, w4, nvfp4, mxfp8) need no data.

    Example:

      ridge quantize model.onnx -o model.qdq.onnx --format int8 --data samples/
    """
    from ridgeline.cli.draw_quantize import draw_quantized
    from ridgeline.cli.progress import StageProgress
    from ridgeline.precision.quantize import quantize as quantize_model
    from ridgeline.precision.quantize_report import report_of

    require_file(model)
    path = output or Path(f"{model.stem}.qdq.onnx")
    require_writable(path, option="-o", source=model)
    if calibration is not None:
        require_writable(calibration, option="--calibration", source=model)
    with StageProgress(talk) as progress:
        made = quantize_model(
            model,
            format=format,
            data=data,
            method=method,
            exclude=tuple(exclude or ()),
            smooth=smooth,
            compensate=compensate,
            block=block,
            reduced_range=reduced_range,
            calibration=calibration,
            limits=parse_limits(limit),
            progress=progress,
        )
    made.save(path)
    emit(report_of(made), draw_quantized, as_json=json, schema="quantized", source=str(model), file=str(path))
    talk.print(f"wrote {path}", style="dim")
