"""Files on disk: paths as users give them, files written whole or not at all, folders that are private."""

from __future__ import annotations

import atexit
import fcntl
import fnmatch
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO

from ridgeline.errors import OptionError, RidgelineError

# of files that are being written; whoever writes one holds a lock on it, so that others see it is in use
PART = ".ridgeline-part"
_log = logging.getLogger(__name__)
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def path_given(given: object, *, what: str, error: type[RidgelineError] = OptionError) -> Path:
    """A path from outside: what the system cannot take as one is refused here, before anybody asks for it."""
    if not isinstance(given, (str, os.PathLike)):
        raise error(f"{what} is not a path", got=repr(given)[:200], want="such as 'model.ridge'")
    try:
        path = Path(given)
        path.lstat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass  # whoever reads or writes there says so
    except (OSError, ValueError, TypeError) as problem:  # too long, a NUL in it, a PathLike of bytes
        why = getattr(problem, "strerror", None) or str(problem)
        raise error(
            f"{what} is not a path", got=f"{repr(given)[:200]}: {why}", want="such as 'model.ridge'"
        ) from problem
    return path


def place_of(path: Path) -> Path:
    """Where a file of this name is written: a link leads to the file it points at.

    `OSError` where something else lies: a file that is moved there would take the place of a device.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return path
    place = path
    if stat.S_ISLNK(found.st_mode):
        try:
            found = path.stat()  # the system itself refuses links that others left in a shared folder
        except FileNotFoundError:
            raise OSError(f"{str(path)!r} is a link to nothing") from None
        place = Path(os.path.realpath(path))
    if not stat.S_ISREG(found.st_mode):
        kind = KINDS.get(stat.S_IFMT(found.st_mode), "no regular file")
        raise OSError(f"{str(path)!r} is {kind if place is path else f'a link to {kind}'}")
    return place


def require_place(path: Path) -> Path:
    """As `place_of`, for what a user named to be written."""
    try:
        return place_of(path)
    except OSError as error:
        raise OptionError(
            f"{str(path)!r} cannot be written", got=str(error), want="a regular file, or a name that is free"
        ) from error


@contextmanager
def whole_file(path: Path, *, mode: int = 0o644) -> Iterator[BinaryIO]:
    """A file to write to; it appears at `path` in one step when the block ends, and not at all if it raises.

    Only a regular file is replaced: see `place_of`. What writers left in this folder that were killed is
    removed first.
    """
    path = place_of(path)
    sweep(path.parent)
    file, part = _new_part(path)
    try:
        with file:
            yield file
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _new_part(path: Path) -> tuple[BinaryIO, Path]:
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=PART)
        file = os.fdopen(handle, "w+b")
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:  # else another process swept it before it was locked
            return file, Path(name)
        file.close()


def sweep(folder: Path) -> None:
    """Remove files that a killed process left half written: nobody holds their lock any more."""
    for part in folder.glob(f".*{PART}"):
        with suppress(OSError):
            handle = os.open(part, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                part.unlink()
            finally:
                os.close(handle)


def open_regular(path: Path, flags: int = os.O_RDONLY) -> BinaryIO:
    """A file to read; `OSError` for a pipe or a device, which could block or never end."""
    handle = os.open(path, flags | os.O_NONBLOCK, 0o600)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(f"{str(path)!r} is not a regular file")
    return os.fdopen(handle, "rb")


def read_regular(path: Path) -> bytes:
    """All of a file that a user names; see `open_regular`: a device may have no end."""
    with open_regular(path) as file:
        return file.read()


def why_not_private(path: Path) -> str | None:
    """Why code must not be loaded from this file or folder: somebody else may have put it there."""
    try:
        found = path.lstat()
    except OSError as error:
        return f"{path}: {error.strerror}"
    if not (stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)):
        return f"{path} is a link or a device"
    if found.st_uid != os.geteuid():
        return f"{path} belongs to user {found.st_uid}"
    if found.st_mode & OTHERS_MAY_WRITE:
        return f"{path} may be written by others ({stat.S_IMODE(found.st_mode):o})"
    return None


def private_folder(*wanted: Path) -> Path:
    """The first of these that only this user can write to, made if need be; else one for this process."""
    for folder in wanted:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            reason = why_not_private(folder)
        except OSError as error:
            reason = f"{folder}: {error.strerror}"
        if reason is None and os.access(folder, os.W_OK):
            return folder
        _log.info("compiled code is kept elsewhere: %s", reason or f"{folder} cannot be written to")
    return _folder_of_this_process()


@cache
def _folder_of_this_process() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="ridgeline-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def prune(folder: Path, pattern: str, *, kept: int) -> None:
    """Remove the files that were used longest ago; those of the pattern beyond so many."""
    names = fnmatch.filter(os.listdir(folder), pattern)
    if len(names) <= kept:  # asked after every file that is written: reading thousands of dates takes long
        return
    found = []
    for path in map(folder.joinpath, names):
        with suppress(OSError):  # another process prunes too
            found.append((path.lstat().st_mtime, path))
    for _, path in sorted(found)[: max(0, len(found) - kept)]:
        path.unlink(missing_ok=True)
