"""Files that commands read and write: checked before the work, written whole or not at all."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import BinaryIO

from ridgeline.base.files import path_given, require_place, whole_file
from ridgeline.errors import ModelError, OptionError, PlanError


def require_file(path: Path) -> None:
    """Raise if the file does not exist, with near names in its folder."""
    if path_given(path, what="this", error=ModelError).is_file():
        return
    if path.is_dir():
        raise ModelError(f"{path} is a folder", want="an ONNX file or a .ridge file")
    folder = path.parent
    beside = sorted(p.name for p in folder.iterdir() if p.is_file()) if folder.is_dir() else []
    near = get_close_matches(path.name, beside, n=1)
    raise ModelError(
        f"{path} does not exist", help=f"did you mean {str(folder / near[0])!r}?" if near else ""
    )


def is_engine_file(path: Path) -> bool:
    """True for the suffix .ridge and for any zip: no ONNX file starts like a zip."""
    return path.suffix == ".ridge" or zipfile.is_zipfile(path)


def require_engine_file(path: Path) -> None:
    """Raise if this is not an engine file."""
    require_file(path)
    if not is_engine_file(path):
        raise PlanError(
            f"{path} is not an engine file",
            want="a .ridge file",
            help=f"ridge build {path}, then ridge show {path.stem}.ridge",
        )


def require_writable(path: Path, *, option: str, source: Path | None = None) -> None:
    """Raise before the build if the file cannot be written, or would replace its own source."""
    path_given(path, what=option)
    if source is not None and path.exists() and source.exists() and path.samefile(source):
        raise OptionError(f"{path} would replace what it is made from", want=f"another file after {option}")
    if path.is_dir():
        raise OptionError(f"{path} is a folder", want=f"a file, such as {option} {path / 'model.ridge'}")
    folder = require_place(path).parent
    if not folder.is_dir():
        raise OptionError(f"the folder {folder} does not exist", help=f"mkdir -p {folder}")
    if not os.access(folder, os.W_OK):
        raise OptionError(f"the folder {folder} cannot be written to", want=f"another place after {option}")


def require_distinct(written: Mapping[str, Path | None], read: Mapping[str, Path | None]) -> None:
    """Raise if a file that one option writes is written or read by another: its content would be lost."""
    seen = {path.resolve(): option for option, path in read.items() if path is not None}
    for option, path in written.items():
        if path is not None and seen.setdefault(path.resolve(), option) != option:
            other = seen[path.resolve()]
            raise OptionError(f"{other} and {option} name one file", got=str(path), want="a file for each")


def require_outputs(
    written: Mapping[str, Path | None], *, source: Path, inputs: Sequence[str] | None
) -> None:
    """Raise if a file that an option names cannot be written, or is one of ``--input x=file.npy``."""
    for option, path in written.items():
        if path is not None:
            require_writable(path, option=option, source=source)
    read = {f"--input {text}": Path(text.partition("=")[2] or text) for text in inputs or ()}
    require_distinct(written, read)


def make_folder(path: Path) -> Path:
    """Return the folder; make it if it does not exist."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"the folder {path} cannot be made", got=error.strerror or str(error)) from error
    return path


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """A reader sees the old file or the new one, never a part of it."""
    try:
        # with the permissions that the user's umask gives
        with whole_file(path, mode=0o666 & ~_umask()) as file:
            write(file)
    except OSError as error:
        raise OptionError(f"{str(path)!r} cannot be written", got=str(error)) from error


def _umask() -> int:
    # the umask cannot be read without setting it
    mask = os.umask(0)
    os.umask(mask)
    return mask
