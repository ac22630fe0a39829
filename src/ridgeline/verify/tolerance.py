"""How far an output may be from the reference: what rounding was seen to do to it, never a constant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.base.spec import EPSILON
from ridgeline.verify.metrics import distance_of, reach_of, rms_of, unequal_share


@dataclass(frozen=True)
class Tolerance:
    """For floats the largest allowed distance; for the rest the largest allowed share of other values."""

    distance: float
    share: float = 0.0
    # of floats, the largest root mean square of the distances. A level that flips moves few values far;
    # a wrong scale moves all of them, and each no farther than that. None: the largest distance says it all.
    rms: float | None = None
    note: str = ""


def measured_tolerance(expected: np.ndarray, moved: Sequence[np.ndarray], half: str) -> Tolerance:
    """Both engine and reference round, hence twice what one of them moves, and the coarsest type's own step.

    That is the output's own type, or a half type on the way to it: casting to float32 takes no rounding back.
    """
    kind = str(expected.dtype)
    same_shape = [m for m in moved if m.shape == expected.shape]
    if kind not in EPSILON:
        share = max((unequal_share(m, expected) for m in same_shape if m.size), default=0.0)
        reach = max((distance_of(m, expected) for m in same_shape if m.size), default=0.0)
        return Tolerance(2 * reach, min(1.0, 2 * share))
    finite = np.isfinite(expected)
    scale = float(np.abs(expected[finite], dtype=np.float64).max()) if finite.any() else 0.0
    reach = spread = 0.0
    for m in same_shape:
        both = finite & np.isfinite(m)
        pair = (m, expected) if both.all() else (m[both], expected[both])
        reach, spread = max(reach, reach_of(*pair)), max(spread, rms_of(*pair))
    step = 2 * max(EPSILON[kind], EPSILON.get(half, 0.0)) * scale
    return Tolerance(2 * reach + step, rms=2 * spread + step)
