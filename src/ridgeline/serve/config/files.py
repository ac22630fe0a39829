"""Files of a model's folder: inside it by their real paths, regular, and no larger than they may be."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ridgeline.base.files import KINDS, open_regular


def contained(folder: Path, name: str) -> Path:
    """The real path of a file that a configuration names; `ValueError` where it is not a file of the folder.

    `folder` is real already. Messages name no path outside of it: clients read them.
    """
    parts = name.split("/")
    if "\0" in name or "\\" in name or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{name!r} is not a path inside the model's folder")
    return require_regular(folder, folder.joinpath(*parts))


def require_regular(folder: Path, path: Path) -> Path:
    """The real path of a regular file in `folder`, or `ValueError`."""
    name = path.relative_to(folder).as_posix()
    real = real_inside(folder, path)
    mode = real.stat().st_mode
    if not stat.S_ISREG(mode):
        raise ValueError(f"{name!r} is {KINDS.get(stat.S_IFMT(mode), 'no regular file')}")
    return real


def real_inside(folder: Path, path: Path) -> Path:
    """Where a path leads to; `ValueError` outside of `folder`, or nowhere."""
    name = path.relative_to(folder).as_posix()
    try:
        real = path.resolve(strict=True)
    except FileNotFoundError:
        raise ValueError(f"{name!r} does not exist") from None
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, no permission, too long a name
        raise ValueError(f"{name!r}: {getattr(error, 'strerror', None) or 'leads nowhere'}") from None
    if not real.is_relative_to(folder):
        raise ValueError(f"{name!r} is a link out of the folder")
    return real


def read_bytes(path: Path, largest: int) -> bytes:
    """All of a regular file that is not a link; `ValueError` for anything else, and beyond so many bytes."""
    try:
        with open_regular(path, os.O_RDONLY | os.O_NOFOLLOW) as file:
            data = file.read(largest + 1)
    except OSError as error:
        raise ValueError(f"{path.name!r}: {error.strerror or 'not a regular file'}") from None
    if len(data) > largest:
        raise ValueError(f"{path.name!r} has more than {largest:,} bytes")
    return data


def read_text(path: Path, largest: int) -> str:
    try:
        return read_bytes(path, largest).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name!r} is not UTF-8 at byte {error.start}") from None
