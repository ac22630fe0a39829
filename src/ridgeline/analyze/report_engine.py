"""Makes the rows of a report from the plan, the build's report, the fused graph, a trace and ceilings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from ridgeline.analyze.explain import (
    Explanation,
    StepStory,
    explain_engine,
)
from ridgeline.analyze.findings.finding import Finding
from ridgeline.analyze.kernel_report import KernelRow, report_kernels
from ridgeline.analyze.limiter import find_limit
from ridgeline.analyze.profile_report import find_bound, report_profile
from ridgeline.analyze.report_classes import PRODUCTS, class_of, ops_class, precision_of
from ridgeline.analyze.report_data import EngineReport, Measured, ReportRegion, ReportStep, Roof
from ridgeline.analyze.report_graph import FusedGraph
from ridgeline.analyze.show import StepRow, Summary, summarise
from ridgeline.base.ceilings import Ceilings
from ridgeline.errors import OptionError
from ridgeline.kernels.triton.compiler import Compiled
from ridgeline.plan.plan import Plan, Step
from ridgeline.plan.report import Report
from ridgeline.plan.trace import OpClass, StepTime, Trace

CACHE_IS_FASTER = 1.25  # than memory, by so much that it gets a line of its own
# where a step's time comes from
PROFILED, TIMED, PREDICTED = "profiled", "timed in the build", "predicted"


def report_engine(
    plan: Plan,
    report: Report,
    *,
    graph: FusedGraph | None = None,
    kernels: Mapping[str, Compiled] | None = None,
    trace: Trace | None = None,
    ceilings: Ceilings | None = None,
    findings: Sequence[Finding] | None = None,
) -> EngineReport:
    """Every row. A trace must be of the same engine: it names the same steps.

    Parameters: what else is known besides plan and report, each of which may be missing.
    """
    if trace is not None:
        _require_same_steps(plan, trace)
    story = explain_engine(plan, report, findings=findings)
    summary = summarise(plan, report)
    given = _Given(
        traced=None if trace is None else {step.index: step for step in trace.steps},
        types={block.value: block.spec.partition("[")[0] for block in plan.memory.blocks},
        weights=_weight_types(plan, graph),
        ceilings=ceilings,
    )
    steps = _steps(plan, story, summary, given)
    latency_us, latency_of = _latency(summary, trace)
    return EngineReport(
        summary=summary,
        times=_times(plan, trace),
        latency_us=latency_us,
        latency_of=latency_of,
        roofline=_overall(steps),
        steps=steps,
        regions=_regions(plan, story, graph),
        bodies=graph.bodies if graph is not None else (),
        graph_inputs=graph.inputs if graph is not None else (),
        graph_outputs=graph.outputs if graph is not None else (),
        memory=plan.memory,
        roof=_roof(steps, ceilings) if ceilings is not None else None,
        measured=_measured(trace) if trace is not None else None,
        hot_spots=report_profile(trace, ceilings).hot_spots if trace is not None else (),
        findings=story.findings,
        not_looked_for=story.not_looked_for,
        why=plan.why,
        alternatives=story.alternatives,
        unfused=story.unfused,
        unwilling=story.unwilling,
        host_values=plan.host_values,
        islands=report.islands,
        checks=report.checks,
        kernels=_kernel_rows(plan, kernels or {}),
    )


def _require_same_steps(plan: Plan, trace: Trace) -> None:
    named = {(index, step.name) for index, step in enumerate(plan.steps, start=1)}
    strange = [f"step {s.index} {s.name!r}" for s in trace.steps if (s.index, s.name) not in named]
    if strange:
        raise OptionError(
            f"the trace is of another engine than {plan.model or 'this one'}",
            rows=[f"the plan has no {each}" for each in strange],
            got=f"a trace of {trace.model or 'a model'} for {trace.target} with {len(trace.steps)} steps",
            want=f"one of {len(plan.steps)} steps, as this engine has them",
            help="ridge profile ENGINE --save profile.json measures this one, and so does --profile",
        )


@dataclass(frozen=True)
class _Given:
    """What the rows of steps are made from, besides the steps."""

    traced: Mapping[int, StepTime] | None  # by index; None without a trace
    types: Mapping[str, str]  # of values that steps read and make
    weights: Mapping[str, Sequence[str]]  # types of the weights that each step reads
    ceilings: Ceilings | None


def _steps(plan: Plan, story: Explanation, summary: Summary, given: _Given) -> tuple[ReportStep, ...]:
    times = [_time(row, given.traced) for row in summary.steps]
    total = math.fsum(us for us in times if us is not None)
    return tuple(
        _step(step, told, us, us / total if us is not None and total else None, given)
        for told, step, us in zip(story.steps, plan.steps, times, strict=True)
    )


def _step(step: Step, told: StepStory, us: float | None, share: float | None, given: _Given) -> ReportStep:
    seen = (given.traced or {}).get(told.index)
    op_class = seen.op_class if seen is not None else class_of(step)
    precision = seen.precision if seen else precision_of(step, op_class, given.types, given.weights)
    row = ReportStep(
        index=told.index,
        name=step.name,
        op_class=op_class,
        precision=precision,
        ops=step.op_types,
        ops_text=told.ops_text,
        nodes=step.sources,
        regions=step.regions,
        inputs=step.inputs,
        outputs=step.outputs,
        tactic=step.tactic,
        config=dict(step.config),
        us=us,
        share=share,
        flops=step.work.flops,
        bytes=step.work.bytes,
        contest=told.contest,
        why=step.why,
        notes=told.notes,
        kernels=step.kernels,
    )
    if seen is not None:
        row = _profiled(row, seen)
    if given.ceilings is None or not us:
        return row
    judged = _judged(row, seen or _as_timed(step, row), given.ceilings)
    is_measured = seen is not None or step.median_us is not None
    return judged if is_measured else replace(judged, limiter="", evidence="")


def _profiled(row: ReportStep, seen: StepTime) -> ReportStep:
    """With all that a trace has measured. Its work is that of the shapes that were run."""
    return replace(
        row,
        bytes=seen.bytes,
        flops=seen.flops,
        p10_us=seen.p10_us,
        p90_us=seen.p90_us,
        start_us=seen.start_us,
        gap_us=seen.gap_us,
        launches=seen.kernels,
        inside=seen.inside,
        work=seen.work,
    )


def _time(row: StepRow, traced: Mapping[int, StepTime] | None) -> float | None:
    """A step without a row in the trace only looks at other memory and takes no time."""
    if traced is not None:
        return traced[row.index].median_us if row.index in traced else 0.0
    return row.median_us if row.median_us is not None else row.predicted_us


def _weight_types(plan: Plan, graph: FusedGraph | None) -> dict[str, tuple[str, ...]]:
    """The types of the weights that each step reads, by the step's name."""
    if graph is None:
        return {}
    regions = {region.name: region for region in graph.regions}
    return {
        step.name: tuple(
            graph.weight_types[weight]
            for name in step.regions
            if name in regions
            for weight in regions[name].weights
        )
        for step in plan.steps
    }


