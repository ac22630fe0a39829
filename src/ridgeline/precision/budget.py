"""How far outputs are from the original's, and how far they may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from ridgeline.base.spec import EPSILON
from ridgeline.errors import OptionError

Outputs: TypeAlias = Mapping[str, np.ndarray]
# (outputs of the engine, of the original, the inputs) -> an error, 0 for none
Metric: TypeAlias = Callable[[Outputs, Outputs, Outputs], float]
DEFAULT_BUDGET, QUANTISED_BUDGET = 1e-2, 5e-2


def relative_l2(got: np.ndarray, want: np.ndarray) -> float:
    """‖got − want‖ / ‖want‖ where both are finite; infinite where a number became NaN or infinite.

    Of integers and booleans, the share of elements that differ.
    """
    if got.shape != want.shape:
        return math.inf
    if not want.size:
        return 0.0
    if str(want.dtype) not in EPSILON:
        return float(np.mean(got != want))
    a, b = np.asarray(got, np.float64), np.asarray(want, np.float64)
    special = ~(np.isfinite(a) & np.isfinite(b))
    if special.any():
        if not np.array_equal(a[special], b[special], equal_nan=True):
            return math.inf
        a, b = a[~special], b[~special]
    size, off = float(np.linalg.norm(b)), float(np.linalg.norm(a - b))
    if size == 0.0:
        return 0.0 if off == 0.0 else math.inf
    return off / size


@dataclass
class Judgement:
    """Errors of all samples: by output the worst, or what the user's metric says on average."""

    metric: Metric | None = None
    worst: dict[str, float] = field(default_factory=dict)
    total: float = 0.0
    samples: int = 0

    def add(self, got: Outputs, want: Outputs, feeds: Outputs) -> None:
        """One sample."""
        self.samples += 1
        if self.metric is not None:
            self.total += _called(self.metric, got, want, feeds)
            return
        for name, array in want.items():
            error = relative_l2(np.asarray(got[name]), np.asarray(array))
            self.worst[name] = max(self.worst.get(name, 0.0), error)

    @property
    def error(self) -> float:
        """What the budget bounds."""
        if self.metric is not None:
            return self.total / max(self.samples, 1)
        return max(self.worst.values(), default=0.0)


def _called(metric: Metric, got: Outputs, want: Outputs, feeds: Outputs) -> float:
    try:
        error = float(metric(got, want, feeds))
    except Exception as problem:
        raise OptionError(
            "the metric failed",
            got=f"{type(problem).__name__}: {problem}",
            want="a function of (outputs, outputs of the original, inputs) that returns an error",
        ) from problem
    if math.isnan(error) or error < 0:
        raise OptionError("the metric returned no error", got=repr(error), want="0 for no error, or more")
    return error


def judge(
    run: Callable[[Any], Outputs], rows: Iterable[tuple[Any, Outputs]], metric: Metric | None = None
) -> Judgement:
    """Run samples, each with what the original makes of it."""
    made = Judgement(metric)
    for feeds, want in rows:
        made.add(run(feeds), want, feeds)
    return made


def in_batches(rows: Sequence[Outputs], size: int) -> Iterable[Outputs]:
    """Rows joined to batches of exactly this size; the last is filled up with the first rows."""
    for start in range(0, len(rows), size):
        chosen = [rows[i % len(rows)] for i in range(start, start + size)]
        yield {name: np.concatenate([row[name] for row in chosen]) for name in chosen[0]}
