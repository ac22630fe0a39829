"""Steps of a GPU run from the device's own time-stamps: kernels of replayed CUDA graphs, assigned to steps.

A replay is one launch and says nothing about steps. So the steps are run once one by one with a marker kernel
between them, which tells what each of them launches; the kernels of a replay come in the same order. Where
names or counts differ nothing is assigned, and the steps are timed with CUDA events instead.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ridgeline.base.gpu_timing import replay_us, samples_in_turn, sleep_while_queueing
from ridgeline.base.timing import Timing, wall_us
from ridgeline.plan.trace import CUPTI, EVENTS, HostTime, KernelTime
from ridgeline.runtime.cuda_instance import CudaInstance
from ridgeline.runtime.measured import CallTimes, Measured

# what PyTorch's `_sleep` launches: no step does
MARKER = "spin_kernel"
DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
# the profiler makes a launch of a graph slower the more kernels are in it
KERNELS_PER_QUEUED_CALL = 10
# of replays in a row: the first of them waits for the host, which must not count
SAMPLE_US = 5000.0
SLOWED = 0.05  # more than this is worth a note


@dataclass(frozen=True)
class DeviceWork:
    """A kernel, a copy or a memset on the device, as CUPTI saw it; times in µs of one clock."""

    kind: str
    name: str
    start_us: float
    us: float
    blocks: int | None = None  # of a kernel's grid

    @property
    def end_us(self) -> float:
        return self.start_us + self.us

    def is_as(self, other: DeviceWork) -> bool:
        """Whether both are the same work; copies are called otherwise inside a graph."""
        return self.kind == other.kind and (self.kind != "kernel" or self.name == other.name)


class UnmatchedError(Exception):
    """Kernels that cannot be assigned to steps."""


def measure_gpu(instance: CudaInstance, run: Callable[[], object] | None, rounds: int) -> Measured:
    """The captured run by replays, its steps by CUPTI or else by CUDA events; `run` is `engine.run`."""
    # the inputs come on another stream
    torch.cuda.synchronize()
    with torch.inference_mode(), torch.cuda.stream(instance.stream):
        instance.execute()
        torch.cuda.synchronize()
        eager = samples_in_turn(instance.calls, rounds)
        if instance.graph is None:
            total = _waiting(instance.execute, rounds)
            return _by_events(total, eager, _host(instance, run, rounds, total), instance.why_eager)
        replays = max(1, round(SAMPLE_US / max(replay_us(instance.graph, 2), 1e-3)))
        samples = [replay_us(instance.graph, replays) for _ in range(rounds // 2)]
        try:
            timeline = _replayed_steps(instance, rounds)
            reason = ""
        except UnmatchedError as error:
            timeline, reason = [], f"steps are timed with CUDA events, not captured: {error}"
        # before and after the profiler, so that a clock that drifts is in both halves
        samples += [replay_us(instance.graph, replays) for _ in range(rounds - len(samples))]
        total = Timing(tuple(samples), inner=replays)
        host = _host(instance, run, rounds, total)
    if reason:
        return _by_events(total, eager, host, reason)
    calls = [_call_times(runs, alone) for runs, alone in zip(timeline, eager, strict=True)]
    return Measured(CUPTI, total, tuple(calls), host, notes=_slowed(calls, total))


def kernels_by_step(calls: Sequence[Callable[[], object]]) -> list[list[DeviceWork]]:
    """What each call launches, run one by one; `UnmatchedError` if the profiler does not see every marker."""

    def marked() -> None:
        for call in calls:
            torch.cuda._sleep(1)  # type: ignore[no-untyped-call]
            call()
        torch.cuda._sleep(1)  # type: ignore[no-untyped-call]

    return split_at_markers(record_work(marked), len(calls))


def split_at_markers(work: Sequence[DeviceWork], count: int) -> list[list[DeviceWork]]:
    """The work between each two of `count + 1` markers, in the order in which it started."""
    ordered = sorted(work, key=lambda each: each.start_us)
    places = [i for i, each in enumerate(ordered) if MARKER in each.name]
    if len(places) != count + 1:
        raise UnmatchedError(f"the profiler saw {len(places)} of {count + 1} markers between steps")
    return [ordered[begin + 1 : end] for begin, end in pairwise(places)]


def assign_replays(
    work: Sequence[DeviceWork],
    by_step: Sequence[Sequence[DeviceWork]],
    replays: int,
    before: Sequence[int] | None = None,
) -> list[list[list[DeviceWork]]]:
    """For each replay, for each step, its work; `UnmatchedError` unless every name and count agrees.

    `before`: for each step, those that are over when it begins, one bit a step; None: all before it.
    """
    order = [(1 << i) - 1 for i in range(len(by_step))] if before is None else before
    ordered = sorted(
        (each for each in work if MARKER not in each.name), key=lambda each: (each.start_us, each.end_us)
    )
    expected = [each for step in by_step for each in step]
    if len(ordered) != len(expected) * replays:
        raise UnmatchedError(
            f"{replays} replays ran {len(ordered)} kernels, the steps one by one launch {len(expected)}"
        )
    n = len(expected)
    return [_assign(ordered[i * n : (i + 1) * n], by_step, order) for i in range(replays)]


def _assign(
    work: Sequence[DeviceWork], by_step: Sequence[Sequence[DeviceWork]], before: Sequence[int]
) -> list[list[DeviceWork]]:
    """One replay. Of steps that may run now, the first that launches such work next has it."""
    made: list[list[DeviceWork]] = [[] for _ in by_step]
    done = sum(1 << i for i, step in enumerate(by_step) if not step)
    first = 0
    for each in work:
        while done >> first & 1:
            first += 1
        for i in range(first, len(by_step)):
            may_run = not done >> i & 1 and not before[i] & ~done
            if may_run and each.is_as(by_step[i][len(made[i])]):
                made[i].append(each)
                done |= (len(made[i]) == len(by_step[i])) << i
                break
        else:
            wanted = by_step[first][len(made[first])]
            raise UnmatchedError(f"a replay runs {each.name!r} where a step launches {wanted.name!r}")
    return made


@dataclass(frozen=True)
class StepRun:
    """One step in one replay. Over all steps, busy + gap − overlap is the length of the replay."""

    start_us: float  # from the end of the replay before
    busy_us: float  # at least one of its kernels ran
    gap_us: float  # nothing ran before one of its kernels
    overlap_us: float  # one of its kernels ran beside an earlier step
    kernels: tuple[KernelTime, ...]


def lay_on_timeline(replays: Sequence[Sequence[Sequence[DeviceWork]]]) -> list[list[StepRun]]:
    """For each step, for each replay but the first, when it ran and what was idle before it."""
    made: list[list[StepRun]] = [[] for _ in replays[0]]
    covered = max(each.end_us for step in replays[0] for each in step)
    for steps in replays[1:]:
        origin = covered
        tallies = [_Tally() for _ in steps]
        # by time, not by step: on several streams a later step may run before an earlier one
        started = sorted((each.start_us, each.end_us, i) for i, step in enumerate(steps) for each in step)
        for start_us, end_us, i in started:
            covered = tallies[i].add(start_us, end_us, covered)
        latest = origin
        for rows, work, tally in zip(made, steps, tallies, strict=True):
            start = work[0].start_us if work else latest
            latest = max([latest, *(each.end_us for each in work)])
            kernels = [KernelTime(each.name, each.start_us - origin, each.us, each.blocks) for each in work]
            rows.append(StepRun(start - origin, tally.busy, tally.gap, tally.overlap, tuple(kernels)))
    return made


@dataclass
class _Tally:
    """What one step adds to the time in which anything ran."""

    busy: float = 0.0
    gap: float = 0.0
    added: float = 0.0  # of the run, gaps included
    end_us: float = float("-inf")  # of its own kernels

    @property
    def overlap(self) -> float:
        return max(self.busy + self.gap - self.added, 0.0)

    def add(self, start_us: float, end_us: float, covered: float) -> float:
        """With a further kernel; up to when something ran."""
        self.gap += max(start_us - covered, 0.0)
        self.busy += max(end_us - max(start_us, self.end_us), 0.0)
        self.end_us = max(self.end_us, end_us)
        self.added += max(covered, end_us) - covered
        return max(covered, end_us)


def record_work(work: Callable[[], object]) -> list[DeviceWork]:
    """All that the device did in a call, from PyTorch's profiler (Kineto over CUPTI)."""
    # waits before and after: what was queued earlier is no part of it, and what is queued here is
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    with TemporaryDirectory(prefix="ridge-profile-") as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        return read_work(json.loads(file.read_text(encoding="utf-8")))


