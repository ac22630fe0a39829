"""Runs of the load generator against one server: warm-up, what the server counted, one row per level."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from ridgeline.serve.loadtest.connections import Connector
from ridgeline.serve.loadtest.generator import Generator, Shots
from ridgeline.serve.loadtest.levels import schedule
from ridgeline.serve.loadtest.rows import LevelRow, level_row, server_times

IDLE_REQUESTS = 5
# connections of an open loop that are opened before it: what arrives while the server pauses for so long
SPARE, PAUSE_S = 16, 0.05
SETTLED, SETTLE_S = 3.0, 60.0  # times the idle latency, and how long to wait for that
Statistics = Callable[[], Mapping[str, Any] | None]


@dataclass(frozen=True)
class LoadSettings:
    """How each level is measured."""

    duration_s: float = 5.0
    warmup_s: float = 1.0
    arrivals: str = "poisson"  # or constant
    connections: int = 512  # at most, of an open loop
    patience_s: float = 30.0  # until a request counts as lost
    seed: int = 0


class LoadTest:
    """One server under load. `statistics` asks the server for its own counters, where it has any."""

    def __init__(
        self,
        connector: Connector,
        requests: Sequence[bytes],
        settings: LoadSettings,
        *,
        rows_per_request: int = 1,
        statistics: Statistics = lambda: None,
    ) -> None:
        self._generator = Generator(connector, requests, connections=settings.connections)
        self._settings, self._rows_per_request = settings, rows_per_request
        self._statistics = statistics
        self._schedules = 0  # each has a seed of its own
        self._idle_ns: int | None = None
        self._is_behind = False

    def close(self) -> None:
        self._generator.close()

    def closed(self, concurrency: int) -> LevelRow:
        """So many clients, each with one request at a time."""
        patience_s = self._settings.patience_s
        return self._measure(
            concurrency,
            lambda seconds: self._generator.closed_loop(concurrency, seconds, patience_s=patience_s),
        )

    def open(self, rate: float, *, patience_s: float | None = None) -> LevelRow:
        """So many requests per second, whether the server keeps up or not."""
        settings = self._settings
        patience_s = settings.patience_s if patience_s is None else patience_s

        def run(seconds: float) -> Shots:
            self._schedules += 1
            seed = settings.seed + self._schedules
            self._generator.open_connections(SPARE + round(rate * PAUSE_S))
            due = schedule(rate, seconds, arrivals=settings.arrivals, seed=seed)
            return self._generator.open_loop(due, seconds=seconds, patience_s=patience_s)

        return self._measure(rate, run)

    def _measure(self, level: float, run: Callable[[float], Shots]) -> LevelRow:
        """The warm-up is a run of its own, so that the server's counters are those of the measured one."""
        self._settle()
        if self._settings.warmup_s:
            self._is_behind |= run(self._settings.warmup_s).gave_up
            self._settle()
        before = self._statistics()
        shots = run(self._settings.duration_s)
        after = self._statistics()
        self._is_behind = shots.gave_up
        return level_row(
            level,
            shots,
            rows_per_request=self._rows_per_request,
            server=server_times(before, after) if before and after else None,
        )

    def _settle(self) -> None:
        """Wait until a server that fell behind has done, or dropped, what was left to do.

        Servers go on with requests whose clients are gone, and the next level would wait for those.
        """
        if self._idle_ns is None:
            self._idle_ns = min(self._single_ns() for _ in range(IDLE_REQUESTS))
        end = monotonic() + SETTLE_S
        while self._is_behind and monotonic() < end:
            self._is_behind = self._single_ns() > SETTLED * self._idle_ns
        self._is_behind = False

    def _single_ns(self) -> int:
        shots = self._generator.open_loop([0], patience_s=self._settings.patience_s)
        return shots.ended_ns[0] - shots.due_ns[0]
