"""Arrays that the commands read from files and write to them, without pickled objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ridgeline.base.arrays import load_arrays
from ridgeline.base.files import read_regular
from ridgeline.base.spec import TensorSpec
from ridgeline.cli.arguments import parse_pairs
from ridgeline.errors import OptionError, did_you_mean


def read_inputs(given: Sequence[str] | None) -> dict[str, np.ndarray]:
    """The arrays that ``--input`` names: ``x=file.npy``, or ``file.npz`` with one array per input."""
    arrays: dict[str, np.ndarray] = {}
    for text in given or ():
        if "=" not in text and text.endswith(".npz"):
            found = _read_npz(Path(text))
        else:
            ((name, file),) = parse_pairs([text], option="--input", example="--input x=image.npy").items()
            found = {name: _read_npy(Path(file), name)}
        for name, array in found.items():
            if name in arrays:
                raise OptionError(f"--input gives {name!r} twice", got=text)
            arrays[name] = array
    return arrays


def split_raw(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of ``--input`` that name files of numpy's, and those that name any other file."""
    raw = [text for text in given if "=" in text and Path(text).suffix not in (".npy", ".npz")]
    return [text for text in given if text not in raw], raw


def read_raw_inputs(given: Sequence[str], specs: Mapping[str, TensorSpec]) -> dict[str, np.ndarray]:
    """Arrays from raw bytes, as trtexec loads them: row by row, in this machine's byte order."""
    from ridgeline.kernels.elements import numpy_dtype

    arrays: dict[str, np.ndarray] = {}
    pairs = parse_pairs(given, option="--input", example="--input x=image.bin")
    for name, file in pairs.items():
        if name not in specs:
            raise OptionError(f"the engine has no input {name!r}", help=did_you_mean(name, list(specs)))
        dtype, shape = numpy_dtype(specs[name].dtype), specs[name].shape
        wanted = prod(shape) * dtype.itemsize
        try:
            content = read_regular(Path(file))
        except OSError as error:
            raise OptionError(f"{file!r} cannot be read", got=error.strerror or str(error)) from error
        if len(content) != wanted:
            raise OptionError(
                f"{file!r} does not hold the bytes of {name!r}",
                got=f"{len(content):,} bytes",
                want=f"{wanted:,} bytes: {specs[name]}, row by row",
                help=f"--shapes {name}=… names another shape; a .npy file brings its own",
            )
        arrays[name] = np.frombuffer(content, dtype).reshape(shape).copy()
    return arrays


def _read_npy(path: Path, name: str) -> np.ndarray:
    loaded = load_arrays(path)
    if isinstance(loaded, np.ndarray):
        return loaded
    if name not in loaded:
        raise OptionError(f"{path} has no array {name!r}", help=did_you_mean(name, list(loaded)))
    return loaded[name]


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    loaded = load_arrays(path)
    if isinstance(loaded, np.ndarray):
        raise OptionError(f"{path} holds one array without a name", want=f"--input NAME={path}")
    return loaded


def save_array(file: BinaryIO, *, array: object) -> None:
    made = np.asarray(array)
    # numpy writes strings without pickling if they have one width
    np.save(file, made.astype(str) if made.dtype == object else made, allow_pickle=False)


def file_stem(name: str, *, taken: set[str]) -> str:
    """Output names hold slashes and colons; file names must not."""
    stem = "".join(c if c.isalnum() or c in "._-" else "_" for c in name).strip(".") or "output"
    used = {Path(path).stem for path in taken}
    if stem not in used:
        return stem
    return next(f"{stem}_{n}" for n in range(2, len(used) + 3) if f"{stem}_{n}" not in used)
