"""A trace as a timeline in the Trace Event format, which Perfetto and Chrome open.

Tracks: the host, the device (steps and kernels), the nodes of the model, and a counter of live memory; arrows
lead from a node to the kernel, or the step, that computes it. All times are those of the trace; of nodes in
one fused step only the step's time is known, so each of them spans the whole step.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from ridgeline.base.files import path_given, whole_file
from ridgeline.errors import OptionError
from ridgeline.plan.trace import StepTime, Trace

HOST, DEVICE, NODES = 1, 2, 3
PROCESSES = {HOST: "host", DEVICE: "device", NODES: "ONNX nodes"}
# the first track of each kind; further ones hold what started before its neighbour had ended
RUN, STEPS, KERNELS, INSIDE = 1, 10, 30, 50
TRACKS = {
    (HOST, RUN): "run", (DEVICE, STEPS): "steps", (DEVICE, KERNELS): "kernels", (NODES, STEPS): "nodes",
    (NODES, INSIDE): "inside library spans",
}  # fmt: skip
LANES = 20
# more nodes than this would make a stack that nobody can read: they are one slice with a list
MOST_STACKED = 8
Event = dict[str, Any]


@dataclass(frozen=True)
class Placed:
    """A step on the timeline: from the start of its first kernel to the end of its last."""

    step: StepTime
    start_us: float
    us: float
    lane: int
    kernel_lanes: tuple[int, ...]


class Lanes:
    """Tracks on which slices never overlap: one that starts before its neighbour has ended gets another."""

    def __init__(self) -> None:
        self._ends: list[float] = []

    def put(self, start: float, us: float) -> int:
        ends = self._ends
        lane = next((i for i, end in enumerate(ends) if _ts(start) >= end), len(ends))
        if lane == len(ends):
            ends.append(0.0)
        ends[lane] = _ts(start + us)
        return min(lane, LANES - 1)


def _ts(us: float) -> float:
    """Nanoseconds are the last digit: ends are sums, and would differ from the next start in the last bit."""
    return round(us, 3)


def save_timeline(trace: Trace, path: str | Path) -> Path:
    """Write the timeline: whole, or not at all."""
    target = path_given(path, what="a timeline")
    try:
        with whole_file(target) as file:
            file.write(json.dumps(timeline(trace)).encode())
    except OSError as error:
        raise OptionError(f"the timeline cannot be written to {str(target)!r}", got=str(error)) from error
    return target


def timeline(trace: Trace) -> dict[str, Any]:
    """The whole file."""
    placed = _place(trace)
    events = [*_host(trace), *_device(placed), *_nodes(placed), *_memory(trace, placed)]
    about = {"model": trace.model, "target": trace.target, "device": trace.device, "how": trace.how}
    return {"traceEvents": [*_names(events), *events], "displayTimeUnit": "ns", "otherData": about}


def _place(trace: Trace) -> list[Placed]:
    steps, kernels = Lanes(), Lanes()
    made: list[Placed] = []
    for step in trace.steps:
        # steps without kernels follow one another; medians of their starts and of their times need not meet
        start = max(step.start_us, made[-1].start_us + made[-1].us if made else 0.0)
        us = step.median_us
        if step.kernels:
            start = min(kernel.start_us for kernel in step.kernels)
            us = max(kernel.start_us + kernel.us for kernel in step.kernels) - start
        lanes = tuple(kernels.put(kernel.start_us, kernel.us) for kernel in step.kernels)
        made.append(Placed(step, start, us, steps.put(start, us), lanes))
    return made


def _names(events: Sequence[Event]) -> Iterator[Event]:
    used = sorted({(event["pid"], event["tid"]) for event in events})
    for pid in sorted({pid for pid, _ in used}):
        yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": PROCESSES[pid]}}
        yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "args": {"sort_index": pid}}
    for pid, tid in used:
        first = max(track for place, track in TRACKS if place == pid and track <= tid)
        name = TRACKS[pid, first] + (f", beside others ({tid - first})" if tid > first else "")
        yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}


def _slice(place: tuple[int, int], name: str, start: float, us: float, **args: Any) -> Event:
    pid, tid = place
    begin, end = _ts(start), _ts(start + us)
    event = {"ph": "X", "cat": "ridgeline", "name": name, "pid": pid, "tid": tid, "ts": begin}
    return {**event, "dur": _ts(end - begin), "args": args}


def _host(trace: Trace) -> Iterator[Event]:
    """What the host spends on one run: to queue it on a GPU, all of it on a CPU."""
    queued, called = trace.host.enqueue_us, trace.host.run_us
    facts = {"engine_run_us": called, "call_overhead_us": trace.host.call_overhead_us}
    if queued is None:
        yield _slice((HOST, RUN), "run", 0.0, trace.total_us, **facts)
    else:
        yield _slice((HOST, RUN), "queue the run", 0.0, queued, **facts)


def _device(placed: Sequence[Placed]) -> Iterator[Event]:
    is_forked = any(each.step.stream for each in placed)
    for each in placed:
        step = each.step
        yield _slice(
            (DEVICE, STEPS + each.lane), f"{step.index} {step.name}", each.start_us, each.us,
            step=step.index, median_us=step.median_us, p10_us=step.p10_us, p90_us=step.p90_us,
            gap_us=step.gap_us, overlap_us=step.overlap_us, tactic=step.tactic, config=dict(step.config),
            precision=step.precision, op_class=step.op_class, bytes=step.bytes, flops=step.flops,
            nodes=list(step.sources), **({"stream": step.stream} if is_forked else {}),
        )  # fmt: skip
        for kernel, lane in zip(step.kernels, each.kernel_lanes, strict=True):
            facts = {"step": step.index, "blocks": kernel.blocks}
            yield _slice((DEVICE, KERNELS + lane), kernel.name, kernel.start_us, kernel.us, **facts)


def _nodes(placed: Sequence[Placed]) -> Iterator[Event]:
    """A slice for each node, over the time of its step, and an arrow from it to what computes it."""
    arrows = count(1)
    for each in placed:
        kernels = each.kernel_lanes
        target = KERNELS + kernels[0] if kernels else STEPS + each.lane
        for name, listed in _stack(each.step):
            place = (NODES, STEPS + each.lane)
            yield _slice(place, name, each.start_us, each.us, step=each.step.index, nodes=listed)
            flow = {"cat": "node", "name": "computed by", "id": next(arrows), "ts": _ts(each.start_us)}
            yield {"ph": "s", "pid": NODES, "tid": STEPS + each.lane, **flow}
            yield {"ph": "f", "bp": "e", "pid": DEVICE, "tid": target, **flow}
        yield from _inside(each)


def _stack(step: StepTime) -> Sequence[tuple[str, list[str]]]:
    sources = list(step.sources) or [step.name]
    if len(sources) > MOST_STACKED:
        return [(f"{sources[0]} … {sources[-1]} ({len(sources)} nodes)", sources)]
    return [(source, [source]) for source in sources]


def _inside(placed: Placed) -> Iterator[Event]:
    """Nodes that a library timed itself, in its order, fitted into the step where its profiler slowed it."""
    nodes, start = placed.step.inside, placed.start_us
    total = sum(node.us for node in nodes)
    scale = min(1.0, placed.us / total) if total else 1.0
    for node in nodes:
        facts = {"step": placed.step.index, "measured_us": node.us, "nodes": list(node.sources)}
        yield _slice((NODES, INSIDE), f"{node.op_type} {node.name}", start, node.us * scale, **facts)
        start += node.us * scale


def _memory(trace: Trace, placed: Sequence[Placed]) -> Iterator[Event]:
    """Live bytes from the start of each step on."""
    counter = {"ph": "C", "pid": DEVICE, "tid": STEPS, "name": "live memory"}
    for each, live in zip(placed, trace.memory.live_bytes, strict=True):
        yield {**counter, "ts": _ts(each.start_us), "args": {"bytes": live}}
    if placed:
        end = max(each.start_us + each.us for each in placed)
        yield {**counter, "ts": _ts(end), "args": {"bytes": 0}}
