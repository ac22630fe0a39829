"""Captured segments: what of a run can be held by CUDA graphs where one graph cannot hold all of it.

Calls are tried one by one. Those that no graph can hold, and those that read what such a call made, run as
they are, since that may lie elsewhere in every run; neighbouring others become one graph. What a call between
graphs makes is copied to a fixed place if its shape is known: then what reads it is captured again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.cuda import CUDAGraph

from ridgeline.kernels.elements import bits, fill
from ridgeline.plan.report import RunPart

Call: TypeAlias = Callable[[], object]
NO_SIZE = "reads {name!r}, whose size and place data decides"
ONLY_A_VIEW = "looks at memory that is there, and launches nothing"
GIVEN = "reads {name!r}, which the caller hands over"


@dataclass(frozen=True)
class CallValues:
    """The values that a call finds by name, and leaves by name: those without a place of their own."""

    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    sized: frozenset[str] = frozenset()  # of those it leaves, the ones of a shape that is known
    step: str = ""
    is_view: bool = False  # the call only looks at memory otherwise: a graph of such calls would be empty
    why_eager: str = ""  # why no graph can hold the call, where that is known without a trial


@dataclass(frozen=True)
class Segment:
    """Neighbouring calls in one graph, and the values by name that it leaves in the graph's own memory."""

    graph: CUDAGraph
    n_calls: int
    values: Mapping[str, Any]
    dynamic_values: dict[str, Any]
    steps: tuple[str, ...] = ()

    def __call__(self) -> None:
        self.graph.replay()
        self.dynamic_values.update(self.values)


@dataclass(frozen=True)
class EagerCall:
    """A call outside of graphs, and the places where graphs find what it leaves."""

    call: Call
    step: str
    reason: str
    dynamic_values: dict[str, Any]
    places: dict[str, Tensor] = field(default_factory=dict)

    def __call__(self) -> None:
        self.call()
        for name, place in self.places.items():
            fill(place, self.dynamic_values[name])
            self.dynamic_values[name] = place


@dataclass(frozen=True)
class Segments:
    """A run in the order of its calls: captured segments, and calls between them that run one by one."""

    parts: tuple[Segment | EagerCall, ...]

    @property
    def captured(self) -> list[Segment]:
        return [part for part in self.parts if isinstance(part, Segment)]

    @property
    def reasons(self) -> list[str]:
        """Of the calls that run one by one."""
        return [part.reason for part in self.parts if isinstance(part, EagerCall)]

    def __call__(self) -> None:
        for part in self.parts:
            part()

    def __str__(self) -> str:
        captured = self.captured
        if not captured:
            return "the steps run one by one"
        graphs = "one CUDA graph" if len(captured) == 1 else f"{len(captured)} CUDA graphs"
        steps = sum(segment.n_calls for segment in captured)
        return f"{steps} of {steps + len(self.reasons)} calls run in {graphs}, the others one by one"

    def rows(self, graph: str) -> tuple[RunPart, ...]:
        """For the report of an engine; `graph` is the subgraph that this is a run of."""
        return tuple(
            RunPart(graph, part.steps, is_captured=True)
            if isinstance(part, Segment)
            else RunPart(graph, (part.step,), is_captured=False, why=part.reason)
            for part in self.parts
        )


def capture_segments(
    calls: Sequence[Call],
    values: Sequence[CallValues],
    dynamic_values: dict[str, Any],
    *,
    why_not: Callable[[Call], str | None],
    record: Callable[[Call], CUDAGraph],
) -> Segments:
    """The segments of a run that has been warmed.

    `why_not` tries a call without running it; `record` makes the graph, or raises `CaptureError`.
    """
    tried = _try_calls(calls, values, dynamic_values, why_not)
    _find_places(tried, values)
    parts: list[Segment | EagerCall] = []
    kept: dict[str, Any] = {}
    for is_captured, places in groupby(range(len(calls)), key=lambda place: tried[place] is None):
        first, *others = places
        here = slice(first, first + 1 + len(others))
        if is_captured and all(own.is_view for own in values[here]):
            dynamic_values.update(kept)
            for call, own in zip(calls[here], values[here], strict=True):
                call()
                kept |= {name: dynamic_values[name] for name in own.writes}
                parts.append(EagerCall(call, own.step, ONLY_A_VIEW, dynamic_values))
        elif is_captured:
            segment = _capture(calls[here], values[here], dict(kept), dynamic_values, record)
            kept |= segment.values
            parts.append(segment)
        else:
            eager = [each for each in tried[here] if each is not None]
            kept |= {name: place for each in eager for name, place in each.places.items()}
            parts += eager
    return Segments(tuple(parts))


def _try_calls(
    calls: Sequence[Call],
    values: Sequence[CallValues],
    dynamic_values: dict[str, Any],
    why_not: Callable[[Call], str | None],
) -> list[EagerCall | None]:
    """For each call how it runs outside of graphs; None for one that a graph can hold.

    Every call runs once: the next one needs its values. Those of a known shape get a place at once.
    """
    tried: list[EagerCall | None] = []
    made = {name for own in values for name in own.writes}
    # why a value is not where it was in the run before
    moving = {name: GIVEN.format(name=name) for own in values for name in own.reads - made}
    for call, own in zip(calls, values, strict=True):
        reason: str | None = own.why_eager
        if not reason:
            found = {name: dynamic_values[name] for name in own.reads}
            reason = why_not(call)
            dynamic_values.update(found)  # the trial has let go of those that it was the last to read
        call()
        if not reason and not own.reads.isdisjoint(moving):
            reason = moving[min(own.reads & moving.keys())]
        if not reason:
            tried.append(None)
            continue
        placed = {name: _place_like(dynamic_values[name]) for name in sorted(own.sized)}
        fixed = {name: place for name, place in placed.items() if place is not None}
        moving |= {name: NO_SIZE.format(name=name) for name in own.writes - fixed.keys()}
        tried.append(EagerCall(call, own.step, reason, dynamic_values, fixed))
    return tried


def _place_like(value: Any) -> Tensor | None:
    """Memory for one value; None for what is no tensor, or is gone since nobody reads it."""
    return torch.empty_like(bits(value)).view(value.dtype) if isinstance(value, Tensor) else None


def _find_places(tried: Sequence[EagerCall | None], values: Sequence[CallValues]) -> None:
    """Keep the places that some graph reads: what else would be copied there stays where it is."""
    wanted = {name for eager, own in zip(tried, values, strict=True) if eager is None for name in own.reads}
    for eager in tried:
        if eager is not None:
            for name in eager.places.keys() - wanted:
                del eager.places[name]


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
    steps = tuple(dict.fromkeys(own.step for own in values))
    left = {name: value for name, value in made.items() if value is not None}
    return Segment(graph, len(calls), left, dynamic_values, steps)
