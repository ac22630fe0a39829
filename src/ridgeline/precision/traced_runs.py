"""Emulated runs with some nodes coarse, each begun from a run that was exact."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ridgeline.kernels.values import outside
from ridgeline.precision.budget import Judgement, Metric
from ridgeline.precision.emulate import Emulator, Rounding, Values
from ridgeline.precision.samples import Feeds


class TracedRuns:
    """The samples, each traced once, and the error of any set of coarse nodes on them."""

    def __init__(
        self,
        emulator: Emulator,
        rows: Sequence[Feeds],
        rounding: Mapping[str, Rounding],
        metric: Metric | None = None,
    ) -> None:
        """`rounding` is what each node does to values when it is coarse, by `emulate.node_key`."""
        self._emulator, self._rows, self._rounding, self._metric = emulator, rows, rounding, metric
        self._traced: list[tuple[Values, dict[str, np.ndarray]]] = []  # every value, and the outputs
        self._known: dict[tuple[frozenset[str], int], Judgement] = {}
        self.count = 0  # of the sets that were run

    def judge(
        self, coarse: frozenset[str], *, samples: int | None = None, enough: float = math.inf
    ) -> Judgement:
        """The first `samples`, or all, with these nodes coarse; one beyond `enough` is the last."""
        count = len(self._rows) if samples is None else samples
        key = coarse, count
        if key in self._known:
            return self._known[key]
        self.count += 1
        made = Judgement(self._metric)
        rounding = {name: self._rounding[name] for name in coarse}
        for feeds, (trace, want) in list(zip(self._rows, self._traces(), strict=True))[:count]:
            made.add(self._outputs(self._emulator.again(trace, rounding)), want, feeds)
            if made.samples < count and made.error > enough:
                return made
        self._known[key] = made
        return made

    def forget_values(self) -> None:
        """Keep what was found out, and not the values of the runs."""
        self._traced = []

    def _traces(self) -> list[tuple[Values, dict[str, np.ndarray]]]:
        if not self._traced:
            traces = [self._emulator.trace(feeds) for feeds in self._rows]
            self._traced = [(trace, self._outputs(trace)) for trace in traces]
        return self._traced

    def _outputs(self, values: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The outputs that are arrays."""
        made = {name: outside(values[name]) for name in self._emulator.outputs}
        return {name: np.asarray(value) for name, value in made.items() if not isinstance(value, list)}
