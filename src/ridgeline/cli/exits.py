"""Every exit status of `ridge`. docs/command-line.md has the same table, and a test compares the two."""

from __future__ import annotations

DONE, USER_ERROR, USAGE, FAILED_GATE, BUG, STOPPED = 0, 1, 2, 3, 70, 130

MEANINGS = {
    DONE: "done",
    USER_ERROR: "something you can mend: a file, an option, a model; `ridge lint` found errors",
    USAGE: "the command line does not read: no such command or option, a number out of range",
    FAILED_GATE: "a gate failed: an engine or a peer does not compute what the model computes; "
    "`ridge diff` found a layer or the run slower beyond noise; "
    "`ridge doctor --strict` found what distorts a benchmark",
    BUG: "a bug in ridgeline: please report it, with the traceback that `-v` shows",
    STOPPED: "stopped by Ctrl-C; no engine was written",
}
