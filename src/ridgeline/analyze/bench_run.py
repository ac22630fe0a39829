"""The measuring loop: contexts side by side, each in a thread of its own, every query time-stamped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier, BrokenBarrierError, Event
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol

from ridgeline.analyze.bench_settings import BenchSettings
from ridgeline.base.timing import gc_paused

TELL_NS = 100_000_000
Clock = Callable[[], int]


class Stamps(NamedTuple):
    """One query in ns; start and end are times of the host's clock. None: not measured."""

    start: int
    end: int
    enqueue: int | None = None  # host time to queue the steps
    h2d: int | None = None
    compute: int | None = None
    d2h: int | None = None


class QueryRunner(Protocol):
    """One context with its inputs."""

    def run(self) -> Stamps:
        """One query. It is over, and its outputs are there, when this returns."""

    def outputs(self) -> Mapping[str, Any]:
        """Of the latest query."""


@dataclass(frozen=True, slots=True)
class Query:
    """One query in µs; `start_us` and `end_us` count from the start of the first query of all contexts."""

    context: int  # counted from 0
    start_us: float
    end_us: float
    enqueue_us: float | None
    h2d_us: float | None
    compute_us: float | None
    d2h_us: float | None

    @property
    def latency_us(self) -> float:
        return self.end_us - self.start_us


@dataclass(frozen=True)
class Measured:
    """Queries of all contexts in the order of their start."""

    queries: tuple[Query, ...]
    warmup_queries: int

    @property
    def walltime_s(self) -> float:
        """From the start of the first query to the end of the last."""
        return max(query.end_us for query in self.queries) / 1e6

    @property
    def throughput_qps(self) -> float:
        """Queries of all contexts over the time in which they ran."""
        return len(self.queries) / self.walltime_s if self.walltime_s else 0.0


def measure(
    runners: Sequence[QueryRunner],
    settings: BenchSettings,
    *,
    clock: Clock = perf_counter_ns,
    on_round: Callable[[int, int], None] | None = None,
) -> Measured:
    """Warm up, wait for each other, and run. `on_round` hears the ms done and the ms expected."""
    loops = [_Loop(runner, settings, clock) for runner in runners]
    loops[0].on_round = on_round
    with gc_paused():
        if len(loops) == 1:
            loops[0].warm_up()
            loops[0].run()
        else:
            _side_by_side(loops)
    first = min(stamps.start for loop in loops for stamps in loop.taken)
    queries = [_query(i, stamps, first) for i, loop in enumerate(loops) for stamps in loop.taken]
    queries.sort(key=lambda query: query.start_us)
    return Measured(tuple(queries), sum(loop.warmed for loop in loops))


def _side_by_side(loops: Sequence[_Loop]) -> None:
    """All loops in threads of their own; the first error of any of them ends all."""
    together, stop = Barrier(len(loops)), Event()

    def one(loop: _Loop) -> None:
        loop.is_stopped = stop.is_set
        try:
            loop.warm_up()
            together.wait()
            loop.run()
        except BaseException:
            stop.set()
            together.abort()
            raise

    with ThreadPoolExecutor(len(loops)) as threads:
        try:
            running = [threads.submit(one, loop) for loop in loops]
            errors = [error for each in running if (error := each.exception()) is not None]
        finally:
            stop.set()
    # a context that waited for one that failed has nothing to say of its own
    for error in sorted(errors, key=lambda error: isinstance(error, BrokenBarrierError)):
        raise error


class _Loop:
    """The queries of one context."""

    def __init__(self, runner: QueryRunner, settings: BenchSettings, clock: Clock) -> None:
        self._runner, self._settings, self._clock = runner, settings, clock
        self.taken: list[Stamps] = []
        self.warmed = 0
        self.is_stopped: Callable[[], bool] = bool
        self.on_round: Callable[[int, int], None] | None = None

    def warm_up(self) -> None:
        end = self._clock() + int(self._settings.warmup_ms * 1e6)
        while self._clock() < end and not self.is_stopped():
            self._runner.run()
            self.warmed += 1

    def run(self) -> None:
        duration_ns, least = int(self._settings.duration_s * 1e9), self._settings.iterations
        start = told = self._clock()
        while not self.is_stopped():
            stamps = self._runner.run()
            self.taken.append(stamps)
            if stamps.end - start >= duration_ns and len(self.taken) >= least:
                break
            if stamps.end - told >= TELL_NS:
                told = stamps.end
                self._tell(stamps.end - start, duration_ns)
        self._tell(duration_ns, duration_ns)

    def _tell(self, done_ns: int, expected_ns: int) -> None:
        if self.on_round is not None:
            expected = max(done_ns, expected_ns, 1_000_000)
            self.on_round(max(done_ns, 1_000_000) // 1_000_000, expected // 1_000_000)


def _query(context: int, stamps: Stamps, first_ns: int) -> Query:
    parts = [None if part is None else part / 1e3 for part in stamps[2:]]
    return Query(context, (stamps.start - first_ns) / 1e3, (stamps.end - first_ns) / 1e3, *parts)
