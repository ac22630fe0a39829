"""How far outputs of a benchmark may be apart: what verification allowed, else what these inputs allow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from ridgeline.analyze.tensors import Difference
from ridgeline.base.spec import EPSILON
from ridgeline.errors import RidgelineError
from ridgeline.runtime.engine import Engine
from ridgeline.verify.fused_reference import fused_reference


class Agreement:
    """Judges differences between an engine and others that ran the same inputs."""

    def __init__(self, engine: Engine, feeds: Mapping[str, np.ndarray]) -> None:
        self._engine, self._feeds = engine, feeds

    def worst(self, apart: Sequence[Difference]) -> tuple[Difference | None, float | None]:
        """The output that comes nearest to its tolerance, or goes furthest past it; and the tolerance."""
        judged = [(difference, self._tolerance(difference)) for difference in apart]
        return max(judged, key=lambda pair: _severity(*pair), default=(None, None))

    def _tolerance(self, difference: Difference) -> float | None:
        """None for an engine that was not verified, and for a lowered one: a budget is for samples like those
        that it was judged on, and inputs here may be any."""
        report = self._engine.report
        if report.precision is not None and report.precision.is_lowered:
            return None
        known = [check.tolerance for check in report.checks if check.output == difference.output]
        if not known:
            return None
        # doubled, since the peer rounds as well; and a few steps of the values at hand
        stated = 2 * max(known) + 8 * EPSILON["float32"] * difference.scale
        if difference.max_difference <= stated or not math.isfinite(difference.max_difference):
            return stated
        # verification draws a tolerance only as far as its own inputs need it
        return max(stated, 2 * self._measured.get(difference.output, 0.0))

    @cached_property
    def _measured(self) -> dict[str, float]:
        """How far rounding carries the outputs at these inputs; nothing where no other runtime can tell."""
        try:
            reference = fused_reference(self._engine)
            limits = reference.tolerance(self._feeds, reference.run(self._feeds))
        except RidgelineError:
            return {}
        return {name: limit.distance for name, limit in limits.items()}


def _severity(difference: Difference, tolerance: float | None) -> float:
    if tolerance:
        return difference.max_difference / tolerance
    return math.inf if difference.max_difference and tolerance == 0 else difference.max_difference
