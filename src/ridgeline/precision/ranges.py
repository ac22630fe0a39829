"""What the values of a graph hold, over all samples of a data set, in one pass and in bounded memory.

Counts are exact, and nothing here depends on the order of the samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ridgeline.base.spec import Op
from ridgeline.precision.emulate import WIDE, Emulator, node_key

# binary exponents that a float32 can have, subnormals included, as `frexp` counts them
LOWEST_EXPONENT, HIGHEST_EXPONENT = -149, 128
HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_BINS = HIGHEST_EXPONENT - LOWEST_EXPONENT + 1


@dataclass
class Range:
    """One value over all samples."""

    count: int = 0
    zeros: int = 0
    nans: int = 0
    infinities: int = 0
    low: float = math.inf
    high: float = -math.inf
    # how many elements have each binary exponent: |x| is in [2^(e-1), 2^e)
    exponents: np.ndarray = field(default_factory=lambda: np.zeros(_BINS, np.int64))
    # the worst sample's ‖rounded − x‖ / ‖x‖, by half type
    rounding: dict[str, float] = field(default_factory=lambda: dict.fromkeys(HALVES, 0.0))

    def add(self, tensor: Tensor) -> None:
        """The elements of one sample."""
        values = tensor.detach().reshape(-1).to(torch.float32)
        finite = values[torch.isfinite(values)]
        self.count += values.numel()
        self.nans += int(torch.isnan(values).sum())
        self.infinities += int(torch.isinf(values).sum())
        if not finite.numel():
            return
        low, high = torch.aminmax(finite)
        self.low, self.high = min(self.low, float(low)), max(self.high, float(high))
        nonzero = finite[finite != 0]
        self.zeros += finite.numel() - nonzero.numel()
        places = torch.frexp(nonzero).exponent.long() - LOWEST_EXPONENT
        self.exponents += torch.bincount(places.clamp(0, _BINS - 1), minlength=_BINS).cpu().numpy()
        norm = float(finite.double().norm())
        for name, dtype in HALVES.items():
            off = float((finite.to(dtype).double() - finite.double()).norm())
            worst = off / norm if norm else 0.0
            self.rounding[name] = max(self.rounding[name], worst if math.isfinite(worst) else math.inf)

    @property
    def largest(self) -> float:
        """Of all magnitudes; 0 for a value that was never finite."""
        return max(abs(self.low), abs(self.high)) if self.count > self.nans + self.infinities else 0.0

    def share_below(self, magnitude: float) -> float:
        """The share of elements that are not zero and smaller than a power of two."""
        place = max(math.frexp(magnitude)[1] - LOWEST_EXPONENT, 0)
        return float(self.exponents[:place].sum()) / self.count if self.count else 0.0

    def share_above(self, magnitude: float) -> float:
        """The share of elements at or above a power of two."""
        place = math.frexp(magnitude)[1] - LOWEST_EXPONENT
        return float(self.exponents[place:].sum()) / self.count if self.count else 0.0


@dataclass
class Statistics:
    """Ranges by value, and how much larger than its result the operands of a sum are, by node."""

    ranges: dict[str, Range] = field(default_factory=dict)
    cancellation: dict[str, float] = field(default_factory=dict)
    samples: int = 0


def observe(emulator: Emulator, samples: Iterable[Mapping[str, Any]]) -> Statistics:
    """Run every sample once and look at all floats, those of the weights too."""
    made = Statistics()
    for name, tensor in emulator.given.items():
        if isinstance(tensor, Tensor) and tensor.dtype in WIDE:
            made.ranges.setdefault(name, Range()).add(tensor)
    sums = {node_key(op): op for op in emulator.ops if op.op_type in ("Add", "Sub", "Sum")}
    for feeds in samples:
        sizes: dict[str, float] = {}

        def look(name: str, tensor: Tensor, sizes: dict[str, float] = sizes) -> None:
            if tensor.dtype not in WIDE:
                return
            made.ranges.setdefault(name, Range()).add(tensor)
            sizes[name] = _root_mean_square(tensor)
            if name in sums:
                worst = _cancelled(sums[name], sizes)
                made.cancellation[name] = max(made.cancellation.get(name, 0.0), worst)

        emulator.run(feeds, observe=look)
        made.samples += 1
    return made


def _root_mean_square(tensor: Tensor) -> float:
    return float(tensor.double().square().mean().sqrt()) if tensor.numel() else 0.0


def _cancelled(op: Op, sizes: Mapping[str, float]) -> float:
    """How many times its result the largest operand of a sum is."""
    operands = [sizes[name] for name in op.inputs if name in sizes]
    result = sizes[node_key(op)]
    if len(operands) < len(op.inputs) or not result:
        return 0.0  # a constant operand cancels nothing that was rounded at run time
    return max(operands) / result
