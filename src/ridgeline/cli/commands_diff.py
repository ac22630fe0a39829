"""`ridge diff`: what changed between two builds or measurements, layer by layer, and whether it is noise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.arguments import AsJson
from ridgeline.cli.exits import FAILED_GATE
from ridgeline.cli.files import require_file
from ridgeline.cli.render import emit, plural, say_error
from ridgeline.errors import OptionError

Compared = Annotated[Path, typer.Argument(help="engine, profile or benchmark file", show_default=False)]


def diff(
    a: Compared,
    b: Compared,
    fail_over: Annotated[
        str, typer.Option(metavar="PERCENT", help="a loss beyond noise that fails: exit status 3")
    ] = "3%",
    all: Annotated[bool, typer.Option("--all", help="rows without a change too")] = False,
    json: AsJson = False,
) -> None:
    """Compare two builds, profiles or benchmarks: which layers changed, by how much, and why.

    Exit status 3 when B is slower than A beyond noise, as a whole or in a layer.

    Examples:

      ridge diff old.json new.json --fail-over 5%        (profiles: ridge profile ENGINE --save FILE)

      ridge diff yesterday.ridge today.ridge
    """
    from ridgeline.analyze.diff import diff
    from ridgeline.analyze.diff_sides import read_side
    from ridgeline.cli.draw_diff import draw_diff

    limit = read_percent(fail_over)
    for path in (a, b):
        require_file(path)
    found = diff(read_side(a), read_side(b), fail_over=limit)
    emit(
        found, lambda report, console: draw_diff(report, console, every=all), as_json=json, schema="diff",
        a=str(a), b=str(b),
    )  # fmt: skip
    if found.failed:
        names = ", ".join(row.name for row in found.slower[:3])
        say_error(
            f"{plural(len(found.slower), 'layer')} slower beyond noise: {names}"
            if found.slower
            else "the whole run is slower beyond noise"
        )
        raise typer.Exit(FAILED_GATE)


def read_percent(text: str) -> float:
    """``3%``, ``3`` or ``0.5 %`` as a share."""
    try:
        value = float(text.replace("%", "").strip()) / 100
    except ValueError:
        value = -1.0
    if not 0 <= value < 10:
        raise OptionError("--fail-over does not read as a percentage", got=text, want="3% or 0.5%")
    return value
