"""Saved traces: written whole or not at all, and checked when they are read.

The type itself stands in `plan/trace.py`, since engines return it and a plan's reader needs no framework.
"""

from __future__ import annotations

from pathlib import Path

from ridgeline.base.files import path_given, read_regular, whole_file
from ridgeline.errors import OptionError
from ridgeline.plan.trace import (
    HostTime,
    KernelTime,
    MemoryUse,
    NodeTime,
    NodeWork,
    StepTime,
    Trace,
)

__all__ = [
    "HostTime", "KernelTime", "MemoryUse", "NodeTime", "NodeWork", "StepTime", "Trace", "read_trace",
    "save_trace",
]  # fmt: skip


def save_trace(trace: Trace, path: str | Path) -> Path:
    """Write the trace as JSON: whole, or not at all."""
    target = path_given(path, what="a trace")
    try:
        with whole_file(target) as file:
            file.write(trace.to_json().encode())
    except OSError as error:
        raise OptionError(f"the trace cannot be written to {str(target)!r}", got=str(error)) from error
    return target


def read_trace(path: str | Path) -> Trace:
    """A saved trace; `OptionError` if the file is missing, cut off, or something else."""
    source = path_given(path, what="a trace")
    try:
        content = read_regular(source)
    except OSError as error:
        raise OptionError(
            f"the trace {str(source)!r} cannot be read",
            got=error.strerror or str(error),
            help="ridge profile ENGINE --save profile.json makes one",
        ) from error
    return Trace.from_json(content, name=repr(str(source)))
