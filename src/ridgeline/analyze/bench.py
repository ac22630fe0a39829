"""Speed of an engine, alone or against peers in the same interleaved run, as rows with units.

A row against a peer carries the difference of their outputs: a fast wrong answer is no result.
Nothing here prints; `peers.py` makes the peers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median, pstdev
from time import perf_counter
from typing import TypeAlias

import numpy as np

from ridgeline.analyze.tensors import Difference, differences
from ridgeline.base.notebook import Notebook, Table, View
from ridgeline.base.spec import EPSILON
from ridgeline.base.timing import Timing, interleave
from ridgeline.plan.report import Report
from ridgeline.runtime.engine import Engine
from ridgeline.runtime.non_tensor import element_name, flattened

Feeds: TypeAlias = Mapping[str, np.ndarray]

UNSTABLE = 0.025
OVERHEAD_BOUND = 0.1
# idle threads of onnxruntime and OpenMP spin for tens of ms and take a core from the next runner
SETTLE_S = 0.05


@dataclass(frozen=True)
class Peer:
    """Another way to run the same model."""

    name: str
    run: Callable[[Feeds], Mapping[str, np.ndarray]]
    note: str = ""


@dataclass(frozen=True)
class Latency:
    """One runner's figures, percentiles as trtexec counts them."""

    name: str
    note: str
    queries: int
    queries_per_sample: int
    throughput_qps: float
    min_us: float
    max_us: float
    mean_us: float
    median_us: float
    p90_us: float
    p95_us: float
    p99_us: float
    variation: float  # coefficient of variation of the samples


@dataclass(frozen=True)
class Versus:
    """The engine against one peer; a ratio above 1 says the engine is faster."""

    peer: str
    ratio: float
    ratio_p10: float
    ratio_p90: float
    output: str
    max_difference: float
    tolerance: float | None  # None: the engine was built without verification, or is judged by a budget

    @property
    def agrees(self) -> bool:
        if self.tolerance is None:
            return math.isfinite(self.max_difference)
        return self.max_difference <= self.tolerance

    @property
    def is_noise(self) -> bool:
        """The samples lie on both sides of parity."""
        return self.ratio_p10 <= 1 <= self.ratio_p90


@dataclass(frozen=True)
class BenchReport(Notebook):
    """A bench run: the engine first, then its peers."""

    model: str
    target: str
    threads: int
    shapes: dict[str, tuple[int, ...]]  # of the inputs
    types: dict[str, str]
    warmup_queries: int
    warmup_ms: float
    walltime_s: float
    call_overhead_us: float | None
    rows: tuple[Latency, ...]
    versus: tuple[Versus, ...]
    warnings: tuple[str, ...]
    versions: dict[str, str]

    def _view(self) -> View:
        versus = tuple({**vars(row), "agrees": row.agrees} for row in self.versus)
        tables = (Table("", tuple(map(vars, self.rows))), Table("Against the peers", versus))
        return View(f"{self.model}, {self.target}, {self.threads} threads", tables, self.warnings)

    @property
    def passed(self) -> bool:
        return all(row.agrees for row in self.versus)


def bench(
    engine: Engine,
    feeds: Feeds,
    *,
    peers: Sequence[Peer] = (),
    duration_s: float = 3.0,
    warmup_ms: float = 200.0,
    on_round: Callable[[int, int], None] | None = None,
) -> BenchReport:
    """Run each for about `duration_s`. Alone, a sample is one query; with peers, one or a few in a row."""
    outputs = engine.run(feeds)
    versus_outputs = [differences(outputs, peer.run(feeds)) for peer in peers]
    runners = [partial(run, feeds) for run in (engine.run, *(peer.run for peer in peers))]
    warmup_queries = sum(_warm_up(runner, warmup_ms) for runner in runners)
    began = perf_counter()
    if peers:
        timings = interleave(
            runners, budget_s=duration_s * len(runners), settle_s=SETTLE_S, on_round=on_round
        )
    else:
        timings = interleave(runners, budget_s=duration_s, min_sample_us=0, on_round=on_round)
    walltime_s = perf_counter() - began

    plan, report = engine.plan, engine.report
    rows = [_latency("ridgeline", "", timings[0])]
    rows += [_latency(p.name, p.note, t) for p, t in zip(peers, timings[1:], strict=True)]
    return BenchReport(
        model=plan.model,
        target=str(plan.target),
        threads=plan.target.threads,
        shapes={name: tuple(array.shape) for name, array in flattened(feeds).items()},
        types={name: element_name(array) for name, array in flattened(feeds).items()},
        warmup_queries=warmup_queries,
        warmup_ms=warmup_ms,
        walltime_s=walltime_s,
        call_overhead_us=report.call_overhead_us,
        rows=tuple(rows),
        versus=tuple(
            _versus(peer, apart, timings[0], timing, report)
            for peer, apart, timing in zip(peers, versus_outputs, timings[1:], strict=True)
        ),
        warnings=_warnings(rows, report),
        versions=dict(report.versions),
    )