def _as_timed(step: Step, row: ReportStep) -> StepTime:
    """A step as a trace would have it, with the time that the build took: it is judged in the same way."""
    us = row.us or 0.0
    return StepTime(
        index=row.index, name=row.name, op_types=row.ops, sources=row.nodes, tactic=row.tactic,
        config=row.config, precision=row.precision, op_class=cast("OpClass", row.op_class), calls=1,
        median_us=us, p10_us=us, p90_us=us, start_us=0.0, bytes=step.work.bytes, flops=step.work.flops,
        samples_us=(us,),
    )  # fmt: skip


def _judged(row: ReportStep, timed: StepTime, ceilings: Ceilings) -> ReportStep:
    """With its least time and what limits it."""
    limit = find_limit(timed, ceilings)
    shares = (limit.memory_share, limit.arithmetic_share)
    by = "" if None in shares else "memory" if (shares[0] or 0.0) >= (shares[1] or 0.0) else "arithmetic"
    return replace(row, bound_us=limit.bound_us, bound_by=by, limiter=limit.limiter, evidence=limit.evidence)


def _overall(steps: Sequence[ReportStep]) -> float | None:
    """None if some step that takes time has no bound."""
    timed = [step for step in steps if step.us]
    bounds = [step.bound_us for step in timed if step.bound_us is not None]
    total = math.fsum(step.us for step in timed if step.us)
    return math.fsum(bounds) / total if timed and len(bounds) == len(timed) else None