def read_work(trace: dict[str, Any]) -> list[DeviceWork]:
    """The device's part of a Chrome trace that PyTorch wrote."""
    return [
        DeviceWork(event["cat"], event["name"], float(event["ts"]), float(event["dur"]), _blocks(event))
        for event in trace["traceEvents"]
        if event.get("ph") == "X" and event.get("cat") in DEVICE_WORK
    ]


def _blocks(event: dict[str, Any]) -> int | None:
    grid = event.get("args", {}).get("grid")
    return math.prod(grid) if grid else None


def _replayed_steps(instance: CudaInstance, rounds: int) -> list[list[StepRun]]:
    graph = instance.graph
    assert graph is not None, "only asked of a captured run"
    record_work(graph.replay)  # the first use of the profiler loads it
    by_step = kernels_by_step(instance.calls)
    count = sum(map(len, by_step))
    if not count:
        raise UnmatchedError("the profiler saw no kernel")

    def replay() -> None:
        sleep_while_queueing((rounds + 1) * (1 + count // KERNELS_PER_QUEUED_CALL))
        for _ in range(rounds + 1):
            graph.replay()

    schedule = instance.schedule if instance.is_streamed else None
    before = None if schedule is None else schedule.before_among(instance.call_steps)
    return lay_on_timeline(assign_replays(record_work(replay), by_step, rounds + 1, before))


def _call_times(runs: Sequence[StepRun], alone: Timing) -> CallTimes:
    """One step over all replays: the median of each figure."""
    kernels = [
        replace(each[0], start_us=median(k.start_us for k in each), us=median(k.us for k in each))
        for each in zip(*(run.kernels for run in runs), strict=True)
    ]
    return CallTimes(
        timing=Timing(tuple(run.busy_us for run in runs)),
        start_us=median(run.start_us for run in runs),
        gap_us=median(run.gap_us for run in runs),
        overlap_us=median(run.overlap_us for run in runs),
        eager_us=alone.median_us,
        kernels=tuple(kernels),
    )


def _slowed(calls: Sequence[CallTimes], total: Timing) -> tuple[str, ...]:
    """A note if the run under the profiler is not as long as without."""
    seen = sum(call.timing.median_us + (call.gap_us or 0.0) - (call.overlap_us or 0.0) for call in calls)
    apart = seen / total.median_us - 1 if total.median_us else 0.0
    if abs(apart) <= SLOWED:
        return ()
    return (
        f"a replay takes {seen:.1f} µs under the profiler ({apart:+.0%}), {total.median_us:.1f} µs without",
    )


def _by_events(total: Timing, eager: Sequence[Timing], host: HostTime, reason: str) -> Measured:
    starts = [0.0]
    for timing in eager:
        starts.append(starts[-1] + timing.median_us)
    calls = [
        CallTimes(timing, start, eager_us=timing.median_us)
        for timing, start in zip(eager, starts, strict=False)
    ]
    return Measured(EVENTS, total, tuple(calls), host, notes=(reason,))


def _host(instance: CudaInstance, run: Callable[[], object] | None, rounds: int, total: Timing) -> HostTime:
    """The host's time to queue a run on an idle device, and that of a whole call."""
    queued = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        queued.append(wall_us(instance.execute))
    called = None if run is None else _waiting(run, rounds).median_us
    overhead = None if called is None else max(called - total.median_us, 0.0)
    return HostTime(median(queued), called, overhead)


def _waiting(call: Callable[[], object], rounds: int) -> Timing:
    """Wall time of a call until the device is done."""

    def waited() -> None:
        call()
        torch.cuda.synchronize()

    waited()
    return Timing(tuple(wall_us(waited) for _ in range(rounds)))
