"""Rows out of a trace: rates, the share of the roofline, what limits each step, and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.analyze.limiter import PRODUCTS, Limit, Limiter, find_limit
from ridgeline.analyze.profile_groups import GroupRow, group_steps
from ridgeline.analyze.show import short_ops
from ridgeline.base.ceilings import Ceilings
from ridgeline.plan.trace import HostTime, MemoryUse, NodeTime, StepTime, Trace

HOT_SPOTS = 3
# nodes inside a step that are worth a line
SMALLEST_PART = 0.05
HOST_BOUND = 0.5


@dataclass(frozen=True)
class ProfileRow:
    """One step. `share` is its part of the time of all steps, `intensity` its flops for each byte."""

    index: int
    name: str
    ops: str
    op_class: str
    precision: str
    tactic: str
    calls: int
    median_us: float
    p10_us: float
    p90_us: float
    share: float
    gap_us: float | None
    overlap_us: float | None
    eager_us: float | None
    bytes: int
    flops: int
    intensity: float | None
    tb_per_s: float | None
    tflop_per_s: float | None
    roofline: float | None
    limiter: Limiter
    evidence: str
    kernels: int
    stream: int = 0  # of the captured run; 0 is the main one


@dataclass(frozen=True)
class PartRow:
    """An op inside a step: of a fused one its share of the work, of a library's its share of the time."""

    name: str
    op_type: str
    time_share: float | None
    bytes_share: float
    flops_share: float
    us: float | None = None  # as the library's own profiler has it


@dataclass(frozen=True)
class HotSpot:
    """A step worth looking at, what to do about it, and what its roof would save."""

    index: int
    name: str
    share: float
    limiter: Limiter
    evidence: str
    advice: str
    could_save_us: float | None
    parts: tuple[PartRow, ...] = ()


@dataclass(frozen=True)
class CrossRow:
    """A step as it was measured here, and as PyTorch's profiler sees it; None: it does not see it.

    `range_us` is its time of the whole step, of which `seen_us` are in ops or kernels that it knows.
    """

    index: int
    name: str
    tactic: str
    median_us: float
    range_us: float | None
    seen_us: float | None
    seen: str  # the ops or kernels


@dataclass(frozen=True)
class ProfileReport:
    """One profile, step by step, and how far the steps explain the whole run."""

    model: str
    target: str
    device: str
    threads: int
    precision: str
    shapes: dict[str, str]
    how: str
    rounds: int
    total_us: float
    total_p10_us: float
    total_p90_us: float
    steps_us: float
    gaps_us: float | None
    overlap_us: float | None
    covered_us: float
    coverage: float
    bound: str  # "host" or "device"
    bound_evidence: str
    ceilings: str  # where the ceilings come from, or why there are none
    rows: tuple[ProfileRow, ...]
    by: str
    groups: tuple[GroupRow, ...]
    hot_spots: tuple[HotSpot, ...]
    memory: MemoryUse
    host: HostTime
    timer_us: float
    versions: dict[str, str]
    notes: tuple[str, ...]
    cross: tuple[CrossRow, ...] = ()


def report_profile(
    trace: Trace,
    ceilings: Ceilings | None,
    *,
    why_no_ceilings: str = "",
    by: str = "",
    cross: Sequence[CrossRow] = (),
) -> ProfileReport:
    """The report of a trace. Without ceilings there is no roofline, and `why_no_ceilings` says why."""
    limits = {step.index: find_limit(step, ceilings) for step in trace.steps}
    bound, evidence = find_bound(trace)
    return ProfileReport(
        model=trace.model,
        target=trace.target,
        device=trace.device,
        threads=trace.threads,
        precision=trace.precision,
        shapes=trace.shapes,
        how=trace.how,
        rounds=trace.rounds,
        total_us=trace.total_us,
        total_p10_us=trace.total_p10_us,
        total_p90_us=trace.total_p90_us,
        steps_us=trace.steps_us,
        gaps_us=trace.gaps_us,
        overlap_us=trace.overlap_us,
        covered_us=trace.covered_us,
        coverage=trace.coverage,
        bound=bound,
        bound_evidence=evidence,
        ceilings=ceilings.source if ceilings is not None else f"none: {why_no_ceilings}",
        rows=tuple(_row(step, limits[step.index], trace.steps_us) for step in trace.steps),
        by=by,
        groups=group_steps(trace, by) if by else (),
        hot_spots=tuple(
            _hot_spot(step, limits[step.index], trace) for step in trace.hottest(HOT_SPOTS) if step.median_us
        ),
        memory=trace.memory,
        host=trace.host,
        timer_us=trace.timer_us,
        versions=trace.versions,
        notes=trace.notes,
        cross=tuple(cross),
    )


