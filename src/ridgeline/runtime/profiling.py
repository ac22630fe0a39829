"""Measures an engine step by step and makes its `Trace`: times as measured, work and memory as counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any, cast

import torch

from ridgeline.base.grouping import grouped
from ridgeline.base.timing import Timing, time_stepped
from ridgeline.errors import OptionError, RidgelineError, first_line
from ridgeline.ir.body_class import body_class, compute_type, work_by_op
from ridgeline.plan.memory import account
from ridgeline.plan.trace import WALL_CLOCK, HostTime, MemoryUse, NodeTime, NodeWork, OpClass, StepTime, Trace
from ridgeline.runtime.context import Context
from ridgeline.runtime.cuda_instance import CudaInstance
from ridgeline.runtime.device import current_device
from ridgeline.runtime.gpu_profiling import measure_gpu
from ridgeline.runtime.instance import BoundStep, Instance
from ridgeline.runtime.measured import CallTimes, Measured
from ridgeline.runtime.profiles import Variant
from ridgeline.runtime.signature import Feeds
from ridgeline.runtime.versions import versions
from ridgeline.tactics.cache import cpu_name

WARM_RUNS = 3
# p90 minus p10 of the whole run, as a share of its median
BUSY = 0.25


def profile_run(variant: Variant, context: Context, feeds: Feeds, rounds: int) -> Trace:
    """One trace of the plan that takes these inputs."""
    if type(rounds) is not int or rounds < 1:
        raise OptionError("a profile needs at least one round", got=repr(rounds)[:80], want="1 or more")
    plan, fused = variant.plan, variant.executable.fused
    instance = context.instance(feeds)
    # strings and sequences are taken out of the instance when `run` returns: steps need them there
    run = None if any(port.is_non_tensor for port in plan.inputs) else partial(context.run, feeds)
    here = versions()
    if isinstance(instance, CudaInstance):
        gpu = current_device()
        device, measured = gpu.name, measure_gpu(instance, run, rounds)
        here |= {"cuda": gpu.cuda, "driver": gpu.driver}
    else:
        device, measured = cpu_name(), measure_wall(instance, run, rounds)
    inside, notes = _inside_spans(variant, instance, rounds)
    by_step = grouped(zip(instance.call_steps, measured.calls, strict=True))
    bound = {step.index: step for step in instance.steps}
    steps = [_step_time(variant, bound[index], calls, inside) for index, calls in sorted(by_step.items())]
    if instance.is_streamed:
        steps = [replace(step, stream=plan.steps[step.index - 1].stream) for step in steps]
    specs = instance.inferred.specs
    return Trace(
        model=plan.model,
        target=str(plan.target),
        device=device,
        threads=plan.target.threads,
        precision=plan.precision,
        shapes={name: str(specs[name]) for name in instance.program.inputs if name in specs},
        versions=here,
        how=measured.how,
        rounds=len(measured.total.samples_us),
        total_us=measured.total.median_us,
        total_p10_us=measured.total.p10_us,
        total_p90_us=measured.total.p90_us,
        total_samples_us=measured.total.samples_us,
        steps=tuple(steps),
        memory=_memory(instance, [step.index - 1 for step in steps], plan.memory.weight_bytes),
        host=measured.host,
        timer_us=measured.timer_us,
        notes=(*measured.notes, *notes, *dict.fromkeys(fused.notes)),
        layers=plan.layers,
    )


def measure_wall(instance: Instance, run: Callable[[], object] | None, rounds: int) -> Measured:
    """On a CPU: in each round the whole run, `engine.run`, and a run with a time-stamp after every step."""
    others = [instance.execute, *([run] if run is not None else [])]
    with torch.inference_mode():
        for _ in range(WARM_RUNS):
            instance.execute()
        stepped = time_stepped(instance.calls, others, rounds)
    calls = [CallTimes(t, start) for t, start in zip(stepped.steps, stepped.starts_us, strict=True)]
    total, *called = stepped.others
    run_us = called[0].median_us if called else None
    # paired by round: the difference of two medians would have the noise of both
    apart = [a - b for a, b in zip(called[0].samples_us, total.samples_us, strict=True)] if called else []
    overhead = max(median(apart), 0.0) if apart else None
    host = HostTime(None, run_us, overhead)
    notes = (_busy_note(total),) if total.spread > BUSY else ()
    return Measured(WALL_CLOCK, total, tuple(calls), host, timer_us=stepped.timer_us, notes=notes)


def _busy_note(total: Timing) -> str:
    return (
        f"the machine is busy: the whole run varies by {total.spread:.0%} of its median (p10 – p90), and the "
        "medians of short steps leave out interruptions that the median of the whole run has"
    )


def _step_time(
    variant: Variant, bound: BoundStep, calls: Sequence[CallTimes], inside: Mapping[int, tuple[NodeTime, ...]]
) -> StepTime:
    step, site = variant.plan.steps[bound.index], bound.site
    samples = zip(*(call.timing.samples_us for call in calls), strict=True)
    timing = Timing(tuple(map(sum, samples)))
    work = work_by_op(site.body, site.specs)
    is_span = variant.executable.fused.tactics[step.tactic].takes_spans and len(step.regions) > 1
    return StepTime(
        index=bound.index + 1,
        name=step.name,
        op_types=step.op_types,
        sources=step.sources,
        tactic=step.tactic,
        config=dict(step.config),
        precision=compute_type(site.body, site.specs),
        op_class=cast("OpClass", "library span" if is_span else body_class(site.body)),
        calls=len(calls),
        median_us=timing.median_us,
        p10_us=timing.p10_us,
        p90_us=timing.p90_us,
        start_us=calls[0].start_us,
        bytes=sum(moved for _, _, moved in work),
        flops=sum(flops for _, flops, _ in work),
        samples_us=timing.samples_us,
        gap_us=_sum([call.gap_us for call in calls]),
        overlap_us=_sum([call.overlap_us for call in calls]),
        eager_us=_sum([call.eager_us for call in calls]),
        kernels=tuple(kernel for call in calls for kernel in call.kernels),
        inside=inside.get(bound.index, ()),
        work=tuple(NodeWork(op.name or op.outputs[0], op.op_type, flops, moved) for op, flops, moved in work),
    )


def _sum(parts: Sequence[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _memory(instance: Instance, indices: Sequence[int], weight_bytes: int) -> MemoryUse:
    """Live bytes at the shapes of this instance, for the steps of these indices."""
    ios, specs = [step.io for step in instance.steps], instance.inferred.specs
    program = instance.program
    ports = [name for name in (*program.inputs, *program.outputs) if name in specs]
    io_bytes = sum(specs[name].nbytes for name in ports)
    memory = account(
        instance.layout, ios, specs, io_bytes=io_bytes, weight_bytes=weight_bytes, packed_bytes=0
    )
    live = {
        step.index: nbytes for step, nbytes in zip(instance.steps, memory.live_bytes, strict=True)
    }  # fmt: skip
    peak = max(live, key=lambda index: live[index], default=None)
    return MemoryUse(
        live_bytes=tuple(live[index] for index in indices),
        peak_bytes=0 if peak is None else live[peak],
        peak_step=0 if peak is None else peak + 1,
        arena_bytes=memory.arena_bytes,
        io_bytes=memory.io_bytes,
        weight_bytes=memory.weight_bytes,
    )


def _inside_spans(
    variant: Variant, instance: Instance, rounds: int
) -> tuple[dict[int, tuple[NodeTime, ...]], list[str]]:
    """Nodes inside the steps that a library runs as a whole, by its own profiler; and why there are none."""
    steps, tactics = variant.plan.steps, variant.executable.fused.tactics
    wanted = {step.index: step for step in instance.steps if tactics[steps[step.index].tactic].has_profiler}
    found: dict[int, tuple[NodeTime, ...]] = {}
    notes: list[str] = []
    with torch.inference_mode():
        for call, index in zip(instance.calls, instance.call_steps, strict=True):
            if index in wanted:
                try:
                    found[index] = _inside(variant, instance, wanted[index], rounds)
                except (RuntimeError, ValueError, KeyError, OSError, RidgelineError) as error:
                    notes.append(f"{steps[index].name}: its nodes were not timed: {first_line(error)}")
            call()
    return found, notes


def _inside(variant: Variant, instance: Instance, step: BoundStep, rounds: int) -> tuple[NodeTime, ...]:
    planned, executable = variant.plan.steps[step.index], variant.executable
    names = step.io.inputs
    inputs: list[Any] = [instance.value(name) if name else None for name in names]
    outer = {inner: step.region.outer(inner) for inner in step.site.weights}
    weights = {inner: executable.fused.placed_weights[name] for inner, name in outer.items()}
    tactic = executable.fused.tactics[planned.tactic]
    sources = _sources_by_value(variant, planned.regions)
    return tuple(
        NodeTime(node.name, node.op_type, node.us, sources_of(node.name, sources))
        for node in tactic.time_inside(step.site, planned.config, weights, inputs, rounds)
    )


def _sources_by_value(variant: Variant, regions: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The original nodes behind each value that these regions make, as a merged step names the values."""
    by_name = {region.name: region for region in variant.executable.fused.program.regions}
    found: dict[str, tuple[str, ...]] = {}
    for region in (by_name[name] for name in regions):
        for op in region.body.ops:
            own = (op.name,) if op.name in region.sources else region.sources
            found.update((region.outer(name) if len(regions) > 1 else name, own) for name in op.outputs)
    return found


def sources_of(name: str, by_value: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The original nodes behind a library's node, which is called after a value that it makes.

    Fusions of the library add words before or behind that name: the longest value in it is the right one.
    """
    if name in by_value:
        return by_value[name]
    inside = [value for value in by_value if value and value in name]
    return by_value[max(inside, key=len)] if inside else ()
