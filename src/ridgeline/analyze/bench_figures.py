"""Samples of a bench run as rows: latency and throughput, the parts of a query, averages of queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

from ridgeline.analyze.bench_run import Query
from ridgeline.base.timing import Timing

# a part of a query: its field, and what it is called on a GPU and on a CPU
PARTS = (
    ("enqueue_us", "enqueue", "enqueue"),
    ("h2d_us", "host to device", "before the steps"),
    ("compute_us", "compute", "steps"),
    ("d2h_us", "device to host", "after the steps"),
)


@dataclass(frozen=True)
class Latency:
    """One runner's figures, percentiles as trtexec counts them."""

    name: str
    note: str
    queries: int
    queries_per_sample: int
    throughput_qps: float  # of all contexts together
    min_us: float
    max_us: float
    mean_us: float
    median_us: float
    p90_us: float
    p95_us: float
    p99_us: float
    variation: float  # coefficient of variation of the samples
    percentiles_us: dict[str, float]  # those asked for, by their number: "99.9"


@dataclass(frozen=True)
class PartTime:
    """One part of a query, over all queries. On a GPU from CUDA events; `enqueue` is host time."""

    part: str  # enqueue | h2d | compute | d2h
    label: str
    min_us: float
    max_us: float
    mean_us: float
    median_us: float
    variation: float
    percentiles_us: dict[str, float]


@dataclass(frozen=True)
class Average:
    """The mean of some queries in a row of one context, as trtexec lists them with --avgRuns."""

    context: int
    start_us: float
    queries: int
    latency_us: float
    enqueue_us: float | None
    h2d_us: float | None
    compute_us: float | None
    d2h_us: float | None


def flat_row(row: Any) -> dict[str, Any]:
    """A row's fields, with a column for each percentile."""
    values = {name: value for name, value in vars(row).items() if name != "percentiles_us"}
    return values | {f"p{name}_us": value for name, value in row.percentiles_us.items()}


def percentile_name(percentile: float) -> str:
    return f"{percentile:g}"


def percentiles_of(timing: Timing, percentiles: Sequence[float]) -> dict[str, float]:
    return {percentile_name(p): timing.percentile(p) for p in percentiles}


def variation_of(samples: Sequence[float]) -> float:
    mean = fmean(samples)
    return pstdev(samples) / mean if mean else 0.0


def latency_row(
    name: str, timing: Timing, percentiles: Sequence[float], *, note: str = "", qps: float | None = None
) -> Latency:
    """`qps` is what was counted; without it, queries follow each other without a pause."""
    samples = timing.samples_us
    mean = fmean(samples)
    return Latency(
        name=name,
        note=note,
        queries=len(samples) * timing.inner,
        queries_per_sample=timing.inner,
        throughput_qps=qps if qps is not None else 1e6 / mean if mean else 0.0,
        min_us=timing.min_us,
        max_us=timing.percentile(100),
        mean_us=mean,
        median_us=timing.median_us,
        p90_us=timing.percentile(90),
        p95_us=timing.percentile(95),
        p99_us=timing.percentile(99),
        variation=variation_of(samples),
        percentiles_us=percentiles_of(timing, percentiles),
    )


def part_rows(
    queries: Sequence[Query], percentiles: Sequence[float], *, on_gpu: bool
) -> tuple[PartTime, ...]:
    """The parts that were measured in every query."""
    rows = []
    for field, on_device, on_host in PARTS:
        samples = [getattr(query, field) for query in queries]
        if None in samples:
            continue
        timing = Timing(tuple(samples))
        rows.append(
            PartTime(
                part=field.removesuffix("_us"),
                label=on_device if on_gpu else on_host,
                min_us=timing.min_us,
                max_us=timing.percentile(100),
                mean_us=timing.mean_us,
                median_us=timing.median_us,
                variation=variation_of(samples),
                percentiles_us=percentiles_of(timing, percentiles),
            )
        )
    return tuple(rows)


def averages(queries: Sequence[Query], runs: int) -> tuple[Average, ...]:
    """Groups of `runs` queries of one context, by their start; queries left over make no group."""
    rows = []
    for context in sorted({query.context for query in queries}) if runs else ():
        own = [query for query in queries if query.context == context]
        for first in range(0, len(own) - runs + 1, runs):
            group = own[first : first + runs]
            parts = [_mean([getattr(query, field) for query in group]) for field, _, _ in PARTS]
            mean_us = fmean(query.latency_us for query in group)
            rows.append(Average(context, group[0].start_us, len(group), mean_us, *parts))
    return tuple(sorted(rows, key=lambda row: row.start_us))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None
