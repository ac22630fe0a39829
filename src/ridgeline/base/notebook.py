"""Values that show themselves in a notebook: as small tables in HTML, and as DataFrames of pandas.

The HTML is complete in itself, takes the notebook's own colours, and holds every name as text.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from ridgeline.base.units import DASH, count_text, duration, error_size, number, percent, size
from ridgeline.errors import UnsupportedError, visible

MOST_ROWS = 40
LONGEST = 90
_STYLE = "border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; margin: 4px 0 10px;"
_CELL = "padding: 2px 10px; border-bottom: 1px solid rgba(128, 128, 128, .25); text-align: {side};"
_SHARES = ("share", "roofline", "coverage", "behind")
_ERRORS = ("max_error", "tolerance", "relative_l2", "max_absolute")


@dataclass(frozen=True)
class Table:
    """Rows under a title. All have the same keys, and the ends of these say the units: `_us`, `_bytes`."""

    title: str
    rows: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class View:
    """One line about a value, and its tables; the first is the one that `to_pandas` gives."""

    headline: str
    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()


class Notebook:
    """What can be shown in a notebook. A class says what it shows in `_view`."""

    def _view(self) -> View:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return view_html(self._view())

    def to_pandas(self) -> Any:
        """The rows of the main table as a `pandas.DataFrame`."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise UnsupportedError(
                "to_pandas needs pandas, which is not installed", help="pip install pandas"
            ) from error
        table = self._view().tables[0]
        return pandas.DataFrame([dict(row) for row in table.rows])


def view_html(view: View) -> str:
    """A fragment of HTML without scripts, ids or anything to load."""
    parts = [f"<div><b>{_text(view.headline, 300)}</b>"]
    parts += [f"<div style='opacity: .8'>{_text(note, 300)}</div>" for note in view.notes]
    parts += [_table_html(table) for table in view.tables if table.rows]
    return "".join((*parts, "</div>"))


def _table_html(table: Table) -> str:
    # a column without a value in any row is not shown; `to_pandas` has it
    names = [name for name in table.rows[0] if any(row[name] not in (None, "") for row in table.rows)]
    numeric = {
        name
        for name in names
        if all(isinstance(row[name], (int, float, type(None))) for row in table.rows)
        and not any(isinstance(row[name], bool) for row in table.rows)
    }
    sides = {name: _CELL.format(side="right" if name in numeric else "left") for name in names}
    head = "".join(f"<th style='{sides[name]}'>{_text(heading(name))}</th>" for name in names)
    lines = [
        "".join(f"<td style='{sides[name]}'>{_text(cell_text(name, row[name]))}</td>" for name in names)
        for row in table.rows[:MOST_ROWS]
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    left_out = len(table.rows) - len(lines)
    more = f"<div style='opacity: .8'>and {left_out:,} more rows: to_pandas() has them all</div>"
    title = f"<div style='margin-top: 6px'>{_text(table.title)}</div>" if table.title else ""
    return f"{title}<table style='{_STYLE}'><tr>{head}</tr>{body}</table>{more if left_out > 0 else ''}"


def heading(name: str) -> str:
    """``median_us`` is shown as ``median``: the cells say the unit."""
    return name.removesuffix("_us").removesuffix("_bytes").removesuffix("_s").replace("_", " ")


def cell_text(name: str, value: Any) -> str:
    """A value with the unit that its name ends in."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return _number_text(name, value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(map(str, value))
    return str(value)


def _number_text(name: str, value: float) -> str:
    if name.endswith("_us"):
        return duration(value)
    if name.endswith("_s"):
        return duration(value * 1e6)
    if name.endswith("bytes"):
        return size(value)
    if name == "flops":
        return count_text(value, "FLOP")
    if name in _SHARES:
        return percent(value)
    return error_size(value) if name in _ERRORS else number(value)


def _text(text: str, longest: int = LONGEST) -> str:
    shown = visible(text[: 8 * longest]).replace("\n", " ")
    return escape(shown if len(shown) <= longest else f"{shown[: longest - 1]}…")
