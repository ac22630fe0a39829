"""What makes the figures of a bench run less than they seem."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from ridgeline.analyze.bench_figures import Latency, PartTime, percentile_name
from ridgeline.analyze.doctor_cpu import judge_host
from ridgeline.analyze.doctor_host import HostFacts
from ridgeline.base.timing import set_aside
from ridgeline.plan.report import PlannedAgain

UNSTABLE = 0.025
OVERHEAD_BOUND = 0.1
ENQUEUE_BOUND = 0.8  # of the GPU's own time, as trtexec has it


def unstable(variations: Mapping[str, float]) -> Iterator[str]:
    """By the coefficient of variation of each runner."""
    found = [
        f"{name} {variation * 100:.1f} %" for name, variation in variations.items() if variation > UNSTABLE
    ]
    if found:
        yield (
            f"unstable: coefficient of variation {', '.join(found)}, above {UNSTABLE * 100} %; "
            "a longer --duration or a quieter machine gives better figures"
        )


def overhead_bound(overhead_us: float | None, median_us: float) -> Iterator[str]:
    if overhead_us is not None and overhead_us > OVERHEAD_BOUND * median_us:
        yield (
            f"overhead-bound: {overhead_us:.1f} µs of {median_us:.1f} µs per call "
            "are spent outside the steps; a larger batch per call spreads them"
        )


def bound_elsewhere(parts: Sequence[PartTime]) -> Iterator[str]:
    """Of a GPU: the host or the bus takes as long as the work itself."""
    medians = {row.part: row.median_us for row in parts}
    compute = medians.get("compute", 0.0)
    if medians.get("enqueue", 0.0) > ENQUEUE_BOUND * compute:
        yield (
            f"enqueue-bound: the host takes {medians['enqueue']:.1f} µs to queue {compute:.1f} µs of work; "
            "a CUDA graph or a larger batch helps, and the GPU's own time may be shorter than it looks"
        )
    slow = [row for row in parts if row.part in ("h2d", "d2h") and row.median_us >= compute]
    for row in slow:
        yield (
            f"transfer-bound: {row.label} takes {row.median_us:.1f} µs, the steps {compute:.1f} µs; "
            "--no-transfers measures the steps with inputs and outputs on the GPU"
        )


def too_few(row: Latency, percentiles: Sequence[float]) -> Iterator[str]:
    """A percentile for which no sample is set aside is the largest sample, whatever it is called."""
    samples = row.queries // row.queries_per_sample
    short = [p for p in percentiles if p < 100 and set_aside(p, samples) == 0]
    if short:
        names = ", ".join(f"p{percentile_name(p)}" for p in short)
        needed = math.ceil(round(100 / (100 - max(short)), 6))
        yield (
            f"too few samples: {names} of {samples} of {row.name} is the largest of them; "
            f"{needed:,} or more are needed, which --iterations or a longer --duration gives"
        )


def host_limits(host: HostFacts) -> Iterator[str]:
    """Of a CPU: what `ridge doctor` finds about its clock and its quota. Its load may be our own build's."""
    for row in judge_host(host, {}):
        if row.name in ("governor", "quota") and row.verdict == "distorts":
            yield f"{row.name} {row.value}: {row.reason}; {row.fix}"


def side_by_side(concurrency: int, threads: int, cores: int | None) -> Iterator[str]:
    """`cores` is None on a GPU."""
    if concurrency > 1:
        yield f"{concurrency} contexts share the machine: a query's latency includes waiting for the others"
        if cores is not None and concurrency * threads > cores:
            yield (
                f"{concurrency} contexts of {threads} threads want {concurrency * threads} cores, "
                f"and there are {cores}: an engine built with fewer --threads is a fairer start"
            )


def another_plan(again: PlannedAgain | None) -> list[str]:
    """Shapes were guessed, and what was measured is not the plan that the file has."""
    if again is None or not again.is_taken:
        return []
    return [f"{again}; a build that is given these shapes has that plan from the start"]
