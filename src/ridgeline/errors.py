"""Every error a user can meet: what failed and where, what we got, what we want, what cures it.

RidgelineError                 the user can act on it: no traceback in the CLI, exit 1
├─ ModelError            not a loadable model
├─ UnsupportedError      a fine model we cannot fully run (all of it listed)
├─ BuildError            a site nobody would take, or a build that failed its own checks
├─ VerifyError           the engine does not compute what the model computes (a BuildError)
├─ PrecisionError        no engine in the precision that was asked for (a BuildError)
├─ PlanError             damaged, stale, or made for another target
├─ InputError            tensors that do not fit the plan's signature
├─ LimitError            more nodes, trips or memory than a budget allows; an option raises it
├─ ProcessError          a forked process without its parent's threads, or two threads in one context
├─ OptionError           an option that does not exist or does not fit
├─ SampleShapeError      a data set whose samples have other shapes than the inputs (an OptionError)
├─ PluginError           a plugin that is missing, or does not keep to what it states
└─ DeviceError           this machine's GPU cannot run what was asked for
InternalError            our bug: exit 70; the traceback with -v
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any
from unicodedata import category

LISTED = 10
# controls, formats such as a change of direction, separators of lines, halves of characters
HIDDEN = ("Cc", "Cf", "Zl", "Zp", "Cs")
# what ONNX Runtime says before its reason: a status, the node, a place in its sources
_STATUS = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
_NODE = re.compile(
    r"Non-zero status code returned while running (\w+) node\. Name:'([^']*)' Status Message: "
)
_PLACE = re.compile(r"\S*/onnxruntime/\S+:\d+ [^()]*\([^()]*\)(?: const)? ")


class RidgelineError(Exception):
    """Something the user can mend."""

    def __init__(
        self, what: str, *, got: str = "", want: str = "", rows: Iterable[str] = (), help: str = ""
    ) -> None:
        self.what, self.got, self.want, self.help = what, got, want, help
        self.rows = tuple(rows)
        super().__init__(self.text())

    def text(self) -> str:
        """Text of a file or a model inside it cannot pass for a line of ours, nor speak to the terminal."""
        lines = [self.what]
        lines += [f"  {row}" for row in self.rows[:LISTED]]
        if len(self.rows) > LISTED:
            lines.append(f"  … and {len(self.rows) - LISTED} more")
        if self.got:
            lines.append(f"  got   {self.got}")
        if self.want:
            lines.append(f"  want  {self.want}")
        if self.help:
            lines.append(f"  help: {self.help}")
        return visible("\n".join(line.replace("\n", "\n      ") for line in lines))


class ModelError(RidgelineError):
    """Not a loadable model."""


class UnsupportedError(RidgelineError):
    """A fine model that we cannot fully run."""


class BuildError(RidgelineError):
    """No tactic for a site, or a build that failed its own checks."""


class VerifyError(BuildError):
    """The engine does not compute what the model computes. `checks` are the comparisons that were made."""

    def __init__(self, what: str, *, checks: Sequence[Any] = (), **parts: Any) -> None:
        self.checks = tuple(checks)
        super().__init__(what, **parts)


class PrecisionError(BuildError):
    """The model cannot have the precision that was asked for, under its budget or at these shapes."""


class PlanError(RidgelineError):
    """An engine file that is damaged, stale, or made for another target."""


class InputError(RidgelineError):
    """Tensors that do not fit the plan's signature."""


class LimitError(RidgelineError):
    """More nodes, loop trips or memory than a budget allows. `limit` is its name in `options.Limits`."""

    def __init__(self, what: str, *, limit: str, allowed: int, got: int | None = None) -> None:
        self.limit = limit
        noun, number = limit.replace("_", " "), "NUMBER" if got is None else str(got)
        super().__init__(
            what,
            got=f"more than {allowed:,} {noun}" if got is None else f"{got:,} {noun}",
            want=f"at most {allowed:,}",
            help=f"if that is meant: --limit {limit}={number}, in Python limits={{{limit!r}: {number}}}",
        )


class ProcessError(RidgelineError):
    """A forked process without the threads, or the GPU, of its parent; or two threads in one context."""


class OptionError(RidgelineError):
    """An option that does not exist or does not fit."""


class SampleShapeError(OptionError):
    """A sample of a data set has another shape than the model takes."""


class DeviceError(RidgelineError):
    """This machine's GPU cannot run what was asked for."""

    is_fatal = False  # nothing else this process asks of the GPU will succeed


class TargetError(RidgelineError):
    """A target file that does not read as one, or a machine that nothing is known of."""


class PluginError(RidgelineError):
    """A plugin that is missing, cannot be registered, or does not keep to what it states."""


class InternalError(Exception):
    """Our bug, not the user's."""


def first_line(error: BaseException, limit: int = 200) -> str:
    """What a library said, short enough for a row: of ONNX Runtime, the node and the reason."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    line = _NODE.sub(lambda found: " ".join(filter(None, found.groups())) + ": ", _STATUS.sub("", line))
    return _PLACE.sub("", line)[:limit]


def last_lines(error: BaseException, limit: int = 600) -> str:
    """All that a library said, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:limit] or type(error).__name__


def failure(error: BaseException) -> str:
    """A refusal that is somebody's exception; of ours, with the first thing that it lists."""
    details = (error.got, *error.rows) if isinstance(error, RidgelineError) else ()
    said = ": ".join([type(error).__name__, first_line(error), *list(filter(None, details))[:1]])
    return f"failed: {said}"


def visible(text: str) -> str:
    """Text with every character written out that would move the cursor, or hide or turn other text."""
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    return "".join(c if c in "\n\t" or category(c) not in HIDDEN else ascii(c)[1:-1] for c in text)


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """``; did you mean 'x'?`` or, with no near match, the names there are."""
    by_lower = {each.lower(): each for each in reversed(known)}
    near = get_close_matches(name, known, n=1) or get_close_matches(name.lower(), by_lower, n=1)
    if near:
        return f"did you mean {by_lower.get(near[0].lower(), near[0])!r}?"
    return "known: " + ", ".join(known[:LISTED]) + (", …" if len(known) > LISTED else "")
