"""`ridge debug ranges` and `ridge debug precision`: which values and which nodes low precision breaks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.cli.arguments import AsJson, LimitOption, Model, Shapes, parse_limits, parse_profiles
from ridgeline.cli.files import require_file
from ridgeline.cli.render import emit, talk
from ridgeline.cli.verbosity import with_verbosity

debug = typer.Typer(
    name="debug", no_args_is_help=True, help="Find out which values and nodes low precision breaks."
)
Samples = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="folder of .npz files; without it inputs are random"),
]


def ranges(
    model: Model,
    data: Samples = None,
    format: Annotated[
        str,
        typer.Option("--format", metavar="NAME", help="fp16, bf16, or a format of quantisation: int8, fp8 …"),
    ] = "fp16",
    scale: Annotated[
        float | None,
        typer.Option(help="divide every value by this (default: 1 for fp16 and bf16, else one per value)"),
    ] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="samples at most (default: all)")] = None,
    every: Annotated[bool, typer.Option("--all", help="list the values that fit as well")] = False,
    shapes: Shapes = None,
    limit: LimitOption = None,
    json: AsJson = False,
) -> None:
    """Say which values overflow, underflow or become subnormal in a number format, with their histograms.

    Examples:

      ridge debug ranges model.onnx --data recordings

      ridge debug ranges model.onnx --data recordings --format int8 --json
    """
    from dataclasses import replace

    from ridgeline.analyze.ranges import range_report
    from ridgeline.cli.draw_debug import draw_ranges
    from ridgeline.cli.progress import StageProgress

    require_file(model)
    with StageProgress(talk) as progress:
        options = _options(data, shapes, limit, progress)
        report = range_report(model, format, options, scale=scale, samples=samples)
    shown = report if every or json else replace(report, rows=tuple(r for r in report.rows if r.suffers))
    emit(shown, draw_ranges, as_json=json, schema="ranges", source=str(model))
    if not json and not every:
        never = report.never_quantised
        fit = f"{len(report.rows) - len(shown.rows) - never} values fit"
        left = f", {never} are read by no product and never quantised" if never else ""
        talk.print(f"{fit}{left}: not listed (--all)", style="dim")


def precision(
    model: Model,
    precision: Annotated[
        str, typer.Option("--precision", metavar="NAME", help="fp16, bf16, tf32, int8, fp8, int4 …")
    ] = "fp16",
    budget: Annotated[
        float | None,
        typer.Option(metavar="ERROR", help="relative L2 error allowed (default: 0.01, quantised 0.05)"),
    ] = None,
    data: Samples = None,
    samples: Annotated[int, typer.Option(min=1, help="samples to emulate")] = 4,
    shapes: Shapes = None,
    limit: LimitOption = None,
    json: AsJson = False,
) -> None:
    """Find the smallest set of nodes, by name, that must stay in high precision, and what each costs alone.

    Nothing is built: nodes are emulated one by one. The set is not a prefix, and none of it can be spared.

    Examples:

      ridge debug precision model.onnx --precision fp16 --data recordings

      ridge debug precision model.onnx --precision int8 --budget 0.02 --json
    """
    from ridgeline.analyze.sensitivity import find_minimal_set
    from ridgeline.cli.draw_debug import draw_sensitivity
    from ridgeline.cli.progress import StageProgress

    require_file(model)
    with StageProgress(talk) as progress:
        options = _options(data, shapes, limit, progress)
        report = find_minimal_set(model, precision, options, budget=budget, samples=samples)
    emit(report, draw_sensitivity, as_json=json, schema="sensitivity", source=str(model))


def _options(data: Path | None, shapes: list[str] | None, limit: list[str] | None, progress: Any) -> Any:
    from ridgeline.options import make_options
    from ridgeline.plugins.entry_points import load_plugins

    load_plugins()
    given = {"data": data, "profiles": parse_profiles(shapes, None), "limits": parse_limits(limit)}
    return make_options({**given, "progress": progress})


for command in (ranges, precision):
    debug.command()(with_verbosity(command))
