"""A run on several streams: the calls of a schedule in the order of the plan, each on the stream of its step.

Captured in a CUDA graph, streams and waits become edges between kernels; run as it is, it does the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from ridgeline.base.gpu_graph import CaptureError, wait_for
from ridgeline.plan.streams import Schedule

Call: TypeAlias = Callable[[], object]


@dataclass(frozen=True)
class Part:
    """The calls of one step of the plan; none where it does no work at these shapes, but its waits stay."""

    stream: int
    waits: tuple[int, ...]
    calls: tuple[Call, ...]
    is_waited_for: bool


def parts_of(schedule: Schedule, calls: Sequence[Call], call_steps: Sequence[int]) -> list[Part]:
    """The schedule with the calls of each step; `call_steps` are the places of their steps in the plan."""
    by_step: dict[int, list[Call]] = {}
    for step, call in zip(call_steps, calls, strict=True):
        by_step.setdefault(step, []).append(call)
    waited_for = {step for waits in schedule.waits for step in waits}
    return [
        Part(stream, waits, tuple(by_step.get(step, ())), step in waited_for)
        for step, (stream, waits) in enumerate(zip(schedule.streams, schedule.waits, strict=True))
    ]


def require_apart(schedule: Schedule, waiting: Collection[int]) -> None:
    """Raise where steps whose programs wait for one another are on different streams.

    Side by side, each could hold processors that the other waits for.
    """
    streams = {schedule.streams[step] for step in waiting}
    if len(streams) > 1:
        raise CaptureError(f"{len(waiting)} steps whose programs wait for one another are on several streams")


@dataclass
class StreamedRun:
    """Queues a run on the current stream and on auxiliary ones, which begin after it and end before it."""

    parts: Sequence[Part]
    auxiliary: Sequence[torch.cuda.Stream]  # of stream 1, 2, …
    # kept from run to run: an event that is let go of in a capture could be made anew there
    _events: dict[int, torch.cuda.Event] = field(default_factory=dict)

    def __call__(self) -> None:
        main = torch.cuda.current_stream()
        streams = [main, *self.auxiliary]
        begin = self._record(-1, main)
        joined = {0}
        try:
            for step, part in enumerate(self.parts):
                stream = streams[part.stream]
                if part.stream not in joined:
                    # even where a wait of its own brings the stream in: the run before uses the same memory
                    wait_for(stream, begin)
                    joined.add(part.stream)
                self._queue(step, part, stream)
        except Exception:
            # a capture on trial ends here: no stream may be left in it
            with suppress(RuntimeError):
                self._join(streams, joined)
            raise
        self._join(streams, joined)

    def _queue(self, step: int, part: Part, stream: torch.cuda.Stream) -> None:
        for other in part.waits:
            wait_for(stream, self._events[other])
        if part.calls:
            with torch.cuda.stream(stream):
                for call in part.calls:
                    call()
        if part.is_waited_for:
            self._record(step, stream)

    def _join(self, streams: Sequence[torch.cuda.Stream], joined: Collection[int]) -> None:
        for number in sorted(set(joined) - {0}):
            wait_for(streams[0], self._record(-1 - number, streams[number]))

    def _record(self, key: int, stream: torch.cuda.Stream) -> torch.cuda.Event:
        if key not in self._events:
            self._events[key] = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event = self._events[key]
        event.record(stream)
        return event
