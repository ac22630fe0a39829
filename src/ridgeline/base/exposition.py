"""Metrics in Prometheus' text format 0.0.4: names and labels as given, numbers without an exponent.

Readers of Triton's and DCGM's metrics expect names without added suffixes and plain digits, which the package
prometheus-client does not write.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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


def exposition(families: Iterable[Family]) -> str:
    """Families without a sample are left out: what is not measured is not zero."""
    lines = []
    for family in families:
        if family.samples:
            lines.append(f"# HELP {family.name} {_escaped(family.help)}")
            lines.append(f"# TYPE {family.name} {family.kind}")
            lines += [f"{family.name}{_labels(labels)} {_number(value)}" for labels, value in family.samples]
    return "".join(f"{line}\n" for line in lines)


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
    return str(int(value)) if value == int(value) else f"{value:.6f}".rstrip("0")
