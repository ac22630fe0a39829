"""The steps of an engine as PyTorch's profiler sees them: ATen ops on a CPU, kernels on a GPU.

It is a second opinion on the times of a trace. On a CPU it times a range around every step; steps that run
outside PyTorch (generated C++, ONNX Runtime, MKL) have no op of its own in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from ridgeline.analyze.profile_report import CrossRow
from ridgeline.base.grouping import grouped
from ridgeline.plan.trace import StepTime, Trace
from ridgeline.runtime.cuda_instance import CudaInstance
from ridgeline.runtime.engine import Engine
from ridgeline.runtime.gpu_profiling import kernels_by_step, record_work
from ridgeline.runtime.instance import Instance
from ridgeline.runtime.signature import Feeds

MARK = "ridgeline.step."
LISTED = 3


@dataclass(frozen=True)
class Seen:
    """One call under PyTorch's profiler: medians of its range, and of the outermost ops or kernels in it."""

    range_us: float | None
    parts: tuple[tuple[str, float], ...]


def cross_check(engine: Engine, feeds: Feeds, trace: Trace, rounds: int) -> tuple[CrossRow, ...]:
    """One row for each step of the trace."""
    instance = engine.context(wait=True).instance(feeds)
    with torch.inference_mode():
        instance.execute()
        on_gpu = isinstance(instance, CudaInstance)
        calls = _kernels(instance, rounds) if on_gpu else _aten_ops(instance, rounds)
    seen = grouped(zip((index + 1 for index in instance.call_steps), calls, strict=True))
    return tuple(_row(step, seen.get(step.index, [])) for step in trace.steps)


def _row(step: StepTime, calls: Sequence[Seen]) -> CrossRow:
    parts = [part for call in calls for part in call.parts]
    ranges = [call.range_us for call in calls if call.range_us is not None]
    names = [name for name, _ in parts]
    more = f" +{len(names) - LISTED}" if len(names) > LISTED else ""
    return CrossRow(
        index=step.index,
        name=step.name,
        tactic=step.tactic,
        median_us=step.median_us,
        range_us=sum(ranges) if ranges else None,
        seen_us=sum(us for _, us in parts) if parts else None,
        seen=", ".join(names[:LISTED]) + more,
    )


def _kernels(instance: Instance, rounds: int) -> list[Seen]:
    """For each call its kernels, run one by one."""
    record_work(instance.execute)  # the first use of the profiler loads it
    runs = [kernels_by_step(instance.calls) for _ in range(rounds)]
    found = []
    for calls in zip(*runs, strict=True):
        same = zip(*calls, strict=True)
        found.append(Seen(None, tuple((each[0].name, median(work.us for work in each)) for each in same)))
    return found


def _aten_ops(instance: Instance, rounds: int) -> list[Seen]:
    """For each call its range, and the outermost ATen ops in it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(rounds):
            for i, call in enumerate(instance.calls):
                with torch.profiler.record_function(f"{MARK}{i}"):
                    call()
    found: list[list[Any]] = [[] for _ in instance.calls]
    for event in profiler.events() or ():
        if event.name.startswith(MARK):
            found[int(event.name.removeprefix(MARK))].append(event)
    return [
        Seen(
            median(event.cpu_time_total for event in events),
            tuple(
                (same[0].name, median(child.cpu_time_total for child in same))
                for same in zip(*(event.cpu_children for event in events), strict=False)
            ),
        )
        for events in found
    ]
