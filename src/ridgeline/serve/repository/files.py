"""The files below a folder, as far as a change of one is a change of the model."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from ridgeline.base.files import KINDS
from ridgeline.serve.config.files import real_inside

MOST_FILES = 10_000
DEEPEST = 16
# names that writers give to files that are not whole yet
UNFINISHED = (".tmp", ".part", ".partial", ".crdownload", "~")

Stamp = tuple[str, int, int, int]  # name below the folder, size, mtime in ns, inode
Fingerprint = tuple[Stamp, ...]


def is_unfinished(name: str) -> bool:
    return name.endswith(UNFINISHED)


def is_ignored(name: str) -> bool:
    """Hidden, half written, or written by Python as it imports a step."""
    return name.startswith(".") or name == "__pycache__" or is_unfinished(name)


def stamp(path: Path, name: str) -> Stamp:
    found = path.stat()
    return name, found.st_size, found.st_mtime_ns, found.st_ino


def fingerprint(folder: Path, within: Path, *, without: Iterable[str] = ()) -> Fingerprint:
    """Stamps of every regular file below `folder`, but not in its entries `without`.

    `ValueError` for a link out of `within`, for a pipe or a device, and for more files than a model has.
    """
    stamps = []
    for path, name in _walk(folder, within, frozenset(without)):
        stamps.append(stamp(path, name))
        if len(stamps) > MOST_FILES:
            raise ValueError(f"has more than {MOST_FILES:,} files")
    return tuple(sorted(stamps))


def _walk(
    folder: Path, within: Path, without: frozenset[str] = frozenset(), prefix: str = "", depth: int = 0
) -> Iterator[tuple[Path, str]]:
    if depth > DEEPEST:
        raise ValueError(f"has folders more than {DEEPEST} deep")
    for entry in sorted(set(os.listdir(folder)) - without):
        path, name = folder / entry, f"{prefix}{entry}"
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            path = real_inside(within, path)
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode):  # it is walked, if it is part of this, where it really is
                continue
        if is_ignored(entry):
            continue
        if stat.S_ISDIR(mode):
            yield from _walk(path, within, prefix=f"{name}/", depth=depth + 1)
        elif stat.S_ISREG(mode):
            yield path, name
        else:
            raise ValueError(f"{name!r} is {KINDS.get(stat.S_IFMT(mode), 'no regular file')}")
