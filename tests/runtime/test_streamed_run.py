"""Runs on several streams, with stand-ins for streams and events that keep CUDA's rules of order."""

from __future__ import annotations

import random
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch

from ridgeline.base import gpu_graph
from ridgeline.base.gpu_graph import CaptureError
from ridgeline.plan.streams import MAX_STREAMS, Schedule, with_waits
from ridgeline.runtime.streamed import StreamedRun, parts_of, require_apart

# Work is a set of steps, one bit each: what has ended when the next work of a stream begins.


@dataclass
class Stream:
    cuda_stream: int
    queued: int = 0

    def wait_event(self, event: Event) -> None:
        assert event.is_recorded, "waits for nothing"
        self.queued |= event.queued


@dataclass
class Event:
    queued: int = 0
    is_recorded: bool = False

    def record(self, stream: Stream) -> None:
        self.queued, self.is_recorded = stream.queued, True


@dataclass
class Device:
    """The current stream, and for each step what had ended when it began."""

    main: Stream = field(default_factory=lambda: Stream(100))
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.current = self.main

    @contextmanager
    def stream(self, stream: Stream) -> Any:
        before, self.current = self.current, stream
        yield
        self.current = before

    def call(self, step: int) -> None:
        self.seen[step] = (self.current.cuda_stream, self.current.queued)
        self.current.queued |= 1 << step


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: made.current)
    monkeypatch.setattr(torch.cuda, "stream", made.stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(gpu_graph, "joined_streams", set())
    return made


def run_of(device: Device, schedule: Schedule, steps: list[int]) -> StreamedRun:
    calls = [partial(device.call, step) for step in steps]
    streams: Any = [Stream(101 + i) for i in range(max(schedule.streams))]
    return StreamedRun(parts_of(schedule, calls, steps), streams)


@pytest.mark.parametrize("seed", range(25))
def test_every_step_begins_when_its_plan_says(device: Device, seed: int) -> None:
    rng = random.Random(seed)
    needs = [tuple(rng.sample(range(i), min(i, rng.randint(0, 2)))) for i in range(20)]
    schedule = with_waits([rng.randrange(MAX_STREAMS) if i else 0 for i in range(20)], needs)
    # some steps do nothing at these shapes; what they put in order stays
    steps = [i for i in range(20) if rng.random() < 0.8]
    run = run_of(device, schedule, steps)
    device.main.queued = earlier = 1 << 50
    run()
    present = sum(1 << i for i in steps)
    assert list(device.seen) == steps
    for i in steps:
        stream, ended = device.seen[i]
        assert stream == 100 + schedule.streams[i]
        assert not schedule.before[i] & present & ~ended, "it begins too early"
        assert ended & earlier, "and not before what the caller had queued"
    assert device.main.queued == present | earlier, "what comes after the run comes after all of it"
    # the next run may use the same memory, so all of this one comes first
    device.seen.clear()
    device.main.queued |= 1 << 51
    run()
    assert all(ended & (1 << 51) for _, ended in device.seen.values())


def test_a_stream_that_has_waited_is_known(device: Device) -> None:
    """The driver launches the next kernel there without dependent launch."""
    schedule = with_waits([0, 1, 0, 0], [(), (0,), (0,), (1, 2)])
    run_of(device, schedule, [0, 1, 2, 3])()
    assert gpu_graph.joined_streams == {100, 101}


def test_steps_with_several_calls_and_with_none() -> None:
    schedule = Schedule((0, 1, 0), ((), (0,), (1,)))
    parts = parts_of(schedule, [int, str, float], [0, 2, 2])
    assert [part.calls for part in parts] == [(int,), (), (str, float)]
    assert [part.is_waited_for for part in parts] == [True, True, False]


def test_a_call_that_fails_leaves_no_stream_in_the_capture(device: Device) -> None:
    schedule = with_waits([0, 1, 2, 0], [(), (0,), (0,), (1, 2)])

    def fail() -> None:
        device.call(2)
        raise ValueError("broken on purpose")

    calls = [partial(device.call, 0), partial(device.call, 1), fail, partial(device.call, 3)]
    streams: Any = [Stream(101), Stream(102)]
    with pytest.raises(ValueError, match="on purpose"):
        StreamedRun(parts_of(schedule, calls, [0, 1, 2, 3]), streams)()
    assert device.main.queued == 0b111


def test_programs_that_wait_for_one_another_are_on_one_stream() -> None:
    schedule = Schedule((0, 1, 1, 0), ((), (), (), (2,)))
    require_apart(schedule, {1, 2})
    require_apart(schedule, ())
    with pytest.raises(CaptureError, match="2 steps whose programs wait"):
        require_apart(schedule, {0, 1})
