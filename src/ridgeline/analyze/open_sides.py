"""What `ridge compare` takes for A and B, read and opened.

``model.onnx`` and ``model.onnx@reference`` are the model as ONNX Runtime runs it with every optimisation off;
``@onnxruntime`` with its own optimisations; ``@floor`` one op at a time by PyTorch; ``@engine`` an engine
built now, and ``@fp16`` and the other precisions such an engine in that precision. ``model.ridge`` is an
engine file. ``outputs.npz`` and ``outputs.safetensors`` hold outputs that were saved.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ridgeline.analyze.compare_sides import EngineSide, FloorSide, RuntimeSide, Side
from ridgeline.analyze.saved_outputs import SUFFIXES, load_outputs
from ridgeline.base.arrays import data_files, load_sample
from ridgeline.builder import build, load_engine
from ridgeline.errors import OptionError, did_you_mean
from ridgeline.frontend.from_onnx import load
from ridgeline.options import PRECISIONS, Options, make_options
from ridgeline.plugins.entry_points import load_plugins

REFERENCE, RUNTIME, FLOOR, ENGINE = "reference", "onnxruntime", "floor", "engine"
LIBRARY = "ort"
# options of a build in another precision, which other sides do without
LOWERING = ("precision", "budget", "keep", "metric", "io", "data")
HOWS = (REFERENCE, RUNTIME, FLOOR, ENGINE, *PRECISIONS)


def open_side(
    text: str, options: Mapping[str, Any], *, is_unfused: bool = False, trust: bool = False
) -> Side:
    """The side that a word of the command line names. `options` are keywords of `build`."""
    path, how = split_side(text)
    if path.suffix in SUFFIXES:
        _refuse_how(text, how, "saved outputs are as they were computed")
        return load_outputs(path)
    if not path.is_file():
        raise OptionError(f"{path} does not exist", help=did_you_mean(path.name, _beside(path)))
    if path.suffix == ".ridge" or zipfile.is_zipfile(path):
        _refuse_how(text, how, "an engine file is built already")
        if is_unfused:
            raise OptionError(f"{path} is fused already", help="name its model: MODEL.onnx@engine --unfused")
        return EngineSide(text, load_engine(path, trust=trust))
    load_plugins()
    if how not in (REFERENCE, RUNTIME, FLOOR):
        return _built(text, path, how, options, is_unfused=is_unfused)
    asked = make_options({name: value for name, value in options.items() if name not in LOWERING})
    loaded = load(path, asked.limits)
    if how == FLOOR:
        return FloorSide(text, loaded, asked)
    return RuntimeSide(text, loaded, asked, is_optimised=how == RUNTIME and not is_unfused)


def split_side(text: str) -> tuple[Path, str]:
    """``model.onnx@fp16`` as path and word; a file whose own name has an @ is found first."""
    path, at, how = text.rpartition("@")
    if not at or Path(text).exists():
        return Path(text), REFERENCE
    if how not in HOWS:
        raise OptionError(f"{text!r} names no way to run {path}", want=", ".join(HOWS), help=_near(how))
    return Path(path), how


def _near(how: str) -> str:
    return did_you_mean(how, HOWS)


def _built(text: str, path: Path, how: str, options: Mapping[str, Any], *, is_unfused: bool) -> EngineSide:
    """An engine of the model. It is not verified unless asked for: what it computes is compared here."""
    asked = {"verify": "off", **options}
    if is_unfused:
        # a library that takes a run of ops at once shows nothing of what is inside either
        asked |= {"fusion": False, "without": (*options.get("without", ()), LIBRARY)}
    if how != ENGINE:
        asked["precision"] = how
    return EngineSide(text, build(path, **asked), load(path, Options().limits))


def _refuse_how(text: str, how: str, why: str) -> None:
    if how != REFERENCE:
        raise OptionError(f"{text!r}: {why}", help="leave out what follows the @")


def _beside(path: Path) -> list[str]:
    return sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else []


def samples_for(
    sides: Sequence[Side], data: Path | None, draws: int, saved: Callable[[], list[tuple[str, Any]]] | None
) -> list[tuple[str, Callable[[], Mapping[str, Any]]]]:
    """Named inputs, each read when its turn comes: of the data, of saved outputs, else drawn."""
    taker = next((side for side in sides if side.inputs), None)
    if data is not None:
        names = [port.name for port in taker.inputs] if taker is not None else []
        return [(path.name, partial(load_sample, path, names)) for path in data_files(data)]
    if saved is not None:
        return [(name, partial(dict, feeds)) for name, feeds in saved()]
    if taker is None:
        raise OptionError("neither side can compute anything", want="a model or an engine, or --data")
    return [(f"drawn {seed}", partial(taker.draw, seed)) for seed in range(draws)]
