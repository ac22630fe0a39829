"""A clock that only moves when a call or a pause moves it, in place of the machine's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ridgeline.base import timing
from ridgeline.select import race


class World:
    """The clock, and a log of who ran when."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.log: list[str] = []

    def rule(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """From here on everything that times calls reads this clock."""
        monkeypatch.setattr(timing, "perf_counter_ns", lambda: self.now_ns)
        monkeypatch.setattr(timing, "sleep", self.sleep)
        monkeypatch.setattr(race, "perf_counter", lambda: self.now_ns / 1e9)
        monkeypatch.setattr(race, "sleep", self.sleep)

    def call(self, name: str, cost_us: float, first_us: float = 0.0) -> Callable[[], None]:
        def run() -> None:
            self.now_ns += int((first_us if name not in self.log and first_us else cost_us) * 1e3)
            self.log.append(name)

        return run

    def sleep(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)
        self.log.append("pause")