def _latency(summary: Summary, trace: Trace | None) -> tuple[float | None, str]:
    if trace is not None:
        return trace.total_us, "all steps in one run, without transfers"
    if summary.run_us is not None:
        return summary.run_us, "engine.run, median at the planned shapes"
    if summary.steps_us is not None:
        return summary.steps_us, "sum of the steps as the build timed them"
    predicted = [row.predicted_us for row in summary.steps]
    if predicted and None not in predicted:
        return math.fsum(us for us in predicted if us is not None), "sum of predicted steps: nothing was run"
    return None, "not timed"


def _times(plan: Plan, trace: Trace | None) -> str:
    if trace is not None:
        return PROFILED
    if any(step.median_us is not None for step in plan.steps):
        return TIMED
    return PREDICTED if plan.is_predicted else ""


def _regions(plan: Plan, story: Explanation, graph: FusedGraph | None) -> tuple[ReportRegion, ...]:
    """In the order of the graph; without one, as the plan lists them, and unconnected."""
    step_of = {name: index for index, step in enumerate(plan.steps, start=1) for name in step.regions}
    told = {name: region.contest for region in story.regions for name in region.names}
    notes = {note.name: note for note in plan.regions}
    if graph is None:
        return tuple(
            ReportRegion(
                name=note.name,
                step=step_of.get(note.name, 0),
                function=note.function,
                ops=note.op_types,
                nodes=note.sources,
                op_class=ops_class(note.op_types),
                contest=told.get(note.name),
            )
            for note in plan.regions
        )
    bodies = {body.function: tuple(op.op_type for op in body.ops) for body in graph.bodies}
    ops_of = {
        each.name: notes[each.name].op_types if each.name in notes else bodies[each.function]
        for each in graph.regions
    }
    return tuple(
        ReportRegion(
            name=each.name,
            step=step_of.get(each.name, 0),
            function=each.function,
            ops=ops_of[each.name],
            op_class=ops_class(ops_of[each.name]),
            nodes=each.sources,
            inputs=each.inputs,
            outputs=each.outputs,
            weights=tuple(f"{name}: {graph.weight_types[name]}" for name in each.weights),
            contest=told.get(each.name),
        )
        for each in graph.regions
    )


def _roof(steps: Sequence[ReportStep], ceilings: Ceilings) -> Roof | None:
    # arithmetic outside products is done in float32, whatever the storage is
    kinds = dict.fromkeys(s.precision if s.op_class in PRODUCTS else "float32" for s in steps if s.flops)
    rates = {kind: ceilings.flops_per_us(kind) for kind in kinds}
    speed = ceilings.memory_bytes_per_us
    if not math.isfinite(speed):
        return None
    cached = ceilings.cache_bytes_per_us
    return Roof(
        name=ceilings.title or ceilings.name,
        source=ceilings.source,
        is_measured=ceilings.is_measured,
        bytes_per_us=speed,
        cache_bytes_per_us=cached if cached > CACHE_IS_FASTER * speed else None,  # not if it is NaN
        flops_per_us={kind: rate for kind, rate in rates.items() if math.isfinite(rate)},
        launch_us=ceilings.launch_us,
    )


def _measured(trace: Trace) -> Measured:
    bound, evidence = find_bound(trace)
    return Measured(
        how=trace.how,
        device=trace.device,
        rounds=trace.rounds,
        shapes=dict(trace.shapes),
        total_us=trace.total_us,
        total_p10_us=trace.total_p10_us,
        total_p90_us=trace.total_p90_us,
        steps_us=trace.steps_us,
        gaps_us=trace.gaps_us,
        overlap_us=trace.overlap_us,
        coverage=trace.coverage,
        bound=bound,
        bound_evidence=evidence,
        host=trace.host,
        live_bytes=trace.memory.live_bytes,
        notes=trace.notes,
    )


def _kernel_rows(plan: Plan, compiled: Mapping[str, Compiled]) -> tuple[KernelRow, ...]:
    """Those that are at hand; a file that lacks some has been made for another machine, and says less."""
    needed = {digest for step in plan.steps for digest in step.kernels}
    if not needed or not needed <= compiled.keys():
        return ()
    return report_kernels(plan, compiled).kernels
