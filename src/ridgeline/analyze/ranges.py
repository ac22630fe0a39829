"""Which values a number format cannot hold: who overflows, underflows or becomes subnormal, and by node.

Statistics are `precision/ranges.py`'s, over all samples. Rows only; nothing here prints.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import ml_dtypes
import onnx_ir as ir

from ridgeline.base.formats import FORMATS, HALF_NAMES
from ridgeline.errors import OptionError, did_you_mean
from ridgeline.frontend.from_onnx import Source, load
from ridgeline.ir.body import node_sources
from ridgeline.kernels.elements import numpy_dtype
from ridgeline.options import Options
from ridgeline.passes.pipeline import canonicalise
from ridgeline.precision.emulate import Emulator
from ridgeline.precision.original import Original
from ridgeline.precision.place import PRODUCTS
from ridgeline.precision.ranges import BIAS, Range, observe
from ridgeline.precision.samples import Feeds

STAGE = "ranges"
OVERFLOWS, SATURATES, UNDERFLOWS, SUBNORMAL, FITS = (
    "overflows",
    "saturates",
    "underflows",
    "subnormal",
    "fits",
)
# shares beyond which a value is said to suffer; one element that overflows is enough
SUFFERS = 1e-2
# formats with a sign and one scale a tensor; those with scales of their own for every block fit otherwise
QUANTISED = tuple(name for name, fmt in FORMATS.items() if fmt.is_signed and not fmt.block)
FORMAT_NAMES = (*HALF_NAMES, *QUANTISED)


@dataclass(frozen=True)
class Holds:
    """What a format holds, in magnitudes: `overflow` is the first that does not round to a finite number."""

    name: str
    largest: float
    overflow: float
    normal: float  # the least magnitude with all digits
    least: float  # the least magnitude above zero
    is_scaled: bool  # a scale per tensor brings the largest value seen to the largest of the format

    @staticmethod
    def of(name: str) -> Holds:
        if name not in FORMAT_NAMES:
            raise OptionError(f"no number format is called {name!r}", help=did_you_mean(name, FORMAT_NAMES))
        if name in FORMATS and FORMATS[name].is_integer:
            top = FORMATS[name].largest
            return Holds(name, top, top + 0.5, 1.0, 1.0, is_scaled=True)
        dtype = numpy_dtype(HALF_NAMES[name]) if name in HALF_NAMES else FORMATS[name].dtype
        info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        largest, step = float(info.max), 2.0 ** (math.floor(math.log2(float(info.max))) - info.nmant)
        least = float(info.smallest_subnormal)
        return Holds(
            name, largest, largest + step / 2, float(info.smallest_normal), least, is_scaled=name in FORMATS
        )

    def scaled(self, scale: float) -> Holds:
        return Holds(
            self.name, self.largest * scale, self.overflow * scale, self.normal * scale, self.least * scale,
            is_scaled=self.is_scaled,
        )  # fmt: skip


@dataclass(frozen=True)
class RangeRow:
    """One value over all samples, and what the format does to it; shares are of all its elements."""

    value: str
    node: str  # of the model; empty for an input or a weight
    op_type: str
    kind: str  # input | weight | value
    count: int
    low: float | None
    high: float | None
    zeros: float
    nans: int
    infs: int
    scale: float
    verdict: str
    overflow: float  # become infinite or saturate
    underflow: float  # become zero
    subnormal: float  # keep fewer digits
    histogram: dict[int, int]  # log2 of the magnitude -> elements
    gets_codes: bool = True  # False: no product reads it, so that quantisation leaves it as it is

    @property
    def suffers(self) -> bool:
        return self.verdict != FITS and self.gets_codes


@dataclass(frozen=True)
class RangeReport:
    """The values of a model beside a number format, those that suffer most first."""

    model: str
    format: str
    largest: float
    smallest_normal: float
    smallest: float
    samples: int
    is_drawn: bool  # no data was given: inputs are random
    rows: tuple[RangeRow, ...]

    @property
    def suffering(self) -> int:
        return sum(row.suffers for row in self.rows)

    @property
    def never_quantised(self) -> int:
        return sum(not row.gets_codes for row in self.rows)


def range_report(
    source: Source,
    format_name: str,
    options: Options,
    *,
    scale: float | None = None,
    samples: int | None = None,
) -> RangeReport:
    """Run all samples through the model, op by op in float32, and look at every value.

    `scale` divides every value before it is rounded. Without it the formats of quantisation get one for
    each value, which brings the largest magnitude seen to the largest of the format.
    """
    holds = Holds.of(format_name)
    if scale is not None and not (math.isfinite(scale) and scale > 0):
        raise OptionError("scale is no scale", got=str(scale), want="a number above 0")
    loaded = load(source, options.limits)
    canonicalise(loaded.model, limits=options.limits)
    original = Original(loaded, options, None)
    emulator = Emulator(loaded.model, options.limits)
    seen = observe(emulator, _counted(original, options, samples))
    made_by = {str(v.name): node for node in loaded.model.graph for v in node.outputs}
    inputs = {str(v.name) for v in loaded.model.graph.inputs}
    rows = []
    read = _quantised_values(loaded.model) if holds.is_scaled else set(seen.ranges)
    for value, found in seen.ranges.items():
        node = made_by.get(value)
        kind = "value" if node is not None else "input" if value in inputs else "weight"
        names = ("", "") if node is None else (node_sources(node)[-1], node.op_type)
        row = _row(value, *names, kind=kind, found=found, holds=_placed(holds, found, scale))
        rows.append(replace(row, gets_codes=value in read))
    rows.sort(key=lambda row: (not row.gets_codes, _rank(row), -row.overflow, -row.underflow, -row.subnormal))
    return RangeReport(
        loaded.name, format_name, holds.largest, holds.normal, holds.least, seen.samples,
        original.samples[0].drawn, tuple(rows),
    )  # fmt: skip


def _quantised_values(model: ir.Model) -> set[str]:
    """What products and attention multiply: quantisation gives codes to nothing else."""
    operands = [
        (node, 3 if node.op_type == "Attention" else 2)
        for node in model.graph
        if node.op_type in (*PRODUCTS, "Attention")
    ]
    return {str(value.name) for node, count in operands for value in node.inputs[:count] if value is not None}


def all_samples(original: Original) -> Iterable[Feeds]:
    """Those to judge with too, since nothing is built here."""
    first, second = original.samples
    return first if first is second else chain(first, second)


def _counted(original: Original, options: Options, most: int | None) -> Iterator[Feeds]:
    for i, feeds in enumerate(islice(all_samples(original), most)):
        options.tell(STAGE, i, 0)
        yield feeds


def _placed(holds: Holds, found: Range, scale: float | None) -> Holds:
    if scale is not None:
        return holds.scaled(scale)
    is_scaled = holds.is_scaled and found.largest > 0
    return holds.scaled(found.largest / holds.largest) if is_scaled else holds


def _row(value: str, node: str, op_type: str, *, kind: str, found: Range, holds: Holds) -> RangeRow:
    overflow = found.share_above(_up(holds.overflow))
    if not overflow and found.largest >= holds.overflow:
        overflow = (
            1 / found.count
        )  # within a factor of two of the end, where powers of two do not tell how many
    # half of the least magnitude rounds to zero
    underflow = found.share_below(_down(holds.least / 2))
    subnormal = max(0.0, found.share_below(_down(holds.normal)) - underflow)
    is_known = found.count > found.nans + found.infinities
    exponents = {i - BIAS: int(n) for i, n in enumerate(found.exponents) if n}
    exponents[-BIAS] = exponents.get(-BIAS, 0) - found.zeros
    return RangeRow(
        value=value, node=node, op_type=op_type, kind=kind, count=found.count,
        low=found.low if is_known else None, high=found.high if is_known else None,
        zeros=found.zeros / found.count if found.count else 0.0, nans=found.nans, infs=found.infinities,
        scale=holds.largest / Holds.of(holds.name).largest,
        verdict=_verdict(holds, overflow, underflow, subnormal),
        overflow=overflow, underflow=underflow, subnormal=subnormal,
        histogram={power: n for power, n in exponents.items() if n > 0},
    )  # fmt: skip


def _verdict(holds: Holds, overflow: float, underflow: float, subnormal: float) -> str:
    if overflow:
        return SATURATES if holds.is_scaled else OVERFLOWS
    if underflow > SUFFERS:
        return UNDERFLOWS
    return SUBNORMAL if subnormal > SUFFERS else FITS


def _rank(row: RangeRow) -> int:
    return (OVERFLOWS, SATURATES, UNDERFLOWS, SUBNORMAL, FITS).index(row.verdict)


def _up(magnitude: float) -> int:
    """The least power of two at or above."""
    mantissa, exponent = math.frexp(magnitude)
    return exponent - 1 if mantissa == 0.5 else exponent


def _down(magnitude: float) -> int:
    """The largest power of two at or below."""
    return math.frexp(magnitude)[1] - 1
