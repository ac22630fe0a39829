"""A Resize as tables: which lines and columns of x each output adds up, and their shares."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ridgeline.base.spec import Op, TensorSpec


@dataclass(frozen=True, eq=False)
class Taps:
    """Input positions of every output position of one axis and their shares: int32 and float32 [out, taps].

    The arithmetic is the floor's. A tap without a share anywhere is left out.
    """

    places: np.ndarray
    shares: np.ndarray

    @property
    def count(self) -> int:
        return int(self.places.shape[1])


@dataclass(frozen=True, eq=False)
class ResizeSite:
    """Planes of `in_size` become planes of `out_size`, as (lines, columns)."""

    anchor: Op
    x: TensorSpec
    y: TensorSpec  # the region's first result: as large as the Resize's own
    place: int  # of x among the inputs
    in_size: tuple[int, int]
    out_size: tuple[int, int]
    lines: Taps
    columns: Taps

    @property
    def inner(self) -> int:
        """Channels of y that lie side by side."""
        return channels_inside(self.y)

    @property
    def is_copy(self) -> bool:
        """Every output is one input as it is."""
        return self.lines.count == self.columns.count == 1

    @property
    def planes(self) -> int:
        return self.x.numel // math.prod(self.in_size)


def channels_inside(spec: TensorSpec) -> int:
    """Channels that lie side by side."""
    return spec.shape[1] if spec.layout == "channels_last" else 1
