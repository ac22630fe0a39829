"""`ridge predict`: the time a model should take on a machine; `ridge calibrate`: what this machine can do."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.arguments import AsJson, Model, Shapes, parse_pairs
from ridgeline.cli.files import require_file, require_writable
from ridgeline.cli.render import emit, plural, talk
from ridgeline.errors import OptionError

KNOBS = ("bandwidth", "peak", "sms", "clock", "l2")
MOST = 2**31 - 1  # of a dim
# beyond these a machine is not another machine, and times leave the range of a float
LEAST_FACTOR, MOST_FACTOR = 1e-3, 1e3
LEAST_LIMIT_S, MOST_LIMIT_S = 1, 24 * 3600


_size = partial(typer.Option, min=1, max=MOST)
Batch = Annotated[int | None, _size(help="size of the first dim, where it is open")]
Prompt = Annotated[int, _size(help="of a language model: tokens of the prompt")]
Context = Annotated[int | None, _size(help="of a language model: tokens in the cache (default: the prompt)")]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        min=LEAST_LIMIT_S, max=MOST_LIMIT_S, metavar="SECONDS",
        help="networks are measured in the order of their worth until no other fits (default: 170)",
    ),
]  # fmt: skip


def predict(
    model: Model,
    target: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="h200, l4, … or a target file; cpu or cuda: this machine")
    ] = "cuda",
    shapes: Shapes = None,
    batch: Batch = None,
    precision: Annotated[str, typer.Option(metavar="typed|fp16|bf16", help="types to compute in")] = "typed",
    what_if: Annotated[
        list[str] | None,
        typer.Option(metavar="KNOB=FACTOR", help=f"multiply a figure of the machine: {', '.join(KNOBS)}"),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="how many steps to list")] = 12,
    prompt: Prompt = 512,
    context: Context = None,
    weights: Annotated[
        str | None, typer.Option(metavar="TYPE", help="of a language model: int4, int8, float8_e4m3fn, …")
    ] = None,
    json: AsJson = False,
) -> None:
    """Predict the time of a model on a machine that need not be here: in all, by step, and what limits it.

    Nothing is compiled or run. A machine that was calibrated is predicted from its own measurements. For a
    config.json of Hugging Face: bounds of prefill and decode by operator, and the size of the cache.

    Examples:

      ridge predict model.onnx --target l4 --batch 8 --precision fp16

      ridge predict model.onnx --target h200 --what-if bandwidth=1.5 --what-if sms=0.5

      ridge predict config.json --target l4 --batch 8 --prompt 2048 --weights int4
    """
    if model.suffix == ".json":
        _predict_llm(model, target, what_if, as_json=json, batch=batch, prompt=prompt, context=context,
                     weights=weights)  # fmt: skip
        return
    from ridgeline.analyze.predict import batch_profile, predict
    from ridgeline.cli.draw_predict import draw_prediction
    from ridgeline.options import make_options
    from ridgeline.plugins.entry_points import load_plugins
    from ridgeline.targets.ceilings import named_ceilings

    require_file(model)
    load_plugins()
    profile = parse_pairs(shapes or (), option="--shapes", example="--shapes x=1..8x3x224x224")
    if batch is not None:
        profile = batch_profile(model, batch, profile)
    options = make_options({"profiles": profile or None, "precision": precision})
    found = predict(model, named_ceilings(target), options, what_if=read_knobs(what_if or []))
    emit(
        found, lambda report, console: draw_prediction(report, console, top=top), as_json=json,
        schema="prediction", file=str(model),
    )  # fmt: skip


def _predict_llm(
    path: Path,
    target: str,
    what_if: list[str] | None,
    *,
    as_json: bool,
    weights: str | None,
    **sizes: int | None,
) -> None:
    """Parameters: those of the command that a decoder has."""
    from ridgeline.analyze.predict_llm import predict_llm, read_decoder
    from ridgeline.cli.draw_predict import draw_llm
    from ridgeline.targets.ceilings import named_ceilings

    require_file(path)
    knobs = read_knobs(what_if or [])
    ceilings = named_ceilings(target).what_if(**knobs)
    given = {name: value for name, value in sizes.items() if value is not None}
    found = replace(predict_llm(read_decoder(path, weights), ceilings, **given), what_if=knobs)
    emit(found, draw_llm, as_json=as_json, schema="llm_prediction", file=str(path))


def calibrate(
    target: Annotated[
        str, typer.Option(metavar="cpu|cuda", help="what to measure (default: the GPU if there is one)")
    ] = "",
    threads: Annotated[int | None, typer.Option(min=1, help="of the processor (default: all cores)")] = None,
    rates: Annotated[
        bool, typer.Option("--rates", help="only copies, products and a launch: seconds, no networks")
    ] = False,
    time_limit: TimeLimit = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="target file (default: in the cache)"),
    ] = None,
    json: AsJson = False,
) -> None:
    """Measure what this machine can do, and keep it for predictions and rooflines: under three minutes.

    What there was no time for is said, and named again by predictions that would have needed it.

    Examples:

      ridge calibrate

      ridge calibrate --time-limit 600

      ridge calibrate --target cpu -o laptop.toml
    """
    began = time.monotonic()  # what follows takes seconds: they are part of the limit
    from ridgeline.analyze.calibrate import TIME_LIMIT_S, calibrate, doubt, measure_rates
    from ridgeline.base.target_files import write_target
    from ridgeline.cli.draw_predict import draw_ceilings
    from ridgeline.cli.progress import StageProgress
    from ridgeline.options import make_options
    from ridgeline.runtime.device import why_no_gpu
    from ridgeline.targets import target_named
    from ridgeline.targets.ceilings import calibration_path

    target = target or ("cpu" if why_no_gpu() else "cuda")
    if target not in ("cpu", "cuda"):
        raise OptionError("only this machine can be measured", got=target, want="cpu or cuda")
    if rates and time_limit is not None:
        raise OptionError("--rates measures no networks", got="--time-limit", help="leave one of them out")
    named = target_named(make_options({"target": target, "threads": threads}))
    path = output or calibration_path(named)
    if output is not None:
        require_writable(output, option="-o")
    limit_s = TIME_LIMIT_S if time_limit is None else time_limit
    measure = measure_rates if rates else partial(calibrate, limit_s=limit_s - (time.monotonic() - began))
    with StageProgress(talk) as progress:
        found = measure(named, tell=progress)
    if why := doubt(found):
        talk.print(f"warning: {why}", style="yellow", soft_wrap=True)
    if found.left_out:
        more = f"--time-limit {2 * limit_s:.0f} gives them time"
        talk.print(f"note: {plural(len(found.left_out), 'set')} of networks left out: {more}", style="yellow")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_target(found, path)
    seconds = round(time.monotonic() - began, 1)
    emit(found, partial(draw_ceilings, seconds=seconds), as_json=json, schema="ceilings", file=str(path),
         seconds=seconds)  # fmt: skip


def read_knobs(given: list[str]) -> dict[str, float]:
    """``bandwidth=1.5`` as a factor."""
    knobs = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            factor = float(value)
        except ValueError:
            factor = 0.0
        if name not in KNOBS or not LEAST_FACTOR <= factor <= MOST_FACTOR:
            raise OptionError(
                "a what-if does not read", got=text,
                want=f"KNOB=FACTOR, from {LEAST_FACTOR:g} to {MOST_FACTOR:g}; knobs: {', '.join(KNOBS)}",
                help="--what-if bandwidth=1.5",
            )  # fmt: skip
        if name in knobs:
            raise OptionError(f"--what-if names {name!r} twice", got=text, want="each knob once")
        knobs[name] = factor
    return knobs
