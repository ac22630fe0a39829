"""The search for the highest rate, and the levels and schedules that a load test is made of."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import numpy as np
import pytest
from protocol_stand_in import stand_in

from ridgeline.errors import OptionError
from ridgeline.serve.clients.client import Client
from ridgeline.serve.loadtest.levels import parse_levels, schedule
from ridgeline.serve.loadtest.loadtest import Target, highest_rate
from ridgeline.serve.loadtest.rows import LevelRow
from ridgeline.serve.loadtest.run import LoadSettings
from ridgeline.serve.loadtest.search import search

X = np.ones((1, 3), np.float32)
MS = 1_000_000  # ns


class Simulated:
    """A server whose p99 is 5 ms up to its capacity, and a second above; some runs are spoilt, or lucky."""

    def __init__(
        self, capacity: float, spoilt: tuple[int, ...] = (), lucky: tuple[int, ...] = (), closed: float = 1.3
    ) -> None:
        self.capacity, self.spoilt, self.lucky, self.runs = capacity, spoilt, lucky, 0
        self.closed_share = closed  # of the capacity, that a closed loop comes to

    def _row(self, level: float, rate: float, p99_us: float) -> LevelRow:
        return LevelRow(
            level, 1, 1, {}, "", rate, rate, 1, {"99": p99_us}, 1, None, 1, 0.1, None, False, ()
        )  # fmt: skip

    def closed(self, concurrency: int) -> LevelRow:
        return self._row(concurrency, self.capacity * self.closed_share, 5e3)

    def open(self, rate: float, *, patience_s: float) -> LevelRow:
        self.runs += 1
        is_well = self.runs in self.lucky or (rate <= self.capacity and self.runs not in self.spoilt)
        return self._row(rate, min(rate, self.capacity), 5e3 if is_well else 1e6)


@pytest.mark.parametrize("capacity", [3.0, 100.0, 1234.0, 54321.0])
@pytest.mark.parametrize("spoilt", [(), (1,), (2, 5), (4, 7, 10)])
def test_the_search_finds_the_highest_rate(capacity: float, spoilt: tuple[int, ...]) -> None:
    rows, best = search(Simulated(capacity, spoilt), 20e3)  # type: ignore[arg-type]
    assert best is not None
    assert 0.94 * capacity <= best <= capacity
    assert [row.level for row in rows] == sorted(row.level for row in rows)


@pytest.mark.parametrize("lucky", [(1,), (2,), (1, 3), (5, 7)])
def test_a_rate_that_passed_by_luck_is_not_the_highest(lucky: tuple[int, ...]) -> None:
    rows, best = search(Simulated(100.0, lucky=lucky), 20e3)  # type: ignore[arg-type]
    assert best is not None
    assert 80 <= best <= 100
    assert any(row.level > 100 for row in rows)


@pytest.mark.parametrize("share", [1 / 20, 1 / 1000, 50])
def test_the_search_may_begin_far_from_the_highest_rate(share: float) -> None:
    rows, best = search(Simulated(1000.0, closed=share), 20e3)  # type: ignore[arg-type]
    assert best is not None
    assert 940 <= best <= 1000
    assert not rows[-1].keeps(20e3)
    assert not any(row.warnings for row in rows)


def test_a_search_in_which_nothing_failed_says_so() -> None:
    rows, best = search(Simulated(1e12, closed=1e-10), 20e3)  # type: ignore[arg-type]
    assert best is not None
    assert 500_000 < best <= 1_000_000
    assert rows[-1].level == best
    assert ["no rate failed" in "".join(row.warnings) for row in rows] == [False] * (len(rows) - 1) + [True]


def test_the_search_ends_where_nothing_passes() -> None:
    rows, best = search(Simulated(100.0), 1.0)  # type: ignore[arg-type]
    assert best is None
    assert len(rows) < 30
    assert search(Simulated(0.0), 20e3)[1] is None  # type: ignore[arg-type]


def test_a_real_server_is_searched() -> None:
    """Two requests at a time, 4 ms each: 500 in a second at the very most."""
    gate = asyncio.Semaphore(2)
    with stand_in(delay_s=0.004, gate=gate, keep_seen=False) as server, Client(server.url) as client:
        settings = LoadSettings(duration_s=0.01, warmup_s=0, arrivals="constant")
        report = highest_rate(client, Target("add_one", "", {"x": X}, {}), 20e3, settings)
        assert report.duration_s == 0.2  # a queue of 20 ms needs time to grow
        assert report.best_rps is None or report.best_rps < 600
        assert any(not row.keeps(20e3) for row in report.rows)


# ---- levels


def test_schedules_have_their_rate() -> None:
    even = schedule(100, 1.0, arrivals="constant", seed=0)
    assert len(even) == 100
    assert {b - a for a, b in pairwise(even)} == {10 * MS}
    random = schedule(1000, 10.0, arrivals="poisson", seed=0)
    assert 9600 < len(random) < 10400
    assert random == schedule(1000, 10.0, arrivals="poisson", seed=0)
    assert random != schedule(1000, 10.0, arrivals="poisson", seed=1)
    gaps = np.diff(random)
    assert float(gaps.std() / gaps.mean()) == pytest.approx(1, abs=0.05)  # as of an exponential distribution


def test_levels_as_users_write_them() -> None:
    assert parse_levels("1..64", option="--rate") == (1, 2, 4, 8, 16, 32, 64)
    assert parse_levels("100..2000", option="--rate") == (100, 200, 400, 800, 1600, 2000)
    assert parse_levels("5, 1,2", option="--rate") == (1, 2, 5)
    assert parse_levels("3..3", option="--rate") == (3,)
    for bad in ("", "0", "4..2", "0..4", "a", "1..", "-1", "9999999", ",".join(map(str, range(1, 99)))):
        with pytest.raises(OptionError, match="--rate"):
            parse_levels(bad, option="--rate")
