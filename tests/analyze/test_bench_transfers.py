"""The parts of a query, with a clock, events and a stream that only the parts themselves move."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from ridgeline.analyze import bench_transfers
from ridgeline.analyze.bench_run import Stamps
from ridgeline.analyze.bench_transfers import GpuRunner, HostRunner, ResidentRunner

X = np.arange(6, dtype=np.float32)


class Machine:
    """A host and a device that take turns: `host` moves the clock, `device` moves the events."""

    def __init__(self) -> None:
        self.host_ns = self.device_ns = 0
        self.waited = 0
        self.inputs = {"x": Slow(self, 2_000)}

    def clock(self) -> int:
        return self.host_ns

    def run(self, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        self.host_ns += 5
        self.execute()
        self.host_ns += 7
        return {"y": feeds["x"] * 2}

    def execute(self) -> None:
        self.host_ns += 20
        self.device_ns += 30_000

    @contextmanager
    def timed_steps(
        self, feeds: object, times_ns: list[tuple[int, int]], clock: Callable[[], int]
    ) -> Iterator[None]:
        execute = self.execute

        def timed() -> None:
            began = clock()
            execute()
            times_ns.append((began, clock()))

        self.execute = timed  # type: ignore[method-assign]
        yield

    @property
    def stream(self) -> Machine:
        return self

    def synchronize(self) -> None:
        self.waited += 1

    def results(self) -> dict[str, Any]:
        return {"y": self.inputs["x"].tensor * 2}


class Slow:
    """A tensor on the device whose copies take time there."""

    def __init__(self, machine: Machine, copy_ns: int) -> None:
        self.machine, self.copy_ns, self.tensor = machine, copy_ns, torch.zeros(6)

    def copy_(self, source: torch.Tensor, *, non_blocking: bool) -> None:
        assert non_blocking
        self.machine.device_ns += self.copy_ns
        self.tensor.copy_(source)


class Pinned:
    """Memory of the host; a copy into it takes time on the device."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def copy_(self, source: torch.Tensor, *, non_blocking: bool) -> torch.Tensor:
        assert non_blocking
        self.machine.device_ns += 4_000
        return source.clone()


class Mark:
    def __init__(self, machine: Machine) -> None:
        self.machine, self.at_ns = machine, -1

    def record(self) -> None:
        self.at_ns = self.machine.device_ns

    def elapsed_time(self, end: Mark) -> float:
        assert self.machine.waited, "an event is read after the stream has reached it"
        return (end.at_ns - self.at_ns) / 1e6


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(bench_transfers, "_events", lambda count: [Mark(made) for _ in range(count)])
    return made


def test_on_a_cpu_the_steps_lie_between_what_comes_before_and_after() -> None:
    machine = Machine()
    with ExitStack() as stack:
        runner = HostRunner(machine, {"x": X}, stack, machine.clock)  # type: ignore[arg-type]
        assert runner.run() == Stamps(0, 32, None, 5, 20, 7)
        assert runner.run() == Stamps(32, 64, None, 5, 20, 7)
    np.testing.assert_array_equal(runner.outputs()["y"], X * 2)


def test_a_run_whose_steps_were_not_seen_has_no_parts() -> None:
    machine = Machine()
    machine.timed_steps = lambda *_: nullcontext()  # type: ignore[method-assign, assignment, return-value]
    runner = HostRunner(machine, {"x": X}, ExitStack(), machine.clock)  # type: ignore[arg-type]
    assert runner.run() == Stamps(0, 32)


def test_on_a_gpu_transfers_and_compute_come_from_events(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = torch.zeros(6)
    monkeypatch.setattr(
        bench_transfers, "new_pinned", lambda like: staged if isinstance(like, Slow) else Pinned(machine)
    )
    runner = GpuRunner(machine, {"x": X}, machine.clock)  # type: ignore[arg-type]
    assert runner.run() == Stamps(0, 20, 20, 2_000, 30_000, 4_000)
    np.testing.assert_array_equal(runner.outputs()["y"], X * 2)
    other = X + 1
    again = GpuRunner(machine, {"x": other}, machine.clock)  # type: ignore[arg-type]
    again.run()
    np.testing.assert_array_equal(again.outputs()["y"], other * 2)


def test_without_transfers_only_the_steps_are_between_the_events(machine: Machine) -> None:
    machine.inputs["x"].tensor.copy_(torch.from_numpy(X))
    runner = ResidentRunner(machine, machine.clock)  # type: ignore[arg-type]
    assert runner.run() == Stamps(0, 20, 20, None, 30_000, None)
    assert machine.waited == 1
    np.testing.assert_array_equal(runner.outputs()["y"], X * 2)
