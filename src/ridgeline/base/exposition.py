"""Metrics in Prometheus' text format 0.0.4: names and labels as given, numbers without an exponent.

Readers of Triton's and DCGM's metrics expect names without added suffixes and plain digits, which the package
prometheus-client does not write.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]


@dataclass(frozen=True)
class Family:
    """One metric: its samples are pairs of labels and a value."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    samples: tuple[tuple[Labels, float], ...]


@dataclass(frozen=True)
class Distribution:
    """`counts[i]` values lie above `bounds[i - 1]`, up to `bounds[i]`; the last count is of larger ones."""

    bounds: tuple[float, ...]  # ascending
    counts: tuple[int, ...]  # one more than bounds
    sum: float


@dataclass(frozen=True)
class HistogramFamily:
    """One metric whose samples are pairs of labels and a distribution."""

    name: str
    help: str
    samples: tuple[tuple[Labels, Distribution], ...]
    kind: Literal["histogram"] = "histogram"


def exposition(families: Iterable[Family | HistogramFamily]) -> str:
    """Families without a sample are left out: what is not measured is not zero."""
    lines: list[str] = []
    for family in families:
        if family.samples:
            lines.append(f"# HELP {family.name} {_escaped(family.help)}")
            lines.append(f"# TYPE {family.name} {family.kind}")
            lines += _lines_of_values(family) if isinstance(family, Family) else _lines_of_buckets(family)
    return "".join(f"{line}\n" for line in lines)


def _lines_of_values(family: Family) -> Iterator[str]:
    for labels, value in family.samples:
        yield f"{family.name}{_labels(labels)} {_number(value)}"


def _lines_of_buckets(family: HistogramFamily) -> Iterator[str]:
    """A bucket counts all values up to its bound, `le`, and the last one all there are."""
    for labels, made in family.samples:
        total = 0
        for bound, total in zip((*made.bounds, math.inf), accumulate(made.counts), strict=True):
            yield f"{family.name}_bucket{_labels({**labels, 'le': _number(bound)})} {total}"
        yield f"{family.name}_sum{_labels(labels)} {_number(made.sum)}"
        yield f"{family.name}_count{_labels(labels)} {total}"


def _labels(labels: Labels) -> str:
    quoted = ",".join(f'{name}="{_escaped(value, quotes=True)}"' for name, value in labels.items())
    return f"{{{quoted}}}" if quoted else ""


def _escaped(text: str, *, quotes: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else f"{value:.6f}".rstrip("0").rstrip(".")
