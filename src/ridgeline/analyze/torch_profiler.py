"""The steps of an engine as PyTorch's profiler sees them: ATen ops on a CPU, kernels on a GPU.

It is a second opinion on the times of a trace. Steps that run outside PyTorch on a CPU (generated C++, ONNX
Runtime, MKL) have no op of its own in them, and no figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import torch

from ridgeline.analyze.profile_report import CrossRow
from ridgeline.plan.trace import Trace
from ridgeline.runtime.cuda_instance import CudaInstance
from ridgeline.runtime.engine import Engine
from ridgeline.runtime.gpu_profiling import kernels_by_step, record_work
from ridgeline.runtime.instance import Instance
from ridgeline.runtime.signature import Feeds

MARK = "ridgeline.step."
LISTED = 3


def cross_check(engine: Engine, feeds: Feeds, trace: Trace, rounds: int) -> tuple[CrossRow, ...]:
    """One row for each step of the trace."""
    instance = engine.context(wait=True).instance(feeds)
    with torch.inference_mode():
        instance.execute()
        by_gpu = isinstance(instance, CudaInstance)
        calls = _kernels(instance, rounds) if by_gpu else _aten_ops(instance, rounds)
    seen: dict[int, list[tuple[str, float]]] = {}
    for index, found in zip(instance.call_steps, calls, strict=True):
        seen.setdefault(index + 1, []).extend(found)
    return tuple(
        CrossRow(
            index=step.index,
            name=step.name,
            tactic=step.tactic,
            median_us=step.median_us,
            seen_us=sum(us for _, us in seen[step.index]) if seen.get(step.index) else None,
            seen=_listed([name for name, _ in seen.get(step.index, ())]),
        )
        for step in trace.steps
    )


def _listed(names: Sequence[str]) -> str:
    more = f" +{len(names) - LISTED}" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def _kernels(instance: Instance, rounds: int) -> list[list[tuple[str, float]]]:
    """For each call its kernels and the median time of each, run one by one."""
    record_work(instance.execute)  # the first use of the profiler loads it
    runs = [kernels_by_step(instance.calls) for _ in range(rounds)]
    return [
        [(works[0].name, median(work.us for work in works)) for works in zip(*calls, strict=True)]
        for calls in zip(*runs, strict=True)
    ]


def _aten_ops(instance: Instance, rounds: int) -> list[list[tuple[str, float]]]:
    """For each call the outermost ATen ops in it and the median time of each."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(rounds):
            for i, call in enumerate(instance.calls):
                with torch.profiler.record_function(f"{MARK}{i}"):
                    call()
    found: list[list[list[tuple[str, float]]]] = [[] for _ in instance.calls]
    for event in profiler.events() or ():
        if event.name.startswith(MARK):
            found[int(event.name.removeprefix(MARK))].append(_children(event))
    return [
        [(ops[0][0], median(us for _, us in ops)) for ops in zip(*runs, strict=False)]
        for runs in found
    ]  # fmt: skip


def _children(event: Any) -> list[tuple[str, float]]:
    return [(child.name, float(child.cpu_time_total)) for child in event.cpu_children]
