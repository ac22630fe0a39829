"""`ridge profile`: where the time of an engine goes, step by step."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.cli.arguments import AsJson, EngineOrModel, Inputs, Seed, Target, Trust, build_options
from ridgeline.cli.files import is_engine_file, require_outputs
from ridgeline.cli.render import emit
from ridgeline.cli.shared_options import BUILDING, with_options
from ridgeline.errors import OptionError

BY = ("layer", "op", "precision", "tactic")


def _with_build_options(command: Any) -> Any:
    """Those of a build, and the target: a model may be profiled on the GPU that is here."""
    return with_options(
        command, BUILDING | {"target": Target}, lambda given: {"options": build_options(given)}
    )


@_with_build_options
def profile(
    engine: EngineOrModel,
    by: Annotated[str, typer.Option(metavar="|".join(BY), help="group the steps as well")] = "",
    top: Annotated[int, typer.Option(min=0, help="list only the steps that take longest (0: all)")] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="runs to measure")] = 30,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write the measurement itself, for ridge diff")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write a timeline that Perfetto and Chrome open")
    ] = None,
    torch_profiler: Annotated[
        bool, typer.Option("--torch-profiler", help="time the steps with PyTorch's profiler too")
    ] = False,
    nvtx: Annotated[
        bool, typer.Option("--nvtx", help="run once more with an NVTX range around each step, for nsys")
    ] = False,
    input: Inputs = None,
    seed: Seed = 0,
    trust: Trust = False,
    json: AsJson = False,
    *,
    options: dict[str, Any],
) -> None:
    """Time every step, say what limits it, and compare the sum with the whole run.

    Examples:

      ridge profile model.ridge --by layer

      ridge profile model.ridge --trace trace.json --save profile.json
    """
    # before PyTorch is imported: its profiler tells the terminal whenever it starts
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    from ridgeline.analyze.profile import profile_engine, run_with_ranges
    from ridgeline.analyze.trace import save_trace
    from ridgeline.analyze.trace_file import save_timeline
    from ridgeline.cli.arrays import read_inputs
    from ridgeline.cli.draw_profile import draw_profile
    from ridgeline.cli.engines import complete_feeds, load_or_build, tell_notes

    require_outputs({"--save": save, "--trace": trace}, source=engine, inputs=input)
    if by and by not in BY:
        raise OptionError(f"--by has no {by!r}", want=" or ".join(BY))
    given = read_inputs(input)
    # of an engine that is built already, --shapes are the sizes to run it at
    sizes = options.pop("profiles", None) if is_engine_file(engine) else None
    built = load_or_build(engine, options, trust=trust)
    feeds = complete_feeds(built, given, seed=seed, sizes=sizes)
    made = profile_engine(built, feeds, rounds=rounds, by=by, torch_profiler=torch_profiler)
    if nvtx:
        run_with_ranges(built, feeds)
    if save is not None:
        save_trace(made.trace, save)
    if trace is not None:
        save_timeline(made.trace, trace)
    tell_notes(built)
    emit(made.report, partial(draw_profile, top=top), as_json=json, schema="profile", file=str(engine))
