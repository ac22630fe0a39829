"""Rows of a data set joined to samples of another size: a model of a fixed batch takes data of any batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ridgeline.verify.divergence import Expected
from ridgeline.verify.reference import Reference

Draw = Callable[[int], Mapping[str, Any]]  # random inputs at the planned shapes, by seed
INDEPENDENT = "rows in another place, among other rows"


class RowJoiner:
    """Collects single rows; hands out samples of `size` rows as soon as they are full."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._first: list[Mapping[str, np.ndarray]] = []  # the last sample is filled up with these
        self._waiting: list[Mapping[str, np.ndarray]] = []

    def add(self, row: Mapping[str, np.ndarray]) -> Iterator[tuple[dict[str, np.ndarray], str]]:
        """The sample that this row completes, if it does, and what errors call it."""
        if len(self._first) < self.size:
            self._first.append(row)
        self._waiting.append(row)
        if len(self._waiting) == self.size:
            yield self._joined()

    def rest(self) -> Iterator[tuple[dict[str, np.ndarray], str]]:
        """The rows that no sample has yet, filled up with the first ones."""
        if self._waiting:
            missing = range(self.size - len(self._waiting))
            yield self._joined([self._first[i % len(self._first)] for i in missing])

    def _joined(self, filling: Sequence[Mapping[str, np.ndarray]] = ()) -> tuple[dict[str, np.ndarray], str]:
        rows, self._waiting = self._waiting, []
        where = " to ".join(getattr(row, "where", "") for row in (rows[0], rows[-1]))
        return {name: np.concatenate([row[name] for row in (*rows, *filling)]) for name in rows[0]}, where


def has_independent_rows(reference: Reference, draw: Draw) -> bool:
    """Whether the model computes each row of its inputs from that row alone, wherever it stands.

    The first axis may be time, or points that a model looks at together: such rows are not joined. The last
    row of some inputs is put first among others, and the first one last; both results must stay the same.
    """
    feeds, others = _arrays(draw(0)), _arrays(draw(1))
    try:
        want = _arrays(reference.run(feeds))
        last_first = {n: np.concatenate([feeds[n][-1:], others[n][1:]]) for n in feeds}
        first_last = {n: np.concatenate([others[n][:-1], feeds[n][:1]]) for n in feeds}
        ends = _arrays(reference.run(first_last)), _arrays(reference.run(last_first))
    except Exception:  # any exception: ONNX Runtime has its own
        return False
    moved = {n: np.concatenate([ends[0][n][-1:], want[n][1:-1], ends[1][n][:1]]) for n in want}
    expected = Expected(reference, feeds, want, reference.tolerance(feeds, want))
    return all(row.passed for row in expected.check(INDEPENDENT, moved))


def _arrays(values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in values.items()}
