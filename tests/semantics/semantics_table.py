"""All cases, and the list of those on which ONNX Runtime and the onnx reference disagree, with our choice."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import semantics_moves
import semantics_pointwise
import semantics_rows
import semantics_windows
from semantics_case import Case
from semantics_engines import Result

TABLE = Path(__file__).with_name("disagreements.txt")
HEAD = """\
# Cases on which ONNX Runtime (optimisations off) and the onnx reference disagree, and whom engines follow.
# ort, reference: one of the two; either: one here and the other there, element by element; wide: a half that
# wider sums keep from overflowing. The same without ONNX Runtime, on the floor alone, and at new shapes from
# the first call on. A step that a build gives to ONNX Runtime follows ort, from the first call on too.
# Written by walk.py.
"""
DISAGREE = ("ort", "reference", "either", "wide")


def all_cases() -> list[Case]:
    modules = (semantics_pointwise, semantics_rows, semantics_moves, semantics_windows)
    return [case for module in modules for case in module.all_cases()]


def choices(results: Iterable[Result]) -> dict[str, set[str]]:
    """Of each case on which the parties disagree, whom our results agree with."""
    made: dict[str, set[str]] = {}
    for result in results:
        if result.verdict in DISAGREE:
            made.setdefault(result.name, set()).add(result.verdict)
    return made


def changing(results: Iterable[Result]) -> list[str]:
    """Where the first call at a new size agrees with another party than later calls do."""
    made: dict[tuple[str, str, str], list[str]] = {}
    for result in results:
        rows, _, _ = result.call.partition(",")
        made.setdefault((result.configuration, result.name, rows), []).append(result.verdict)
    return [", ".join((*key, *who)) for key, who in made.items() if len(set(who)) > 1]


def read_table() -> dict[str, str]:
    lines = [line for line in TABLE.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.rsplit(": ", 1) for line in lines)


def write_table(found: dict[str, set[str]]) -> None:
    rows = [f"{name}: {' or '.join(sorted(who))}" for name, who in sorted(found.items())]
    TABLE.write_text(HEAD + "\n".join(rows) + "\n")
