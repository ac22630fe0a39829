"""GPU time: calls captured in CUDA graphs, replayed in turns, read from device events.

Replays are queued while the device sleeps, which leaves the host out of the figure. Replays of rivals
alternate, so that clocks and neighbours are shared; the caches are warm with the call's own operands, which
is said beside every figure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch

from ridgeline.base.gpu_graph import new_stream, record, warm
from ridgeline.base.timing import Timing

ROUNDS = 7
MIN_SAMPLE_US = 200.0
# the device sleeps while calls are queued behind: about 1 ms, and 50 µs for each call
SLEEP_CYCLES, SLEEP_CYCLES_PER_CALL = 2_000_000, 100_000
# for replays of a graph, which are launched faster: about 30 µs, and 6 µs for each
REPLAY_SLEEP_CYCLES, SLEEP_CYCLES_PER_REPLAY = 60_000, 12_000
MOST_QUEUED = 100  # the host is ahead by then: a longer sleep would only cost time


def capture(call: Callable[[], object], repeats: int = 1) -> torch.cuda.CUDAGraph:
    """A graph of `repeats` calls in a row, warmed up; `CaptureError` where a graph cannot hold the call.

    The graph keeps the call, and with it all memory that the call reads and writes.
    """
    stream = _stream()
    warm(call, stream)
    graph = record(call, stream, repeats)
    graph.call = call  # type: ignore[attr-defined]
    return graph


@cache
def _stream() -> torch.cuda.Stream:
    """One for all that is timed: libraries keep scratch memory for every stream they have seen."""
    return new_stream()


def replay_us(graph: torch.cuda.CUDAGraph, replays: int) -> float:
    """Mean time of one replay, in µs."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda._sleep(REPLAY_SLEEP_CYCLES + SLEEP_CYCLES_PER_REPLAY * min(replays, MOST_QUEUED))  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / replays


def interleave_graphs(
    graphs: Sequence[torch.cuda.CUDAGraph],
    *,
    calls: int = 1,
    rounds: int = ROUNDS,
    min_sample_us: float = MIN_SAMPLE_US,
) -> list[Timing]:
    """Time graphs against each other; `calls` is how many calls one graph holds."""
    counts = []
    for graph in graphs:
        graph.replay()
        counts.append(max(1, round(min_sample_us / max(replay_us(graph, 2), 1e-3))))
    samples: list[list[float]] = [[] for _ in graphs]
    for turn in range(rounds):
        for i in range(len(graphs)):
            which = (i + turn) % len(graphs)
            samples[which].append(replay_us(graphs[which], counts[which]) / calls)
    return [Timing(tuple(s), inner=n * calls) for s, n in zip(samples, counts, strict=True)]


def times_in_turn(calls: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Median GPU time of each of these calls in µs, run in order: what one leaves the next may need."""
    return [timing.median_us for timing in samples_in_turn(calls, rounds)]


def samples_in_turn(calls: Sequence[Callable[[], object]], rounds: int) -> list[Timing]:
    """GPU time of each of these calls, run in order.

    They are queued while the device sleeps, so the host's pace does not show. A call that waits for the
    device itself ends the sleep: it and those after it are timed as they run, host included.
    """
    samples: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(calls) + 1)]  # type: ignore[no-untyped-call]
        sleep_while_queueing(len(calls))
        marks[0].record()
        for call, mark in zip(calls, marks[1:], strict=True):
            call()
            mark.record()
        marks[-1].synchronize()
        for kept, start, end in zip(samples, marks, marks[1:], strict=False):
            kept.append(start.elapsed_time(end) * 1e3)
    return [Timing(tuple(kept)) for kept in samples]


def sleep_while_queueing(calls: int) -> None:
    """Keep the device busy with nothing, long enough that so many calls can be queued behind."""
    torch.cuda._sleep(SLEEP_CYCLES + SLEEP_CYCLES_PER_CALL * calls)  # type: ignore[no-untyped-call]
