"""`ridge build` and `ridge run`: from a model to an engine file, from an engine to outputs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.cli.arguments import (
    AsJson,
    EngineOrModel,
    Inputs,
    Model,
    NewEngine,
    Seed,
    Trust,
)
from ridgeline.cli.files import is_engine_file, make_folder, require_file, require_writable, write_atomically
from ridgeline.cli.grid import put_lines
from ridgeline.cli.render import emit, out, size, talk
from ridgeline.cli.shared_options import with_all_build_options, with_build_options
from ridgeline.errors import ModelError


@with_all_build_options
def build(
    model: Model,
    output: NewEngine = None,
    json: AsJson = False,
    *,
    options: dict[str, Any],
) -> None:
    """Build an engine from an ONNX model, verify it, and save it.

    Examples:

      ridge build model.onnx

      ridge build model.onnx -o fast.ridge --shapes x=1..8x3x224x224 --cache timings.toml

      ridge build model.onnx --shapes x=1..8..32x3x224x224 --tune-at min,max

      ridge build model.onnx --profile x=1x3x224x224 --profile x=8x3x224x224 --pad

      ridge build model.onnx --lock ridge.lock     (the same choices every time)

      ridge build model.onnx --target cuda:sm_90   (for another machine; no GPU is needed here)
    """
    from ridgeline.analyze.show import summarise
    from ridgeline.cli.draw_plan import draw_built
    from ridgeline.cli.engines import build_engine

    require_file(model)
    if is_engine_file(model):
        raise ModelError(f"{model} is built already", want="an ONNX file", help=f"ridge show {model}")
    path = output or Path(f"{model.stem}.ridge")
    require_writable(path, option="-o", source=model)
    engine = build_engine(model, options)
    engine.save(path)
    emit(
        summarise(engine.plan, engine.report), draw_built, as_json=json, schema="engine",
        source=str(model), file=str(path), file_bytes=path.stat().st_size,
    )  # fmt: skip
    if not json:
        put_lines([("file", f"{path} ({size(path.stat().st_size)})")], out)


@with_build_options
def run(
    engine: EngineOrModel,
    input: Inputs = None,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="folder for the outputs, one .npy file each")
    ] = None,
    seed: Seed = 0,
    trust: Trust = False,
    json: AsJson = False,
    *,
    options: dict[str, Any],
) -> None:
    """Run an engine once, on files or on random inputs.

    Examples:

      ridge run model.ridge --input x=image.npy --output results

      ridge run model.onnx                         (random inputs, built on the fly)
    """
    from ridgeline.analyze.tensors import describe
    from ridgeline.cli.arrays import file_stem, read_inputs, save_array
    from ridgeline.cli.draw_bench import draw_outputs
    from ridgeline.cli.engines import complete_feeds, load_or_build, tell_notes
    from ridgeline.runtime.non_tensor import flattened

    given = read_inputs(input)
    folder = make_folder(output) if output else None
    built = load_or_build(engine, options, trust=trust)
    outputs = built.run(complete_feeds(built, given, seed=seed))
    tell_notes(built)
    files: dict[str, str] = {}
    if folder:
        for name, array in flattened(outputs).items():
            path = folder / f"{file_stem(name, taken=set(files.values()))}.npy"
            write_atomically(path, partial(save_array, array=array))
            files[name] = str(path)
        talk.print(f"{len(files)} file(s) written to {folder}", style="dim")
    emit(describe(outputs, files), draw_outputs, as_json=json, schema="outputs", file=str(engine))
