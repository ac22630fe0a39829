"""How far outputs are from the original's on held-out samples, and how far they may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from ridgeline.errors import OptionError, PrecisionError
from ridgeline.precision.row_joining import RowJoiner
from ridgeline.precision.samples import Row, named_row
from ridgeline.verify.metrics import as_float64, is_numeric, worst_relative_l2

WORST_SHOWN = 3
Outputs: TypeAlias = Mapping[str, np.ndarray]
# (outputs of the engine, of the original, the inputs) -> an error, 0 for none
Metric: TypeAlias = Callable[[Outputs, Outputs, Outputs], float]


@dataclass
class LeftOut:
    """What errors do not count: NaN and infinities in the original's own outputs."""

    nans: dict[str, int] = field(default_factory=dict)
    finite: dict[str, int] = field(default_factory=dict)
    values: dict[str, int] = field(default_factory=dict)

    def add(self, want: Outputs) -> None:
        """The original's outputs of one sample."""
        for name, value in want.items():
            array = np.asarray(value)
            if not is_numeric(array):
                continue
            numbers = as_float64(array)
            for counts, found in ((self.nans, np.isnan(numbers)), (self.finite, np.isfinite(numbers))):
                counts[name] = counts.get(name, 0) + int(found.sum())
            self.values[name] = self.values.get(name, 0) + numbers.size

    @property
    def lines(self) -> list[str]:
        """What a report says of it; nothing if every output has numbers to judge by, and no NaN."""
        made = []
        for name, count in self.values.items():
            if not self.finite[name]:
                what = "is NaN or infinite throughout" if count else "is empty"
                who = f"output {name!r} of the original"
                made.append(f"{who} {what} on this data: an error of 0 says nothing")
            elif self.nans[name]:
                share = f"{self.nans[name]} of {count} values"
                made.append(f"output {name!r} of the original is NaN in {share}, which no error counts")
        return made


@dataclass
class Judgement:
    """Errors over all samples: by output the worst, or the mean of what the user's metric says."""

    metric: Metric | None = None
    worst: dict[str, float] = field(default_factory=dict)
    total: float = 0.0
    samples: int = 0
    left_out: LeftOut = field(default_factory=LeftOut)  # of the original, where it was looked at

    def add(self, got: Outputs, want: Outputs, feeds: Outputs) -> None:
        """One sample."""
        self.samples += 1
        if self.metric is not None:
            self.total += _called(self.metric, got, want, feeds)
            return
        for name, error in worst_relative_l2(got, want).items():
            self.worst[name] = max(self.worst.get(name, 0.0), error)

    @property
    def error(self) -> float:
        """What the budget bounds."""
        if self.metric is not None:
            return self.total / max(self.samples, 1)
        return max(self.worst.values(), default=0.0)

    @property
    def worst_output(self) -> str:
        """The output with the largest error; empty if there is none."""
        return max((error, name) for name, error in [("", 0.0), *self.worst.items()])[1]


def _called(metric: Metric, got: Outputs, want: Outputs, feeds: Outputs) -> float:
    # copies: a metric may use its arguments as scratch memory, and the originals serve again
    given = ({name: deepcopy(value) for name, value in each.items()} for each in (got, want, feeds))
    try:
        error = float(metric(*given))
    except Exception as problem:
        raise OptionError(
            "the metric failed",
            got=f"{type(problem).__name__}: {problem}",
            want="a function of (outputs, outputs of the original, inputs) that returns an error",
        ) from problem
    if math.isnan(error) or error < 0:
        raise OptionError("the metric returned no error", got=repr(error), want="0 for no error, or more")
    return error


def costs_most(alone: Mapping[str, float], names: Mapping[str, Sequence[str]]) -> list[str]:
    """The nodes with the largest errors alone, in words; `names` are what the model calls a node."""
    ranked = sorted(alone.items(), key=lambda item: -item[1])[:WORST_SHOWN]
    return [f"{', '.join(names[node])}: {error:.3g} alone" for node, error in ranked]


def over_budget(kind: str, worst: Sequence[str], error: float, budget: float) -> PrecisionError:
    """The error of a build that cannot keep its budget with nodes in this type."""
    return PrecisionError(
        "no mixture of precisions keeps the budget",
        rows=[f"costs most: {row}" for row in worst],
        got=f"an error of {error:.3g} with nodes in {kind}, the best found",
        want=f"at most {budget:.3g}",
        help="raise the budget (--budget, in Python budget=), keep more nodes (--keep fp32:NAME, in Python "
        "keep=), or look at `ridge debug precision`",
    )


def in_batches(rows: Sequence[Outputs], size: int) -> Iterable[Row]:
    """Rows joined to batches of exactly this size; the last is filled up with the first rows."""
    if size == 1:  # what is not joined may have no axis to be joined along
        yield from (named_row(row, getattr(row, "where", "")) for row in rows)
        return
    joiner = RowJoiner(size)
    for row in rows:
        yield from (named_row(*made) for made in joiner.add(row))
    yield from (named_row(*made) for made in joiner.rest())
