"""Ranges of tensors from data: two passes over the samples, then a choice of the method by layer output.

The first pass finds extremes, the second fills histograms over fixed edges. Samples run one at a time and all
that is accumulated are extremes and integer counts, so that the result is the same, bit for bit, for any
batch size and any order of the data. What is held does not grow with the number of samples.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ridgeline.base.formats import Format
from ridgeline.base.spec import Op
from ridgeline.errors import InputError, OptionError, did_you_mean
from ridgeline.kernels.floor import call_floor
from ridgeline.precision.emulate import Emulator
from ridgeline.precision.fake_quant import FakeQuant
from ridgeline.precision.histograms import FLOAT_METHODS, METHODS, Extremes, Histogram, Range
from ridgeline.precision.samples import Feeds, Samples, row_digest

# chooses between the methods, tensor by tensor
AUTO = "auto"
# rows that layer outputs are compared on: those whose digests are smallest, so that order does not matter
COMPARED_ROWS = 8
# a narrower range must have less than this share of a wider one's error: it also cuts what was not seen yet
WORTH = 0.9


@dataclass(frozen=True)
class Group:
    """Tensors that share one scale, in a format. A fixed range needs no data."""

    members: tuple[str, ...]
    fmt: Format
    symmetric: bool = True
    fixed: Range | None = None
    aliases: tuple[str, ...] = ()  # tensors that products read, made of members by moving elements

    @property
    def name(self) -> str:
        return self.members[0]


@dataclass(frozen=True)
class Layer:
    """A product whose output tells how good the ranges of its inputs are."""

    op: Op  # without a bias: it cancels
    weights: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)  # as they were, and quantised

    def outputs(self, values: Mapping[str, Tensor], *, is_quantized: bool) -> Tensor:
        given = [
            self.weights[name][is_quantized] if name in self.weights else values[name]
            for name in self.op.inputs
        ]
        with torch.inference_mode():
            made: Tensor = call_floor(self.op, given)[0]
        return made


@dataclass(frozen=True)
class Calibrated:
    """The range of one group, how it was found, and the relative output error of every method tried."""

    low: float
    high: float
    method: str
    observed_low: float
    observed_high: float
    values: int  # numbers counted
    errors: Mapping[str, float] = field(default_factory=dict)

    @property
    def range(self) -> Range:
        return Range(self.low, self.high)


def check_method(method: str, formats: Iterable[Format]) -> None:
    known = [AUTO, *METHODS]
    if method not in known:
        raise OptionError(
            f"no calibration method is called {method!r}", help=did_you_mean(str(method), known)
        )
    floats = sorted({fmt.name for fmt in formats if not fmt.is_integer})
    if floats and method not in (AUTO, *FLOAT_METHODS):
        raise OptionError(
            f"{method} calibration does not fit {floats[0]}: its steps are not equal",
            want=", ".join((AUTO, *FLOAT_METHODS)),
        )


def calibrate(
    emulator: Emulator,
    samples: Samples,
    groups: Sequence[Group],
    *,
    layers: Sequence[Layer] = (),
    method: str = AUTO,
) -> dict[str, Calibrated]:
    """The range of every group, by name."""
    check_method(method, (group.fmt for group in groups))
    open_groups = [group for group in groups if group.fixed is None]
    made = {g.name: _fixed(g.fixed) for g in groups if g.fixed is not None}
    if not open_groups:
        return made
    extremes = _extremes(emulator, samples, {name for group in open_groups for name in group.members})
    histograms = _histograms(emulator, samples, open_groups, extremes)
    tried = [method] if method != AUTO else list(METHODS)
    candidates = {
        group.name: {
            name: METHODS[name](histograms[group.name], group.fmt, symmetric=group.symmetric)
            for name in tried
            if group.fmt.is_integer or name in FLOAT_METHODS
        }
        for group in open_groups
    }
    errors: dict[str, dict[str, float]] = {}
    if len(tried) > 1:
        errors = output_errors(emulator, compared_rows(samples), groups, candidates, layers)
    for group in open_groups:
        ranges = candidates[group.name]
        found = errors.get(group.name, {})
        # without a layer to judge by, the nearest codes
        best = _chosen(found, ranges) if found else "mse" if len(tried) > 1 else tried[0]
        observed = histograms[group.name].observed
        count = int(histograms[group.name].counts.sum())
        made[group.name] = Calibrated(
            *_ends(ranges[best]), best, *_ends(observed), values=count, errors=found
        )
    return made


def _chosen(errors: Mapping[str, float], ranges: Mapping[str, Range]) -> str:
    """The widest range among those that are about as good as the best."""
    near = [name for name in errors if errors[name] * WORTH <= min(errors.values())]
    return max(near, key=lambda name: ranges[name].high - ranges[name].low)


def _ends(found: Range) -> tuple[float, float]:
    return float(found.low), float(found.high)


def _fixed(found: Range) -> Calibrated:
    return Calibrated(*_ends(found), "fixed", *_ends(found), values=0)


def _extremes(emulator: Emulator, samples: Samples, names: set[str]) -> dict[str, Extremes]:
    found = {name: Extremes() for name in names}

    def observe(name: str, tensor: Tensor) -> None:
        if name in found:
            found[name].add(tensor)

    for row in samples:
        emulator.run(row, observe=observe)
    bad = sorted(name for name, extremes in found.items() if extremes.non_finite)
    if bad:
        raise InputError(
            f"{len(bad)} tensors that would be quantised are NaN or infinite on this data",
            rows=[f"{name}: {found[name].non_finite} of {found[name].count} values" for name in bad],
            want="finite values: no scale fits the others",
            help="ridge debug ranges MODEL names the first node that makes them; exclude leaves it alone",
        )
    unseen = sorted(name for name, extremes in found.items() if not extremes.count)
    if unseen:
        raise InputError(
            f"{len(unseen)} tensors that would be quantised have no value on this data",
            rows=unseen,
            help="give samples that reach them and are not empty, or leave their nodes out with exclude",
        )
    return found


def _histograms(
    emulator: Emulator, samples: Samples, groups: Sequence[Group], extremes: Mapping[str, Extremes]
) -> dict[str, Histogram]:
    """By group; members count in one histogram over what any of them reached."""
    made: dict[str, Histogram] = {}
    of_member: dict[str, list[Histogram]] = {}
    for group in groups:
        observed = extremes[group.name].range
        for name in group.members[1:]:
            observed = observed.joined(extremes[name].range)
        made[group.name] = Histogram(observed)
        for name in group.members:
            of_member.setdefault(name, []).append(made[group.name])

    def observe(name: str, tensor: Tensor) -> None:
        for histogram in of_member.get(name, ()):
            histogram.add(tensor)

    for row in samples:
        emulator.run(row, observe=observe)
    return made


def compared_rows(samples: Samples, count: int = COMPARED_ROWS) -> list[Feeds]:
    """The same few rows of a data set in whatever order it comes."""
    kept: list[tuple[int, int, Feeds]] = []
    for i, row in enumerate(samples):
        # the smallest digests, so the heap holds negatives and gives up the largest
        entry = (-int(row_digest(row), 16), -i, row)
        if len(kept) < count:
            heapq.heappush(kept, entry)
        elif entry[0] > kept[0][0]:
            heapq.heapreplace(kept, entry)
    return [row for _, _, row in sorted(kept, key=lambda entry: -entry[0])]


def output_errors(
    emulator: Emulator,
    rows: Sequence[Feeds],
    groups: Sequence[Group],
    candidates: Mapping[str, Mapping[str, Range]],
    layers: Sequence[Layer],
) -> dict[str, dict[str, float]]:
    """Relative squared error of the layers that read a group, for each candidate range of the group.

    One group is quantised at a time, with the quantised weights; a group that no layer reads is left out.
    """
    group_of = {
        name: group
        for group in groups
        if group.name in candidates
        for name in (*group.members, *group.aliases)
    }
    wanted = {name for layer in layers for name in layer.op.inputs}
    fakes = {
        group.name: {
            m: FakeQuant.of(group.fmt, found, symmetric=group.symmetric, device=emulator.device)
            for m, found in candidates[group.name].items()
        }
        for group in groups
        if group.name in candidates
    }
    sums: dict[tuple[str, str, int], list[float]] = {}
    norms: dict[int, list[float]] = {}
    for row in rows:
        values: dict[str, Tensor] = {}

        def observe(name: str, tensor: Tensor, into: dict[str, Tensor] = values) -> None:
            if name in wanted:
                into[name] = tensor

        emulator.run(row, observe=observe)
        for i, layer in enumerate(layers):
            read = {group_of[n].name: n for n in layer.op.inputs if n in group_of}
            if not read:
                continue
            want = layer.outputs(values, is_quantized=False).double()
            norms.setdefault(i, []).append(float(want.square().sum()))
            for name, member in read.items():
                for method, fake in fakes[name].items():
                    got = layer.outputs({**values, member: fake(values[member])}, is_quantized=True)
                    error = float((got.double() - want).square().sum())
                    sums.setdefault((name, method, i), []).append(error)
    return _relative(sums, norms)


def _relative(
    sums: Mapping[tuple[str, str, int], list[float]], norms: Mapping[int, list[float]]
) -> dict[str, dict[str, float]]:
    """Over all rows; `fsum` rounds once, so that the order of rows does not matter.

    A layer whose own output is infinite or NaN tells nothing; one that becomes so tells that a range is bad.
    """
    totals: dict[str, dict[str, list[float]]] = {}
    for (name, method, i), errors in sums.items():
        if not all(map(math.isfinite, norms[i])):
            continue
        norm = math.fsum(norms[i])
        error = math.fsum(errors) if all(map(math.isfinite, errors)) else math.inf
        share = error / norm if norm else 0.0
        totals.setdefault(name, {}).setdefault(method, []).append(share)
    return {
        name: {m: math.fsum(shares) for m, shares in by_method.items()} for name, by_method in totals.items()
    }
