"""What a build should say of its choices: guesses, predictions, unsteady timings, a time that was over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ridgeline.frontend.profiles import shapes_flags
from ridgeline.plan.report import GUESSED
from ridgeline.select.context import Selection, SelectionContext
from ridgeline.select.shapes import Shapes


def every_selection(contexts: Sequence[SelectionContext], selections: Sequence[Selection]) -> list[Selection]:
    """Those of the bodies of control flow too."""
    return [*selections, *(inner for context in contexts for inner in context.body_selections)]


def time_limit_warning(selections: Sequence[Selection], limit_s: float | None) -> Iterator[str]:
    """What the time limit left out; nothing if it left out nothing."""
    partial, guessed = (sum(getattr(each, name) for each in selections) for name in ("partial", "guessed"))
    if not partial or limit_s is None:
        return
    every = sum(each.timed for each in selections)
    yield (
        f"the time limit of {limit_s:g} s was over before all candidates were timed: {partial} of {every} "
        f"choices are between fewer, {guessed} of them by what won on other regions; --time-limit "
        f"{2 * limit_s:g} gives them time (in Python time_limit=), and a build with the same --cache goes on "
        "from here"
    )


def build_warnings(shapes: Shapes, selection: Selection) -> Iterator[str]:
    if shapes.is_guess:
        yield f"{GUESSED}; say which ones matter: {shapes_flags(shapes.opt)}"
    for name, op in shapes.sized_by.items():
        yield (
            f"input {name!r} is a shape tensor (read by {op}): what depends on it runs as islands; "
            f"say which values it takes to have it planned, such as --shapes '{name}=[1..8]'"
        )
    if selection.predicted:
        count, is_one = selection.predicted, selection.predicted == 1
        were, them = ("choice was", "it") if is_one else ("choices were", "them")
        yield f"{count} {were} predicted: the first run on the GPU times and settles {them}"
    for place in selection.measured_at:
        yield f"choices were read from timings measured elsewhere: {place}"
    if selection.unsteady:
        yield (
            f"{selection.unsteady} of {selection.timed} timings were unsteady: the machine was busy; "
            "build again when it is quiet before you trust the choices"
        )
