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

from ridgeline.base.formats import HALF_NAMES
from ridgeline.base.spec import Op
from ridgeline.kernels.elements import TORCH_DTYPES
from ridgeline.precision.emulate import WIDE, Emulator, node_key

HALVES = {name: TORCH_DTYPES[name] for name in HALF_NAMES.values()}
# the exponent field of a float32 has 256 values; |x| of field f is in [2^(f - 127), 2^(f - 126))
BIAS, _FIELDS = 127, 256


@dataclass
class Range:
    """One value over all samples."""

    count: int = 0
    zeros: int = 0
    nans: int = 0
    infinities: int = 0
    low: float = math.inf
    high: float = -math.inf
    # how many elements have each exponent field as float32; field 0 has zeros and float32 subnormals
    exponents: np.ndarray = field(default_factory=lambda: np.zeros(_FIELDS, np.int64))
    # the worst sample's ‖rounded − x‖ / ‖x‖, by half type
    rounding: dict[str, float] = field(default_factory=lambda: dict.fromkeys(HALVES, 0.0))

    def add(self, tensor: Tensor) -> None:
        """The elements of one sample."""
        values = tensor.detach().reshape(-1).to(torch.float32)
        self.count += values.numel()
        if not values.numel():
            return
        fields = (values.view(torch.int32) >> 23) & (_FIELDS - 1)
        counts = torch.bincount(fields, minlength=_FIELDS).cpu().numpy()
        if counts[-1]:  # the largest field has NaN and infinities
            self.nans += int(torch.isnan(values).sum())
            self.infinities += int(torch.isinf(values).sum())
            values = values[torch.isfinite(values)]
            counts[-1] = 0
        self.exponents += counts
        if not values.numel():
            return
        self.zeros += int((values == 0).sum())
        low, high = (float(end) for end in torch.aminmax(values))
        self.low, self.high = min(self.low, low), max(self.high, high)
        self._add_rounding(values, max(abs(low), abs(high)))

    def _add_rounding(self, values: Tensor, largest: float) -> None:
        if not largest:
            return
        size = _norm(values, largest)
        for name, dtype in HALVES.items():
            off = _norm(values.to(dtype).float() - values, largest)
            self.rounding[name] = max(self.rounding[name], off / size if math.isfinite(off) else math.inf)

    @property
    def largest(self) -> float:
        """Of all magnitudes; 0 for a value that was never finite."""
        return max(abs(self.low), abs(self.high)) if self.count > self.nans + self.infinities else 0.0

    def share_below(self, power: int) -> float:
        """The share of elements that are not zero and smaller than this power of two."""
        small = int(self.exponents[: max(power + BIAS, 0)].sum()) - self.zeros
        return max(small, 0) / self.count if self.count else 0.0

    def share_above(self, power: int) -> float:
        """The share of finite elements at or above this power of two."""
        return int(self.exponents[max(power + BIAS, 0) :].sum()) / self.count if self.count else 0.0


def _norm(values: Tensor, largest: float) -> float:
    """Of values divided by the largest, so that squares neither overflow nor vanish."""
    return float(torch.linalg.vector_norm(values / largest))


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
    return float(torch.linalg.vector_norm(tensor)) / math.sqrt(tensor.numel()) if tensor.numel() else 0.0


def _cancelled(op: Op, sizes: Mapping[str, float]) -> float:
    """How many times its result the largest operand of a sum is."""
    operands = [sizes[name] for name in op.inputs if name in sizes]
    result = sizes[node_key(op)]
    if len(operands) < len(op.inputs) or not result:
        return 0.0  # a constant operand cancels nothing that was rounded at run time
    return max(operands) / result
