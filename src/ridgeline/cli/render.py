"""How results leave a command, and figures as terminals show them. For tables see `grid.py`, `draw_*.py`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from ridgeline.base.result_json import SCHEMA_VERSION as SCHEMA_VERSION
from ridgeline.base.result_json import document as document
from ridgeline.base.result_json import to_json as to_json
from ridgeline.base.units import DASH as DASH
from ridgeline.base.units import duration as duration
from ridgeline.base.units import error_size as error_size
from ridgeline.base.units import number as number
from ridgeline.base.units import percent as percent
from ridgeline.base.units import plural as plural
from ridgeline.base.units import size as size
from ridgeline.errors import visible

PIPE_WIDTH = 100

Report = TypeVar("Report")


class VisibleConsole(Console):
    """Shows names of models and files as they are, but lets none of them speak to the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            is_ours = bool(segment.control)
            yield segment if is_ours else Segment(visible(segment.text), segment.style)


def _open_closed_streams() -> None:
    """A shell may start a command without stdout or stderr (``>&-``): then nobody reads what goes there."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115  # to the end


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    # no markup: shapes and node names are full of brackets
    return VisibleConsole(
        stderr=stderr, width=None if stream.isatty() else PIPE_WIDTH, highlight=False, markup=False
    )


_open_closed_streams()
# results go to `out`, talk and progress to `talk`, so that a pipe gets results only; errors are never quiet
out = _console(stderr=False)
talk = _console(stderr=True)
complain = _console(stderr=True)


def emit(
    report: Report,
    draw: Callable[[Report, Console], None],
    *,
    as_json: bool,
    schema: str,
    **more: Any,
) -> None:
    """The one way a result leaves a command. `more` is for readers of JSON: the paths of what was written."""
    if as_json:
        sys.stdout.write(to_json(document(schema, report, **more)) + "\n")
    else:
        draw(report, out)


def emit_error(error: Mapping[str, Any], status: int) -> None:
    """As JSON on stdout, where results would be; its text is on stderr already."""
    sys.stdout.write(to_json(document("error", error, exit=status)) + "\n")


def say_error(text: str) -> None:
    complain.print("error: ", style="bold red", end="")
    complain.print(text, soft_wrap=True)


def ms_format(smallest_us: float) -> Callable[[float], str]:
    """For columns that say ms in their head: three digits for the smallest, the same decimals for all."""
    ms = smallest_us / 1e3
    decimals = 2 if ms >= 10 else 3 if ms >= 0.1 else 4
    return lambda us: f"{us / 1e3:.{decimals}f}"


def behind(part: float | None) -> str:
    """``+12 %`` for something slower, ``2.4×`` once percents stop helping."""
    if part is None:
        return DASH
    if abs(part) < 0.005:
        return "0 %"
    return f"{part * 100:+.0f} %" if part < 1 else f"{part + 1:.1f}×" if part < 99 else f"{part + 1:,.0f}×"


def ratio(value: float, *, is_noise: bool) -> Text:
    """As a fraction of the peer's speed: green above parity, red below, plain where it is noise."""
    return Text(f"{value:.2f}×", style="" if is_noise else "bold green" if value > 1 else "bold red")


def bar(share: float | None, width: int = 12) -> str:
    """A bar in eighths of a cell."""
    eighths = round((share or 0.0) * width * 8)
    full, rest = divmod(min(eighths, width * 8), 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")


def shape_text(shape: Sequence[int]) -> str:
    """``1×3×48×192``"""
    return "×".join(map(str, shape)) or "scalar"
