"""What a build is doing, on a terminal, where nobody asked to be told. Elsewhere its stages are logged only.

The one place where the library writes to a stream: a build can take minutes, and silence looks like a hang.
`progress=False` keeps it silent.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from shutil import get_terminal_size
from time import monotonic
from typing import Literal, TextIO, TypeAlias

# progress(stage, done, total, detail): called as work gets done; total is 0 while it is not yet known
Progress: TypeAlias = Callable[[str, int, int, str], None]

REFRESH_S = 0.1
ERASE = "\r\x1b[2K"


@contextmanager
def shown(progress: Progress | Literal[False] | None) -> Iterator[Progress | Literal[False] | None]:
    """The caller's own progress; without one, a line on the terminal where there is one."""
    if progress is not None or sys.stderr is None or not sys.stderr.isatty():
        yield progress
        return
    line = _Line(sys.stderr)
    try:
        yield line
    finally:
        line.end()


class _Line:
    """One line that is written over, and gone at the end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._stage, self._drawn = stream, "", 0.0

    def __call__(self, stage: str, done: int, total: int, detail: str = "") -> None:
        now = monotonic()
        if stage == self._stage and now - self._drawn < REFRESH_S:
            return
        self._stage, self._drawn = stage, now
        count = f" {done}/{total}" if total else ""
        line = f"ridgeline: {stage}{count} {detail}".rstrip()
        self._stream.write(ERASE + line[: get_terminal_size().columns - 1])
        self._stream.flush()

    def end(self) -> None:
        if self._stage:
            self._stream.write(ERASE)
            self._stream.flush()