def _warm_up(call: Callable[[], object], warmup_ms: float) -> int:
    queries, start = 0, perf_counter()
    while (perf_counter() - start) * 1e3 < warmup_ms:
        call()
        queries += 1
    return queries


def _latency(name: str, note: str, timing: Timing) -> Latency:
    samples = timing.samples_us
    mean = fmean(samples)
    return Latency(
        name=name,
        note=note,
        queries=len(samples) * timing.inner,
        queries_per_sample=timing.inner,
        throughput_qps=1e6 / mean if mean else 0.0,
        min_us=timing.min_us,
        max_us=timing.percentile(100),
        mean_us=mean,
        median_us=timing.median_us,
        p90_us=timing.percentile(90),
        p95_us=timing.percentile(95),
        p99_us=timing.percentile(99),
        variation=pstdev(samples) / mean if mean else 0.0,
    )


def _versus(peer: Peer, apart: Sequence[Difference], ours: Timing, theirs: Timing, report: Report) -> Versus:
    ratios = Timing(tuple(t / o for t, o in zip(theirs.samples_us, ours.samples_us, strict=True)))
    worst, tolerance = _worst(apart, report)
    return Versus(
        peer=peer.name,
        ratio=median(ratios.samples_us),
        ratio_p10=ratios.p10_us,
        ratio_p90=ratios.p90_us,
        output=worst.output if worst else "",
        max_difference=worst.max_difference if worst else 0.0,
        tolerance=tolerance,
    )


def _worst(apart: Sequence[Difference], report: Report) -> tuple[Difference | None, float | None]:
    """The output that comes nearest to its tolerance, or goes furthest past it."""
    judged = [(difference, _tolerance(difference, report)) for difference in apart]
    return max(judged, key=lambda pair: _severity(*pair), default=(None, None))


def _severity(difference: Difference, tolerance: float | None) -> float:
    if tolerance:
        return difference.max_difference / tolerance
    return math.inf if difference.max_difference and tolerance == 0 else difference.max_difference


def _tolerance(difference: Difference, report: Report) -> float | None:
    """Verification's own for this output, doubled, since the peer rounds as well; and a few steps of the
    values at hand, since other inputs than verification's may make larger ones. None for a lowered engine:
    a budget is for samples like those that it was judged on, and inputs here may be any."""
    if report.precision is not None and report.precision.is_lowered:
        return None
    known = [check.tolerance for check in report.checks if check.output == difference.output]
    return 2 * max(known) + 8 * EPSILON["float32"] * difference.scale if known else None


def _warnings(rows: Sequence[Latency], report: Report) -> tuple[str, ...]:
    found = []
    unstable = [f"{row.name} {row.variation * 100:.1f} %" for row in rows if row.variation > UNSTABLE]
    if unstable:
        found.append(
            f"unstable: coefficient of variation {', '.join(unstable)}, above {UNSTABLE * 100} %; "
            "a longer --duration or a quieter machine gives better figures"
        )
    overhead, median_us = report.call_overhead_us, rows[0].median_us
    if overhead is not None and overhead > OVERHEAD_BOUND * median_us:
        found.append(
            f"overhead-bound: {overhead:.1f} µs of {median_us:.1f} µs per call "
            "are spent outside the steps; a larger batch per call spreads them"
        )
    return tuple(found)
