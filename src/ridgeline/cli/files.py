"""Files the commands write: complete or not there at all, and checked before the work that leads to them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from ridgeline.errors import OptionError


def require_writable(path: Path, *, option: str) -> None:
    """Refuse now what would fail after a minute of building."""
    folder = path.parent
    if path.is_dir():
        raise OptionError(f"{path} is a folder", want=f"a file, such as {option} {path / 'model.ridge'}")
    if not folder.is_dir():
        raise OptionError(f"the folder {folder} does not exist", help=f"mkdir -p {folder}")
    if not os.access(folder, os.W_OK):
        raise OptionError(f"the folder {folder} cannot be written to", want=f"another place after {option}")


def make_folder(path: Path) -> Path:
    """The folder, made if need be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"the folder {path} cannot be made", got=error.strerror or str(error)) from error
    return path


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """A reader sees the old file or the new one, never a part of it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        # mkstemp makes files for the owner only; a result is as readable as any other file
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    # there is no way to read it without setting it
    mask = os.umask(0)
    os.umask(mask)
    return mask
