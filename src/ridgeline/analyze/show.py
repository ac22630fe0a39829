"""Rows that describe an engine: signature, steps, memory, verification. Nothing here prints."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass

from ridgeline.analyze.parts import PartRow, part_rows, profile_text
from ridgeline.analyze.streams import stream_names, streams_text
from ridgeline.base.grouping import grouped
from ridgeline.base.spec import Port
from ridgeline.plan.plan import Plan, Step, total_us
from ridgeline.plan.report import Check, Precision, Report, RunPart


@dataclass(frozen=True)
class PortRow:
    """One input or output, dim by dim; None for a rank or a dim that the model does not state."""

    name: str
    dtype: str
    dims: tuple[int | str | None, ...] | None
    planned: tuple[int, ...] | None = None  # of inputs
    ranges: tuple[tuple[int, int, int], ...] | None = None  # min, opt, max; None if any size is allowed

    @property
    def moves(self) -> bool:
        """Whether the ranges allow more than one size."""
        return any(low != high for low, _, high in self.ranges or ())


@dataclass(frozen=True)
class StepRow:
    """One step; `share` is its part of the time of all steps, None where steps were not timed."""

    index: int
    name: str
    ops: str
    nodes: int
    tactic: str
    median_us: float | None
    share: float | None
    flops: int
    bytes: int
    notes: tuple[str, ...] = ()
    predicted_us: float | None = None
    stream: str = ""  # "main", or its number; empty where all steps are on one


@dataclass(frozen=True)
class TacticRow:
    """All steps of one tactic."""

    tactic: str
    steps: int
    total_us: float | None


@dataclass(frozen=True)
class MemoryRow:
    """Bytes of one kind, and whether every context has its own."""

    kind: str
    nbytes: int
    per_context: bool
    note: str = ""


@dataclass(frozen=True)
class Verdict:
    """What verification found; `worst` is the check with the largest share of its tolerance."""

    verified: bool
    reference: str
    checks: int
    failed: int
    worst: Check | None
    unverified: str = ""  # why the engine itself has not been run yet

    @property
    def worst_fraction(self) -> float:
        return fraction_of_tolerance(self.worst) if self.worst else 0.0


@dataclass(frozen=True)
class Summary:
    """An engine at a glance."""

    model: str
    target: str
    threads: int
    precision: str  # of the products; "int8, fp32" where some read codes and the rest is float32
    inputs: tuple[PortRow, ...]
    outputs: tuple[PortRow, ...]
    nodes: int  # of the model; Constant nodes are not counted
    steps: tuple[StepRow, ...]
    steps_us: float | None
    tactics: tuple[TacticRow, ...]
    memory: tuple[MemoryRow, ...]
    verdict: Verdict
    run_us: float | None
    call_overhead_us: float | None
    sites_timed: int
    sites_cached: int
    build_s: float | None  # wall time of the whole build
    stage_seconds: dict[str, float]  # its parts, summed over the engines that were built
    engines_built: int
    versions: dict[str, str]
    slow_ops: tuple[str, ...]
    warnings: tuple[str, ...]
    lowered: Precision | None = None  # how the model was lowered; null: it was built in its own types
    profiles: tuple[str, ...] = ()  # the sizes that each takes; steps and times are those of the first
    pads: bool = False
    parts: tuple[PartRow, ...] = ()  # of profiles that are tuned at several points
    streams: str = ""  # what came of running steps side by side
    planned_again: str = ""  # at the first real shapes, where they were guessed: what came of it
    run_parts: tuple[RunPart, ...] = ()  # what is in which CUDA graph, where one does not hold the whole run


def summarise(plan: Plan, report: Report) -> Summary:
    """The rows `ridge build` and `ridge show` print."""
    total = total_us(plan.steps)
    islands = {island.step for island in report.islands}
    return Summary(
        model=plan.model,
        target=str(plan.target),
        threads=plan.target.threads,
        precision=", ".join(precisions(plan, report)),
        inputs=tuple(_input_row(plan, port) for port in plan.inputs),
        outputs=tuple(PortRow(port.name, port.dtype, _dims(port)) for port in plan.outputs),
        nodes=report.nodes,
        steps=_step_rows(plan.steps, islands),
        steps_us=total,
        tactics=_tactic_rows(plan.steps),
        memory=_memory_rows(plan, report),
        verdict=verdict_of(report),
        run_us=report.run_us,
        call_overhead_us=report.call_overhead_us,
        sites_timed=report.sites_timed,
        sites_cached=report.sites_cached,
        build_s=report.build_s,
        stage_seconds=dict(report.stage_seconds),
        engines_built=report.engines_built,
        versions=dict(report.versions),
        slow_ops=plan.slow_ops,
        warnings=report.warnings,
        lowered=report.precision,
        profiles=tuple(profile_text(each) for each in (plan, *plan.others)),
        pads=plan.pads,
        parts=part_rows(plan),
        streams=streams_text(plan),
        planned_again=str(report.planned_again or ""),
        run_parts=report.run_parts,
    )


def precisions(plan: Plan, report: Report) -> tuple[str, ...]:
    """The formats of codes, then the float types: those that a lowering counted, and that of the plan."""
    lowered = report.precision.nodes if report.precision is not None else {}
    others = sorted(kind for kind in lowered if kind not in report.codes)
    # float32 last: it is what the others are mixed with
    floats = sorted(dict.fromkeys((*others, plan.precision)), key=lambda kind: kind == "fp32")
    return tuple(dict.fromkeys((*report.codes, *floats)))


def short_ops(op_types: Sequence[str]) -> str:
    """``Conv Add Relu``; for a long region the most frequent ones, ``Conv×24 Relu×22 Add×8 +3 kinds``."""
    if len(op_types) <= 5:
        return " ".join(op_types)
    counts = Counter(op_types).most_common()
    parts = [f"{op}×{count}" if count > 1 else op for op, count in counts[:4]]
    more = len(counts) - len(parts)
    return " ".join(parts) + (f" +{more} kind{'s' if more > 1 else ''}" if more else "")


def fraction_of_tolerance(check: Check) -> float:
    """The error as a share of the tolerance: 1 is the limit, an exact match is 0."""
    if math.isnan(check.max_error):
        return math.inf
    if check.max_error == 0:
        return 0.0
    return check.max_error / check.tolerance if check.tolerance else math.inf


def _input_row(plan: Plan, port: Port) -> PortRow:
    spec = plan.planned_shapes.get(port.name)
    ranges = plan.profile.get(port.name)
    return PortRow(
        port.name,
        port.dtype,
        _dims(port),
        tuple(spec.shape) if spec else None,
        None if ranges is None else tuple((dim.min, dim.opt, dim.max) for dim in ranges),
    )


def _dims(port: Port) -> tuple[int | str | None, ...] | None:
    """The dims as the model states them, without names that we made up."""
    if port.dims is None:
        return None
    return tuple(None if dim == f"{port.name}.{axis}" else dim for axis, dim in enumerate(port.dims))


def _step_rows(steps: Sequence[Step], islands: Set[str]) -> tuple[StepRow, ...]:
    total, numbered = total_us(steps), enumerate(zip(steps, stream_names(steps), strict=True), start=1)
    return tuple(_step_row(index, step, stream, total, islands) for index, (step, stream) in numbered)


def _step_row(index: int, step: Step, stream: str, total: float | None, islands: Set[str]) -> StepRow:
    return StepRow(
        index=index,
        name=step.name,
        ops=short_ops(step.op_types),
        nodes=len(step.sources),
        tactic=step.tactic,
        median_us=step.median_us,
        share=step.median_us / total if step.median_us is not None and total else None,
        flops=step.work.flops,
        bytes=step.work.bytes,
        notes=step.notes,
        # the time of a step whose work depends on data cannot be predicted
        predicted_us=None if islands & {*step.regions} else step.predicted_us,
        stream=stream,
    )


def _tactic_rows(steps: Sequence[Step]) -> tuple[TacticRow, ...]:
    by_tactic = grouped((step.tactic, step) for step in steps)
    rows = [TacticRow(tactic, len(taken), total_us(taken)) for tactic, taken in by_tactic.items()]
    return tuple(sorted(rows, key=lambda row: (-(row.total_us or 0.0), -row.steps, row.tactic)))


def _memory_rows(plan: Plan, report: Report) -> tuple[MemoryRow, ...]:
    memory = plan.memory
    saved = memory.unshared_bytes - memory.arena_bytes
    shared = f"{1 - memory.arena_bytes / memory.unshared_bytes:.0%} less than unshared" if saved > 0 else ""
    allocating = len(report.library_allocations)
    library = (
        f"at most, at run time, in {allocating} step{'s' if allocating != 1 else ''}" if allocating else ""
    )
    return (
        MemoryRow("arena", memory.arena_bytes, per_context=True, note=shared),
        MemoryRow("inputs", memory.io_bytes, per_context=True),
        MemoryRow("libraries", memory.library_bytes, per_context=True, note=library),
        MemoryRow("weights", memory.weight_bytes, per_context=False),
        MemoryRow("packed copies", memory.packed_bytes, per_context=False),
    )


def verdict_of(report: Report) -> Verdict:
    return Verdict(
        verified=report.verified,
        reference=report.reference,
        checks=len(report.checks),
        failed=sum(not check.passed for check in report.checks),
        worst=max(report.checks, key=fraction_of_tolerance, default=None),
        unverified=report.unverified,
    )
