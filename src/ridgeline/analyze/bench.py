"""Speed of an engine, alone or against peers in the same interleaved run, as rows with units.

A row against a peer carries the difference of their outputs: a fast wrong answer is no result.
Nothing here prints; `peers.py` makes the peers, `bench_run.py` measures an engine alone.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np

from ridgeline.analyze import bench_warnings
from ridgeline.analyze.bench_agreement import Agreement
from ridgeline.analyze.bench_clocks import clock_warnings, watched_clocks
from ridgeline.analyze.bench_figures import (
    Average,
    Latency,
    PartTime,
    averages,
    flat_row,
    latency_row,
    part_rows,
)
from ridgeline.analyze.bench_run import Query, QueryRunner, measure
from ridgeline.analyze.bench_settings import BenchSettings, require_alone, require_possible
from ridgeline.analyze.bench_transfers import make_runners
from ridgeline.analyze.doctor_host import HostFacts
from ridgeline.analyze.tensors import Difference, differences
from ridgeline.base.notebook import Notebook, Table, View
from ridgeline.base.nvml import Nvml, open_nvml
from ridgeline.base.timing import Timing, interleave
from ridgeline.plan.report import Report
from ridgeline.runtime.engine import Engine
from ridgeline.runtime.non_tensor import element_name, flattened
from ridgeline.runtime.plan_again import plan_for

Feeds: TypeAlias = Mapping[str, np.ndarray]
OnRound: TypeAlias = Callable[[int, int], None]

# idle threads of onnxruntime and OpenMP spin for tens of ms and take a core from the next runner
SETTLE_S = 0.05


@dataclass(frozen=True)
class Peer:
    """Another way to run the same model."""

    name: str
    run: Callable[[Feeds], Mapping[str, np.ndarray]]
    note: str = ""


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
class ContextCheck:
    """The outputs of one context, of its last query beside the others, against those of the first context."""

    context: int
    output: str
    max_difference: float
    tolerance: float | None  # None: they must be equal

    @property
    def agrees(self) -> bool:
        return self.max_difference <= (self.tolerance or 0.0)


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
    concurrency: int = 1
    transfers: bool = True
    graph: bool = True  # asked for; on a GPU whose steps cannot be captured a note says so
    parts: tuple[PartTime, ...] = ()  # of a query of the engine
    averages: tuple[Average, ...] = ()
    contexts: tuple[ContextCheck, ...] = ()  # of the second and later ones

    def _view(self) -> View:
        versus = tuple({**vars(row), "agrees": row.agrees} for row in self.versus)
        tables = (
            Table("", tuple(map(flat_row, self.rows))),
            Table("Parts of a query", tuple(map(flat_row, self.parts))),
            Table("Against the peers", versus),
        )
        return View(f"{self.model}, {self.target}, {self.threads} threads", tables, self.warnings)

    @property
    def passed(self) -> bool:
        return all(row.agrees for row in self.versus) and all(row.agrees for row in self.contexts)


@dataclass(frozen=True)
class BenchRun:
    """A report with what it was made from: every query of the engine alone, and the outputs."""

    report: BenchReport
    queries: tuple[Query, ...]
    outputs: Mapping[str, Any]


def bench(
    engine: Engine,
    feeds: Feeds,
    *,
    peers: Sequence[Peer] = (),
    duration_s: float = 3.0,
    warmup_ms: float = 200.0,
    on_round: OnRound | None = None,
) -> BenchReport:
    """Run each for about `duration_s`. Alone, a sample is one query; with peers, one or a few in a row."""
    settings = BenchSettings(duration_s=duration_s, warmup_ms=warmup_ms)
    if peers:
        return bench_peers(engine, feeds, peers, settings, on_round=on_round)
    return bench_alone(engine, feeds, settings, on_round=on_round).report


def bench_alone(
    engine: Engine,
    feeds: Feeds,
    settings: BenchSettings,
    *,
    on_round: OnRound | None = None,
    open_gpus: Callable[[], Nvml] = open_nvml,
    host: HostFacts | None = None,
) -> BenchRun:
    """The engine without peers: any number of contexts side by side, every query kept.

    Warnings about the clocks of a CPU are made from `host`, those about a GPU's are read while it runs.
    """
    target, percentiles = engine.plan.target, settings.percentiles
    is_gpu = target.traits.is_gpu
    require_possible(settings, target)
    plan_for(engine, feeds)
    with ExitStack() as stack:
        runners = make_runners(engine, feeds, settings, stack)
        clocks = stack.enter_context(watched_clocks(open_gpus)) if is_gpu else None
        measured = measure(runners, settings, on_round=on_round)
        outputs = runners[0].outputs()
        contexts = _compare_contexts(runners, Agreement(engine, feeds))
    samples = Timing(tuple(query.latency_us for query in measured.queries))
    row = latency_row("ridgeline", samples, percentiles, qps=measured.throughput_qps)
    parts = part_rows(measured.queries, percentiles, on_gpu=is_gpu)
    warnings = [
        *_common_warnings([row], engine.report, percentiles),
        *bench_warnings.side_by_side(
            settings.concurrency, target.threads, None if is_gpu else len(os.sched_getaffinity(0))
        ),
        *(bench_warnings.bound_elsewhere(parts) if is_gpu else ()),
        *(clock_warnings(clocks) if clocks is not None else ()),
        *(bench_warnings.host_limits(host) if host is not None and not is_gpu else ()),
        *_differing(contexts),
    ]
    if not (settings.transfers or is_gpu):
        warnings.append("--no-transfers changes nothing on a CPU: steps read the caller's memory")
    if not parts:
        warnings.append("the steps could not be told from the rest of a query: there are only whole queries")
    report = BenchReport(
        **_about(engine, feeds),
        warmup_queries=measured.warmup_queries, warmup_ms=settings.warmup_ms, walltime_s=measured.walltime_s,
        rows=(row,), versus=(), warnings=tuple(warnings), concurrency=settings.concurrency,
        transfers=settings.transfers, graph=settings.graph, parts=parts,
        averages=averages(measured.queries, settings.avg_runs), contexts=contexts,
    )  # fmt: skip
    return BenchRun(report, measured.queries, outputs)


def bench_peers(
    engine: Engine,
    feeds: Feeds,
    peers: Sequence[Peer],
    settings: BenchSettings,
    *,
    on_round: OnRound | None = None,
) -> BenchReport:
    """The engine and its peers in turns, one context each, outputs compared first."""
    require_alone(settings)
    plan_for(engine, feeds)
    run = engine.context(wait=True).run
    outputs = run(feeds)
    versus_outputs = [differences(outputs, peer.run(feeds)) for peer in peers]
    runners = [partial(each, feeds) for each in (run, *(peer.run for peer in peers))]
    warmup_queries = sum(_warm_up(runner, settings.warmup_ms) for runner in runners)
    began = perf_counter()
    timings = interleave(
        runners, budget_s=settings.duration_s * len(runners), settle_s=SETTLE_S, on_round=on_round
    )
    walltime_s = perf_counter() - began
    agreement = Agreement(engine, feeds)
    rows = [latency_row("ridgeline", timings[0], settings.percentiles)]
    rows += [
        latency_row(peer.name, timing, settings.percentiles, note=peer.note)
        for peer, timing in zip(peers, timings[1:], strict=True)
    ]
    return BenchReport(
        **_about(engine, feeds),
        warmup_queries=warmup_queries, warmup_ms=settings.warmup_ms, walltime_s=walltime_s, rows=tuple(rows),
        versus=tuple(
            _versus(peer, apart, timings[0], timing, agreement)
            for peer, apart, timing in zip(peers, versus_outputs, timings[1:], strict=True)
        ),
        warnings=tuple(_common_warnings(rows, engine.report, settings.percentiles)),
    )  # fmt: skip


def _about(engine: Engine, feeds: Feeds) -> dict[str, Any]:
    """The fields of a report that say what was run."""
    plan, arrays = engine.plan, flattened(feeds)
    return {
        "model": plan.model,
        "target": str(plan.target),
        "threads": plan.target.threads,
        "shapes": {name: tuple(array.shape) for name, array in arrays.items()},
        "types": {name: element_name(array) for name, array in arrays.items()},
        "call_overhead_us": engine.report.call_overhead_us,
        "versions": dict(engine.report.versions),
    }


def _warm_up(call: Callable[[], object], warmup_ms: float) -> int:
    queries, start = 0, perf_counter()
    while (perf_counter() - start) * 1e3 < warmup_ms:
        call()
        queries += 1
    return queries


def _common_warnings(rows: Sequence[Latency], report: Report, percentiles: Sequence[float]) -> list[str]:
    return [
        *bench_warnings.unstable({row.name: row.variation for row in rows}),
        *bench_warnings.overhead_bound(report.call_overhead_us, rows[0].median_us),
        *bench_warnings.too_few(rows[0], percentiles),
        *bench_warnings.another_plan(report.planned_again),
    ]


def _compare_contexts(runners: Sequence[QueryRunner], agreement: Agreement) -> tuple[ContextCheck, ...]:
    """Every context ran the same inputs; a result that another one spoiled shows here."""
    first = runners[0].outputs()
    checks = []
    for index, runner in enumerate(runners[1:], start=1):
        worst, tolerance = agreement.worst(differences(runner.outputs(), first))
        if worst is not None:
            checks.append(ContextCheck(index, worst.output, worst.max_difference, tolerance))
    return tuple(checks)


def _differing(contexts: Sequence[ContextCheck]) -> list[str]:
    """Contexts whose bits differ, though within what verification allows."""
    apart = [check for check in contexts if check.max_difference and check.agrees]
    if not apart:
        return []
    worst = max(apart, key=lambda check: check.max_difference)
    return [
        f"not deterministic: outputs of {len(apart)} contexts differ from the first's in their bits, "
        f"by {worst.max_difference:.2g} at most ({worst.output})"
    ]


def _versus(
    peer: Peer, apart: Sequence[Difference], ours: Timing, theirs: Timing, agreement: Agreement
) -> Versus:
    ratios = Timing(tuple(t / o for t, o in zip(theirs.samples_us, ours.samples_us, strict=True)))
    worst, tolerance = agreement.worst(apart)
    return Versus(
        peer=peer.name,
        ratio=median(ratios.samples_us),
        ratio_p10=ratios.p10_us,
        ratio_p90=ratios.p90_us,
        output=worst.output if worst else "",
        max_difference=worst.max_difference if worst else 0.0,
        tolerance=tolerance,
    )
