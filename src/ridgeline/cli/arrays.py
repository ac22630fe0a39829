"""Arrays that the commands read from files and write to them, without pickled objects."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ridgeline.base.arrays import load_arrays
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
