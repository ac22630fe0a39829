"""Contexts as runners of queries: copies in and out apart from the steps, on a CPU and on a GPU.

On a GPU the parts are read from CUDA events on the context's own stream. On a CPU they are intervals of the
host's clock: what `run` does before its steps (checks, copies of small inputs), the steps, and what it does
after them. Large arrays are read and written where they lie, so there a part may be next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ridgeline.analyze.bench_run import Clock, QueryRunner, Stamps
from ridgeline.analyze.bench_settings import BenchSettings
from ridgeline.kernels.elements import as_numpy, to_numpy
from ridgeline.runtime.context import Context
from ridgeline.runtime.cuda_instance import CudaInstance
from ridgeline.runtime.engine import Engine
from ridgeline.runtime.pinned_memory import new_pinned

Feeds = Mapping[str, Any]


def make_runners(
    engine: Engine, feeds: Feeds, settings: BenchSettings, stack: ExitStack
) -> list[QueryRunner]:
    """One for each context, each run once: libraries load, graphs are captured, one after the other.

    What they change in their contexts is undone when `stack` is closed.
    """
    made: list[QueryRunner] = []
    for _ in range(settings.concurrency):
        context = engine.context(wait=True)
        if engine.plan.target.traits.is_gpu:
            made.append(_gpu_runner(context, feeds, settings))
        else:
            made.append(HostRunner(context, feeds, stack))
        made[-1].run()
    return made


class HostRunner:
    """A context on the CPU, run as callers run it."""

    def __init__(
        self, context: Context, feeds: Feeds, stack: ExitStack, clock: Clock = perf_counter_ns
    ) -> None:
        self._run, self._feeds, self._clock = context.run, dict(feeds), clock
        self._made: Mapping[str, Any] | None = None
        self._steps_ns: list[tuple[int, int]] = []
        stack.enter_context(context.timed_steps(feeds, self._steps_ns, clock))

    def run(self) -> Stamps:
        # results that nobody holds are used again, as for a caller who lets go of them
        self._made = None
        self._steps_ns.clear()
        start = self._clock()
        self._made = self._run(self._feeds)
        end = self._clock()
        if len(self._steps_ns) != 1:
            return Stamps(start, end)
        ((began, ended),) = self._steps_ns
        return Stamps(start, end, None, began - start, ended - began, end - ended)

    def outputs(self) -> Mapping[str, Any]:
        assert self._made is not None, "asked after a query"
        return self._made


def _gpu_runner(context: Context, feeds: Feeds, settings: BenchSettings) -> QueryRunner:
    instance = context.instance(feeds)
    assert isinstance(instance, CudaInstance), "only asked on a GPU"
    if not settings.graph:
        instance.run_eagerly("--no-graph")
    # the inputs were loaded on the current stream, and queries run on another
    torch.cuda.synchronize()
    if settings.transfers:
        return GpuRunner(instance, feeds)
    return ResidentRunner(instance)


class GpuRunner:
    """A context on a GPU, with the same transfers as `run` makes for numpy arrays, and events between."""

    def __init__(self, instance: CudaInstance, feeds: Feeds, clock: Clock = perf_counter_ns) -> None:
        self._instance, self._clock = instance, clock
        self._inputs = [
            (np.asarray(feeds[name]), new_pinned(tensor), tensor) for name, tensor in instance.inputs.items()
        ]
        self._marks = _events(4)
        self._made: dict[str, np.ndarray] = {}

    def run(self) -> Stamps:
        instance, clock, stream, marks = self._instance, self._clock, self._instance.stream, self._marks
        start = clock()
        with torch.inference_mode(), torch.cuda.stream(stream):
            for array, pinned, _ in self._inputs:
                as_numpy(pinned)[...] = array
            marks[0].record()
            for _, pinned, tensor in self._inputs:
                tensor.copy_(pinned, non_blocking=True)
            marks[1].record()
            queued = clock()
            instance.execute()
            enqueued = clock()
            marks[2].record()
            made = {n: new_pinned(r).copy_(r, non_blocking=True) for n, r in instance.results().items()}
            marks[3].record()
        stream.synchronize()
        self._made = {name: as_numpy(tensor) for name, tensor in made.items()}
        end = clock()
        return Stamps(start, end, enqueued - queued, *_between(marks))

    def outputs(self) -> Mapping[str, Any]:
        return self._made


class ResidentRunner:
    """A context on a GPU whose inputs were put there once, and whose outputs stay there."""

    def __init__(self, instance: CudaInstance, clock: Clock = perf_counter_ns) -> None:
        self._instance, self._clock = instance, clock
        self._marks = _events(2)

    def run(self) -> Stamps:
        instance, clock, stream, marks = self._instance, self._clock, self._instance.stream, self._marks
        start = clock()
        with torch.inference_mode(), torch.cuda.stream(stream):
            marks[0].record()
            queued = clock()
            instance.execute()
            enqueued = clock()
            marks[1].record()
        stream.synchronize()
        end = clock()
        (compute,) = _between(marks)
        return Stamps(start, end, enqueued - queued, None, compute, None)

    def outputs(self) -> Mapping[str, Any]:
        made: dict[str, Tensor] = self._instance.results()
        return {name: to_numpy(tensor) for name, tensor in made.items()}


def _events(count: int) -> list[torch.cuda.Event]:
    return [torch.cuda.Event(enable_timing=True) for _ in range(count)]  # type: ignore[no-untyped-call]


def _between(marks: Sequence[torch.cuda.Event]) -> list[int]:
    """Device time between each two of these events, in ns. They have been reached."""
    return [int(first.elapsed_time(second) * 1e6) for first, second in pairwise(marks)]