def find_bound(trace: Trace) -> tuple[str, str]:
    """Whether the host or the device sets the pace, and the figures that say so."""
    host = trace.host
    if host.enqueue_us is not None:
        said = f"queueing a run takes {host.enqueue_us:.1f} µs, the device {trace.total_us:.1f} µs"
        return ("host" if host.enqueue_us > trace.total_us else "device"), said
    if host.run_us and host.call_overhead_us is not None:
        said = f"{host.call_overhead_us:.1f} of {host.run_us:.1f} µs of a call are spent outside the steps"
        return ("host" if host.call_overhead_us > HOST_BOUND * host.run_us else "device"), said
    return "device", "calls were not timed"


def _row(step: StepTime, limit: Limit, total: float) -> ProfileRow:
    us = step.median_us
    return ProfileRow(
        index=step.index,
        name=step.name,
        ops=short_ops(step.op_types),
        op_class=step.op_class,
        precision=step.precision,
        tactic=step.tactic,
        calls=step.calls,
        median_us=us,
        p10_us=step.p10_us,
        p90_us=step.p90_us,
        share=us / total if total else 0.0,
        gap_us=step.gap_us,
        overlap_us=step.overlap_us,
        eager_us=step.eager_us,
        bytes=step.bytes,
        flops=step.flops,
        intensity=step.flops / step.bytes if step.bytes else None,
        tb_per_s=step.bytes / us / 1e6 if us else None,
        tflop_per_s=step.flops / us / 1e6 if us else None,
        roofline=limit.roofline,
        limiter=limit.limiter,
        evidence=limit.evidence,
        kernels=len(step.kernels),
        stream=step.stream,
    )


def _hot_spot(step: StepTime, limit: Limit, trace: Trace) -> HotSpot:
    saved = None if limit.bound_us is None else max(step.median_us - limit.bound_us, 0.0)
    return HotSpot(
        index=step.index,
        name=step.name,
        share=step.median_us / trace.steps_us if trace.steps_us else 0.0,
        limiter=limit.limiter,
        evidence=limit.evidence,
        advice=_advice(step, limit.limiter),
        could_save_us=saved,
        parts=part_rows(step),
    )


def part_rows(step: StepTime) -> tuple[PartRow, ...]:
    """The ops inside a step, the largest first; of a library's span as it was timed there."""
    if step.inside:
        total = sum(node.us for node in step.inside) or 1.0
        rows = [PartRow(_node_name(n), n.op_type, n.us / total, 0.0, 0.0, n.us) for n in step.inside]
        return tuple(sorted(rows, key=lambda row: -(row.time_share or 0.0)))
    if len(step.work) < 2:
        return ()
    rows = [
        PartRow(op.name, op.op_type, None, op.bytes / (step.bytes or 1), op.flops / (step.flops or 1))
        for op in step.work
    ]
    return tuple(sorted(rows, key=lambda row: (-row.flops_share, -row.bytes_share)))


def _node_name(node: NodeTime) -> str:
    """The model's own name where one node is meant; the library's for a part of a fused region."""
    same = [source for source in node.sources if node.op_type.lower() in source.lower()]
    named = same if same else node.sources
    return named[0] if len(named) == 1 else node.name


_ADVICE: dict[Limiter, str] = {
    "memory": "move fewer bytes: a lower precision (`--precision auto`), or a fusion with its neighbours; "
    "{explain} says what keeps them apart",
    "L2": "it runs out of the cache already: only a fusion with its neighbours helps; {explain}",
    "tensor cores": "it is at the roof of its type: a lower precision (`--precision fp8` or `int8`) helps",
    "ALU/SFU": "its arithmetic sets the pace: {lower}",
    "launch": "it does too little for a step of its own: {explain} says what keeps it from being fused; "
    "larger batches help too",
    "tail/wave": "another batch size fills the last wave; `--level 5` tries other tiles and splits",
    "host": "the device waits for the host before it: a captured run, or fewer and larger steps",
    "latency": "give it more work at a time (a larger batch), or `--level 5` for more configs; {explain} has "
    "the rivals",
    "unknown": "{explain} has the rivals and their times",
}


def _advice(step: StepTime, limiter: Limiter) -> str:
    """What to try next, with the command that does it."""
    # names come from the model, and people paste this into a shell
    explain = f"`ridge explain ENGINE {shlex.quote(step.sources[0] if step.sources else step.name)}`"
    if step.inside:
        node = max(step.inside, key=lambda node: node.us)
        inside = f"inside, {node.op_type} {_node_name(node)} takes longest"
        return f"a library runs it as a whole; {inside}; {explain} has the rivals"
    lower = "`--precision auto` tries lower precisions"
    if step.op_class not in PRODUCTS:
        lower = "cheaper functions (tanh for erf), or a fusion with a step that waits for memory"
    return _ADVICE[limiter].format(explain=explain, lower=lower)
