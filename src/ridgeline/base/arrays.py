"""Arrays of users' files, read without pickled objects."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ridgeline.base.files import open_regular
from ridgeline.errors import OptionError

# how .npy and .npz files begin
ARRAY, ZIP = b"\x93NUMPY", b"PK"


def load_arrays(path: Path) -> np.ndarray | dict[str, np.ndarray]:
    """The array of a .npy file, or those of a .npz file by name."""
    try:
        # the file is opened here because np.load leaves a file that it cannot read open
        with open_regular(path) as file:
            _require_arrays(file)
            loaded = np.load(file, allow_pickle=False)
            return loaded if isinstance(loaded, np.ndarray) else {k: loaded[k] for k in loaded.files}
    except FileNotFoundError:
        raise OptionError(f"{path} does not exist", want="a .npy or .npz file") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise OptionError(
            f"{str(path)!r} does not load as an array",
            got=str(error).splitlines()[0] if str(error) else type(error).__name__,
            want="a .npy or .npz file without pickled objects, as numpy.save writes it",
        ) from error


def _require_arrays(file: BinaryIO) -> None:
    """Raise for a file that numpy would take for a pickle."""
    if not file.read(len(ARRAY)).startswith((ARRAY, ZIP)):
        raise ValueError("it begins like neither of the two")
    file.seek(0)


def load_sample(path: Path, inputs: Sequence[str]) -> dict[str, np.ndarray]:
    """A .npz file with one array for each of these inputs."""
    found = load_arrays(path)
    if isinstance(found, np.ndarray):
        raise OptionError(f"{path.name} holds one array without a name", want=f"arrays {', '.join(inputs)}")
    missing = [name for name in inputs if name not in found]
    if missing:
        raise OptionError(f"{path.name} holds no array for {missing[0]!r}", got=", ".join(found))
    for name in found:
        if name not in inputs:
            raise OptionError(
                f"{path.name} holds {name!r}, which is no input of the model",
                want=", ".join(inputs),
                help="files hold inputs alone; docs/precision.md says how a metric gets labels",
            )
    return found


def data_files(folder: Path) -> list[Path]:
    """The user's files of inputs, at least one."""
    if not folder.exists():
        raise OptionError(f"there is no folder {str(folder)!r}", want="a folder of .npz files, or one")
    files = [folder] if folder.is_file() else sorted(folder.glob("*.npz"))
    if not files:
        raise OptionError(f"no .npz file is in {str(folder)!r}", want="files with one array per input")
    return files
