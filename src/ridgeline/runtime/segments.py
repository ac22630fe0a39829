"""Captured segments: what of a run can be held by CUDA graphs where one graph cannot hold all of it.

Calls are tried one by one. Those that no graph can hold, and those that read what such a call made, run as
they are, since that may lie elsewhere in every run; neighbouring others become one graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

from torch.cuda import CUDAGraph

Call: TypeAlias = Callable[[], object]


@dataclass(frozen=True)
class CallValues:
    """The values that a call finds by name, and leaves by name: those without a place of their own."""

    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Segment:
    """Neighbouring calls in one graph, and the values by name that it leaves in the graph's own memory."""

    graph: CUDAGraph
    n_calls: int
    values: Mapping[str, Any]
    dynamic_values: dict[str, Any]

    def __call__(self) -> None:
        self.graph.replay()
        self.dynamic_values.update(self.values)


@dataclass(frozen=True)
class Segments:
    """A run in the order of its calls: captured segments, and calls between them that run one by one."""

    parts: tuple[Segment | Call, ...]
    reasons: tuple[str, ...]  # of those that run one by one

    @property
    def captured(self) -> list[Segment]:
        return [part for part in self.parts if isinstance(part, Segment)]

    def __call__(self) -> None:
        for part in self.parts:
            part()

    def __str__(self) -> str:
        captured = self.captured
        graphs = "one CUDA graph" if len(captured) == 1 else f"{len(captured)} CUDA graphs"
        steps = sum(segment.n_calls for segment in captured)
        return f"{steps} of {steps + len(self.reasons)} calls run in {graphs}, the others one by one"


def capture_segments(
    calls: Sequence[Call],
    values: Sequence[CallValues],
    dynamic_values: dict[str, Any],
    *,
    why_not: Callable[[Call], str | None],
    record: Callable[[Call], CUDAGraph],
) -> Segments | None:
    """The segments of a run that has been warmed; None where no call can be captured.

    `why_not` tries a call without running it; `record` makes the graph, or raises `CaptureError`.
    """
    reasons = _why_eager(calls, values, dynamic_values, why_not)
    parts: list[Segment | Call] = []
    kept: dict[str, Any] = {}
    for is_captured, places in groupby(range(len(calls)), key=lambda place: reasons[place] is None):
        first, *others = places
        here = slice(first, first + 1 + len(others))
        if not is_captured:
            parts += calls[here]
            continue
        segment = _capture(calls[here], values[here], dict(kept), dynamic_values, record)
        kept |= segment.values
        parts.append(segment)
    if not any(isinstance(part, Segment) for part in parts):
        return None
    return Segments(tuple(parts), tuple(reason for reason in reasons if reason is not None))


def _why_eager(
    calls: Sequence[Call],
    values: Sequence[CallValues],
    dynamic_values: dict[str, Any],
    why_not: Callable[[Call], str | None],
) -> list[str | None]:
    """For each call, why it runs outside of graphs. Every call runs once: the next one needs its values."""
    reasons: list[str | None] = []
    moving = {name for own in values for name in own.reads} - {n for own in values for n in own.writes}
    for call, own in zip(calls, values, strict=True):
        found = {name: dynamic_values[name] for name in own.reads}
        reason = why_not(call)
        dynamic_values.update(found)  # the trial has let go of those that it was the last to read
        call()
        if reason is None and not own.reads.isdisjoint(moving):
            reason = f"{min(own.reads & moving)!r} may lie elsewhere in every run"
        if reason is not None:
            moving |= own.writes
        reasons.append(reason)
    return reasons


def _capture(
    calls: Sequence[Call],
    values: Sequence[CallValues],
    kept: Mapping[str, Any],
    dynamic_values: dict[str, Any],
    record: Callable[[Call], CUDAGraph],
) -> Segment:
    """One graph of these calls, which find by name what earlier segments keep."""

    def run() -> None:
        dynamic_values.update(kept)  # a trial before the capture lets go of them
        for call in calls:
            call()

    graph = record(run)
    made = {name: dynamic_values[name] for own in values for name in own.writes}
    return Segment(graph, len(calls), {n: made[n] for n in made if made[n] is not None}, dynamic_values)
