"""Tables and lists of lines that fit the terminal: numbers stay whole, words are cut, reasons wrap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rich.box import Box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

INDENT, GAP = 2, 2
# the only line is the rule under the head
_HEAD_RULE = Box("    \n    \n ── \n    \n    \n    \n    \n    \n")


def table(*columns: str, numeric: Sequence[str] = (), keep: Sequence[str] = ()) -> Grid:
    return Grid(columns, frozenset(numeric), frozenset(keep))


@dataclass
class Grid:
    """Rows of text in columns. Numbers stay whole, words are cut, and a column of `keep` wraps instead."""

    columns: tuple[str, ...]
    numeric: frozenset[str]
    keep: frozenset[str]
    rows: list[tuple[str | Text, ...]] = field(default_factory=list)

    def add_row(self, *cells: str | Text) -> None:
        self.rows.append(cells)

    def fitted(self, width: int) -> Table:
        # the gap is a cell's padding plus the divider
        padding = (0, GAP - 1, 0, 0)
        grid = Table(box=_HEAD_RULE, header_style="dim", padding=padding, show_edge=False, pad_edge=False)
        for name, column_width in zip(self.columns, self._widths(width), strict=True):
            grid.add_column(
                name,
                justify="right" if name in self.numeric else "left",
                no_wrap=name not in self.keep,
                overflow="fold" if name in self.keep else "ellipsis",
                width=column_width,
            )
        for row in self.rows:
            grid.add_row(*row)
        return grid

    def _widths(self, width: int) -> list[int]:
        """The widest columns of words are narrowed first. Rich would narrow all alike and cut numbers."""
        widths = [
            max([cell_len(name), *(cell_len(str(row[i])) for row in self.rows)])
            for i, name in enumerate(self.columns)
        ]
        room = width - GAP * (len(widths) - 1)
        words = [i for i, name in enumerate(self.columns) if name not in self.numeric | self.keep]
        kept = [i for i, name in enumerate(self.columns) if name in self.keep]
        for group, least in ((words, 22), (kept, 40), (words, 10), (kept, 16)):
            while sum(widths) > room and any(widths[i] > least for i in group):
                widths[max(group, key=lambda i: widths[i])] -= 1
        return widths


def put(grid: Grid, console: Console, *, title: str = "") -> None:
    """A table under its title, indented, with a blank line after it."""
    if title:
        console.print(title, style="bold")
    console.print(Padding(grid.fitted(console.width - INDENT), (0, 0, 0, INDENT), expand=False))
    console.print()


def put_lines(lines: Iterable[tuple[str, str | Text]], console: Console, *, style: str = "dim") -> None:
    """Print ``label  text`` lines. A long text wraps under itself, an empty one is left out."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style=style, no_wrap=True, min_width=11)
    grid.add_column(overflow="fold")
    for label, text in lines:
        if text:
            grid.add_row(label, text)
    if grid.row_count:
        console.print(Padding(grid, (0, 0, 0, INDENT), expand=False))
