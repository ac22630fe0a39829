"""Tables of a Resize on a GPU, made on the host: without Triton, as an engine is loaded without it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Tables:
    """What the kernel reads besides x: int32 positions and float32 shares.

    A cell is a run of at most `depth` output lines that are sums of the same input lines. `starts` has the
    first line of each, and then the number of lines.
    """

    depth: int
    starts: np.ndarray  # [cells + 1]
    lines: np.ndarray  # [cells, taps]
    line_shares: np.ndarray  # [cells, depth, taps]; 0 past the end of a cell
    columns: np.ndarray  # [taps, width]
    column_shares: np.ndarray

    @staticmethod
    def of(
        lines: np.ndarray, line_shares: np.ndarray, columns: np.ndarray, column_shares: np.ndarray, *,
        depth: int, width: int,
    ) -> Tables:  # fmt: skip
        """From positions and shares of every output line and column, [out, taps] each.

        There are as many columns as tiles cover, `width`; those past the last have shares of 0.
        """
        past = ((0, width - len(columns)), (0, 0))
        run = _places_in_runs(lines)
        starts = np.flatnonzero(run % depth == 0)
        ends = np.append(starts[1:], len(lines))
        inside = starts[:, None] + np.arange(depth)
        shares = line_shares[np.minimum(inside, len(lines) - 1)]
        shares = np.where((inside < ends[:, None])[:, :, None], shares, 0)
        return Tables(
            depth, np.append(starts, len(lines)).astype(np.int32), lines[starts].astype(np.int32),
            shares.astype(np.float32), np.ascontiguousarray(np.pad(columns, past).T, np.int32),
            np.ascontiguousarray(np.pad(column_shares, past).T, np.float32),
        )  # fmt: skip

    @property
    def cells(self) -> int:
        return len(self.lines)

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """In the order of the kernel's arguments."""
        return self.starts, self.lines, self.line_shares, self.columns, self.column_shares


def longest_run(lines: np.ndarray) -> int:
    """Of neighbouring output lines that are sums of the same input lines."""
    return int(_places_in_runs(lines).max()) + 1


def _places_in_runs(lines: np.ndarray) -> np.ndarray:
    """How many lines before each are sums of the same input lines, without another between."""
    is_first = np.append(True, (lines[1:] != lines[:-1]).any(axis=1))
    firsts = np.flatnonzero(is_first)
    places: np.ndarray = np.arange(len(lines)) - firsts[np.cumsum(is_first) - 1]
    return places
