"""What `ridge infer` and `ridge loadtest` send: arrays from files for the inputs of a server's model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.base.files import read_regular
from ridgeline.cli.arguments import parse_pairs
from ridgeline.cli.arrays import read_inputs, split_raw
from ridgeline.cli.render import talk
from ridgeline.errors import InputError, OptionError, did_you_mean
from ridgeline.serve.clients.tensors import ANY, ModelInfo, TensorInfo, from_json, random_arrays
from ridgeline.serve.datatypes import DATATYPES


def collect_arrays(
    info: ModelInfo,
    inputs: Sequence[str] | None,
    data: Path | None,
    shapes: Sequence[str] | None,
    *,
    batch: int | None,
    seed: int,
) -> dict[str, np.ndarray]:
    """The arrays of all these files, and random ones for the other inputs, which a note on stderr names."""
    asked = _parse_shapes(shapes)
    arrays, raw = split_raw(inputs or ())
    of_bytes = _read_raw(raw, info, asked)
    given: dict[str, np.ndarray] = {}
    for found in (read_inputs(arrays), of_bytes, _read_json(data, info)):
        for name in found.keys() & given.keys():
            raise OptionError(f"input {name!r} is given twice", got="--input and --data")
        given |= found
    for name in asked:
        if name in given and name not in of_bytes:
            raise OptionError(f"--shapes names {name!r}, and the file of that input has a shape of its own")
    if batch is not None:
        _require_rows(info, batch, {**asked, **{name: array.shape for name, array in given.items()}})
    made = random_arrays(info, given, shapes=asked, batch=batch, seed=seed)
    missing = [name for name in made if name not in given]
    if missing:
        talk.print(f"random values (seed {seed}) for {', '.join(missing)}", style="dim", highlight=False)
    return made


def _require_rows(info: ModelInfo, batch: int, known: Mapping[str, Sequence[int]]) -> None:
    """`--batch` sizes random inputs. It would be ignored for inputs whose shape is `known` otherwise."""
    sized = [port for port in info.inputs if port.shape[:1] == (ANY,)]
    if not sized:
        raise OptionError("--batch means nothing here: no input of the model takes any number of rows")
    for port in sized:
        shape = tuple(known.get(port.name, (batch,)))
        if shape[:1] != (batch,):
            raise OptionError(
                f"--batch {batch} does not fit input {port.name!r}", got=f"the shape {list(shape)}",
                help="leave --batch out: random inputs have as many rows as given ones",
            )  # fmt: skip


def _parse_shapes(given: Sequence[str] | None) -> dict[str, tuple[int, ...]]:
    pairs = parse_pairs(given or (), option="--shapes", example="--shapes x=1x3x48x320")
    for name, text in pairs.items():
        if not re.fullmatch(r"\d{1,9}(x\d{1,9})*", text):
            raise OptionError(
                f"--shapes gives no sizes for {name!r}", got=text, want=f"such as {name}=1x3x48x320"
            )
    return {name: tuple(map(int, text.split("x"))) for name, text in pairs.items()}


def _read_raw(
    given: Sequence[str], info: ModelInfo, shapes: Mapping[str, Sequence[int]]
) -> dict[str, np.ndarray]:
    """Elements as they lie in a file, whose size says how long an open dim is; a whole file as BYTES."""
    arrays = {}
    for name, file in parse_pairs(given, option="--input", example="--input x=image.bin").items():
        port = _port(info, name)
        element = DATATYPES[port.datatype].numpy
        try:
            content = read_regular(Path(file))
        except OSError as error:
            raise OptionError(f"{file!r} cannot be read", got=error.strerror or str(error)) from error
        shape = tuple(shapes.get(name, port.shape))
        if element is None:
            if any(size not in (ANY, 1) for size in shape):
                raise OptionError(
                    f"input {name!r} is of several texts, and {file!r} is one", got=str(port),
                    help="--data FILE.json holds several",
                )  # fmt: skip
            arrays[name] = np.array([content], object).reshape((1,) * len(shape))
            continue
        row = prod(shape[1:]) * element.itemsize
        if shape[:1] == (ANY,) and row > 0:
            shape = (len(content) // row, *shape[1:])
        if ANY in shape or prod(shape) * element.itemsize != len(content):
            raise InputError(
                f"{file!r} does not hold the bytes of {name!r}", got=f"{len(content):,} bytes",
                want=f"{port}, row by row", help=f"--shapes {name}=… says its sizes; .npy files bring theirs",
            )  # fmt: skip
        arrays[name] = np.frombuffer(content, element).reshape(shape)
    return arrays


def _read_json(path: Path | None, info: ModelInfo) -> dict[str, np.ndarray]:
    """``{"x": [[1, 2]]}``, or the ``inputs`` of a request as the protocol has it."""
    if path is None:
        return {}
    try:
        told: Any = json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(f"{str(path)!r} cannot be read as JSON", got=str(error)) from error
    if isinstance(told, dict) and isinstance(told.get("inputs"), list):
        try:
            listed = {each["name"]: (each["data"], each.get("shape")) for each in told["inputs"]}
        except (KeyError, TypeError, AttributeError) as error:
            raise OptionError(
                f"{path} is no request", got=repr(error), want="a name and data for each input"
            ) from None
    elif isinstance(told, dict):
        listed = {name: (data, None) for name, data in told.items()}
    else:
        raise OptionError(f"{path} holds no inputs", want='{"NAME": [[…]]}')
    return {name: _shaped(_port(info, name), data, shape) for name, (data, shape) in listed.items()}


def _shaped(port: TensorInfo, data: Any, shape: Any) -> np.ndarray:
    array = from_json(port, data)
    if shape is None:
        return array
    try:
        return array.reshape(shape)
    except (TypeError, ValueError):
        raise InputError(
            f"the data of input {port.name!r} does not have its shape",
            got=f"{array.size} elements",
            want=str(shape),
        ) from None


def _port(info: ModelInfo, name: str) -> TensorInfo:
    known = {port.name: port for port in info.inputs}
    if name not in known:
        raise OptionError(f"the model has no input {name!r}", help=did_you_mean(name, list(known)))
    return known[name]


def read_key(path: Path) -> str:
    """The first line that is no comment."""
    try:
        lines = read_regular(path).decode("ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"the key in {path} cannot be read", got=str(error)) from error
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise OptionError(f"{path} holds no key", want="one key a line; '#' begins a comment")
    return keys[0]
