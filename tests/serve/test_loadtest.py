"""The load generator: it counts every request, and latency from when each was due."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import pairwise
from time import monotonic, sleep

import numpy as np
import pytest
from protocol_stand_in import StandIn, stand_in

from ridgeline.errors import OptionError
from ridgeline.serve.clients.address import parse_address
from ridgeline.serve.clients.client import Client, ServerError
from ridgeline.serve.clients.wire import request_bytes
from ridgeline.serve.loadtest.connections import Connector
from ridgeline.serve.loadtest.generator import Generator, Shots
from ridgeline.serve.loadtest.levels import parse_levels, schedule
from ridgeline.serve.loadtest.loadtest import Target, highest_rate, run_levels
from ridgeline.serve.loadtest.response import ResponseReader
from ridgeline.serve.loadtest.rows import LevelRow, level_row, server_times
from ridgeline.serve.loadtest.run import LoadSettings
from ridgeline.serve.loadtest.search import search

X = np.ones((1, 3), np.float32)
INFER = "/v2/models/add_one/infer"
MS = 1_000_000  # ns


@contextmanager
def generator(server: StandIn, *, path: str = INFER, connections: int = 64) -> Iterator[Generator]:
    address = parse_address(server.url)
    head = b'{"inputs":[{"name":"x","shape":[1,3],"datatype":"FP32","parameters":{"binary_data_size":12}}]}'
    headers = {"Inference-Header-Content-Length": str(len(head))}
    request = request_bytes(address, path, body=head + X.tobytes(), headers=headers)
    with closing(Generator(Connector(address), [request], connections=connections)) as made:
        yield made


def latencies_ms(shots: Shots) -> list[float]:
    return [(end - due) / MS for due, end in zip(shots.due_ns, shots.ended_ns, strict=True)]


# ---- answers


ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: a\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n"
)
EMPTY = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
LIKE_AN_END = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nab0\r\n\r\nyz\r\n0\r\n\r\n"
GONE_ON = b"HTTP/1.1 100 Continue\r\n\r\n" + ANSWER
NOTHING = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


@pytest.mark.parametrize("answer", [ANSWER, CHUNKED, EMPTY, LIKE_AN_END, GONE_ON, NOTHING])
def test_an_answer_ends_with_its_last_byte(answer: bytes) -> None:
    for size in (1, 2, 3, 7, len(answer)):
        reader = ResponseReader()
        parts = [answer[i : i + size] for i in range(0, len(answer), size)]
        assert [reader.feed(part) for part in parts] == [False] * (len(parts) - 1) + [True]
        assert reader.status == 200
        assert not reader.is_last


def test_an_error_keeps_its_message_and_the_connection_s_end() -> None:
    reader = ResponseReader()
    assert reader.feed(b'HTTP/1.1 503 Full\r\nConnection: close\r\ncontent-length: 14\r\n\r\n{"error": "a"}')
    assert (reader.status, reader.is_last, reader.body) == (503, True, b'{"error": "a"}')


@pytest.mark.parametrize(
    "answer",
    [
        ANSWER + b"!",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a" * 70000,
    ],
)
def test_what_is_no_answer_is_refused(answer: bytes) -> None:
    with pytest.raises(ValueError, match=r"answer|invalid literal"):
        ResponseReader().feed(answer)


# ---- runs


def test_a_closed_loop_keeps_so_many_requests_going() -> None:
    with stand_in(delay_s=0.02, keep_seen=False) as server, generator(server) as made:
        shots = made.closed_loop(4, 0.3)
        assert set(shots.statuses) == {200}
        assert len(shots.statuses) == server.answered
        assert 4 * 8 <= len(shots.statuses) <= 4 * 15
        assert server.connections == 4
        assert min(latencies_ms(shots)) >= 20


def test_an_open_loop_hides_no_queueing() -> None:
    """One request done in 10 ms, one due every 5 ms: each waits longer than the one before it."""
    gate = asyncio.Semaphore(1)
    with stand_in(delay_s=0.01, gate=gate, keep_seen=False) as server, generator(server) as made:
        shots = made.open_loop([i * 5 * MS for i in range(40)])
        times = latencies_ms(shots)
        assert len(times) == server.answered == 40
        assert times[0] < 100
        assert max(times) > 40 * (10 - 5) * 0.9
        closed = latencies_ms(made.closed_loop(1, 0.2))
        assert float(np.median(closed)) < 40  # the same server, asked by one that waits


def test_waiting_for_a_connection_counts_too() -> None:
    with stand_in(delay_s=0.02, keep_seen=False) as server, generator(server, connections=1) as made:
        times = latencies_ms(made.open_loop([0] * 5))
        assert server.connections == 1
        assert max(times) >= 100


def test_requests_are_sent_when_they_are_due() -> None:
    with stand_in(keep_seen=False) as server, generator(server) as made:
        due = [i * 2 * MS for i in range(50)]
        shots = made.open_loop(due)
        assert sorted(shots.due_ns) == due
        assert len(shots.late_ns) == 50
        assert min(shots.late_ns) >= 0


def test_refusals_are_counted_with_their_message() -> None:
    with stand_in(keep_seen=False) as server, generator(server) as made:
        server.replies[INFER] = 503, {}, b'{"error":"queue is full"}'
        row = level_row(5, made.open_loop([0] * 5), rows_per_request=1, server=None)
        assert (row.errors, row.first_error, row.throughput_rps) == ({"503": 5}, "queue is full", 0)
        assert row.percentiles_us == {}
        assert not row.keeps(1e9)


def test_a_lost_connection_loses_one_request() -> None:
    with stand_in(keep_seen=False) as server, generator(server) as made:
        server.replies[INFER] = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"
        row = level_row(3, made.open_loop([0, MS, 2 * MS]), rows_per_request=1, server=None)
        assert row.errors == {"no answer": 3}
        assert "closed the connection" in row.first_error
        del server.replies[INFER]
        assert made.open_loop([0]).statuses == [200]


def test_a_server_may_close_connections_as_it_answers() -> None:
    with stand_in(close_after=2, keep_seen=False) as server, generator(server) as made:
        shots = made.closed_loop(2, 0.2)
        assert set(shots.statuses) == {200}
        assert server.connections >= len(shots.statuses) / 2


def test_connections_that_the_server_closed_are_not_used() -> None:
    with stand_in(close_after=1, closes_unsaid=True, keep_seen=False) as server, generator(server) as made:
        for _ in range(3):
            assert made.open_loop([0]).statuses == [200]
            sleep(0.05)
        assert set(made.open_loop([0, 30 * MS, 60 * MS]).statuses) == {200}


def test_chunked_answers_are_answers() -> None:
    with stand_in(chunked=True, keep_seen=False) as server, generator(server) as made:
        assert made.open_loop([0] * 3).statuses == [200] * 3


def test_a_server_that_does_not_answer_is_given_up() -> None:
    with stand_in(silent=True, keep_seen=False) as server, generator(server, connections=2) as made:
        began = monotonic()
        shots = made.open_loop([0] * 4, patience_s=0.1)
        assert (shots.gave_up, shots.statuses, shots.due_ns) == (True, [0] * 4, [0] * 4)
        assert made.closed_loop(2, 0.05, patience_s=0.1).statuses == [0, 0]
        assert monotonic() - began < 5


def test_no_server_is_no_endless_loop() -> None:
    with closing(Generator(Connector(parse_address("127.0.0.1:1")), [b"x"])) as made:
        began = monotonic()
        shots = made.closed_loop(3, 0.1)
        assert monotonic() - began < 5
        assert set(shots.statuses) == {0}
        assert len(shots.statuses) < 50
        assert "refused" in shots.problem


def test_large_requests_go_out_in_parts() -> None:
    with stand_in(keep_seen=False) as server:
        address = parse_address(server.url)
        server.replies["/large"] = 200, {}, b"y" * 3_000_000
        request = request_bytes(address, "/large", body=b"x" * 8_000_000)
        with closing(Generator(Connector(address), [request])) as made:
            assert made.open_loop([0] * 3).statuses == [200] * 3


# ---- rows


def test_percentiles_are_those_of_the_answers() -> None:
    shots = Shots(due_ns=[0] * 1000, ended_ns=[i * MS for i in range(1, 1001)], statuses=[200] * 1000)
    shots.window_ns = 500 * MS
    row = level_row(7, shots, rows_per_request=4, server=None)
    assert row.percentiles_us == {"50": 500e3, "90": 900e3, "95": 950e3, "99": 990e3, "99.9": 999e3}
    assert row.max_us == 1000e3
    assert row.throughput_rps == 1000  # 500 answers within half a second
    assert row.rows_per_s == 4000
    assert (row.keeps(990e3), row.keeps(989e3)) == (True, False)
    assert not replace(row, errors={"503": 1}).keeps(990e3)
    assert not replace(row, gave_up=True).keeps(990e3)


def test_a_generator_that_was_the_limit_says_so() -> None:
    shots = Shots([0], [100 * MS], [200], window_ns=100 * MS, cpu_ns=95 * MS)
    assert "the generator never rested" in level_row(1, shots, rows_per_request=1, server=None).warnings[0]
    shots = Shots([0], [5 * MS], [200], late_ns=[4 * MS], window_ns=100 * MS)
    assert "sent requests late" in level_row(1, shots, rows_per_request=1, server=None).warnings[0]
    shots.late_ns = [MS // 2]
    assert level_row(1, shots, rows_per_request=1, server=None).warnings == ()


def test_levels_have_the_server_s_own_figures() -> None:
    with stand_in(keep_seen=False) as server, Client(server.url) as client:
        settings = LoadSettings(duration_s=0.1, warmup_s=0.05)
        report = run_levels(client, Target("add_one", "", {"x": X}, {}), [1, 2], settings, is_open=False)
        assert [row.level for row in report.rows] == [1, 2]
        for row in report.rows:
            assert row.server is not None
            assert row.server.requests == row.requests  # the warm-up's are not among them
            assert (row.server.queue_us, row.server.infer_us) == (100, 50)
            assert row.server.rows_per_batch == pytest.approx(2, rel=0.05)
        assert server.answered > sum(row.requests for row in report.rows) + 10  # there was a warm-up
        assert report.rows_per_request == 1
        assert report.request_bytes > 100


def test_a_server_without_statistics_is_measured_as_well() -> None:
    with stand_in(keep_seen=False) as server, Client(server.url) as client:
        server.replies["/v2/models/add_one/stats"] = 404, {}, b'{"error":"Not Found"}'
        settings = LoadSettings(duration_s=0.05, warmup_s=0)
        report = run_levels(client, Target("add_one", "", {"x": X}, {}), [100], settings, is_open=True)
        assert report.rows[0].server is None
        assert report.rows[0].requests > 0


def test_statistics_without_requests_are_none() -> None:
    assert server_times({"model_stats": []}, {"model_stats": []}) is None


def test_a_model_that_refuses_is_an_error_before_anything_is_timed() -> None:
    with stand_in(keep_seen=False) as server, Client(server.url) as client:
        server.replies[INFER] = 400, {}, b'{"error":"bad shape"}'
        with pytest.raises(ServerError, match="bad shape"):
            run_levels(client, Target("add_one", "", {"x": X}, {}), [1], LoadSettings(), is_open=False)


# ---- the search


class Simulated:
    """A server whose p99 is 5 ms up to its capacity, and a second above; some runs are spoilt, or lucky."""

    def __init__(self, capacity: float, spoilt: tuple[int, ...] = (), lucky: tuple[int, ...] = ()) -> None:
        self.capacity, self.spoilt, self.lucky, self.runs = capacity, spoilt, lucky, 0

    def _row(self, level: float, rate: float, p99_us: float) -> LevelRow:
        return LevelRow(
            level, 1, 1, {}, "", rate, rate, 1, {"99": p99_us}, 1, None, 1, 0.1, None, False, ()
        )  # fmt: skip

    def closed(self, concurrency: int) -> LevelRow:
        return self._row(concurrency, self.capacity * 1.3, 5e3)

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


def test_the_search_ends_where_nothing_passes() -> None:
    rows, best = search(Simulated(100.0), 1.0)  # type: ignore[arg-type]
    assert best is None
    assert len(rows) < 30
    assert search(Simulated(0.0), 20e3)[1] is None  # type: ignore[arg-type]


def test_a_real_server_is_searched() -> None:
    """Ten requests at a time, 10 ms each: a thousand in a second at the very most."""
    gate = asyncio.Semaphore(10)
    with stand_in(delay_s=0.01, gate=gate, keep_seen=False) as server, Client(server.url) as client:
        settings = LoadSettings(duration_s=0.01, warmup_s=0, arrivals="constant")
        report = highest_rate(client, Target("add_one", "", {"x": X}, {}), 40e3, settings)
        assert report.duration_s == 0.4  # a queue of 40 ms needs time to grow
        assert report.best_rps is None or report.best_rps < 1200
        assert any(not row.keeps(40e3) for row in report.rows)


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
