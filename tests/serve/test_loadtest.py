"""The load generator: it counts every request, and latency from when each was due."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from threading import Timer
from time import monotonic, sleep

import numpy as np
import pytest
from protocol_stand_in import StandIn, stand_in

from ridgeline.errors import OptionError
from ridgeline.serve.clients.address import parse_address
from ridgeline.serve.clients.client import Client, ServerError
from ridgeline.serve.clients.wire import request_bytes
from ridgeline.serve.loadtest import connections
from ridgeline.serve.loadtest.connections import Connection, Connector
from ridgeline.serve.loadtest.generator import Generator, Shots
from ridgeline.serve.loadtest.loadtest import Target, highest_rate, run_levels
from ridgeline.serve.loadtest.rows import level_row, server_times
from ridgeline.serve.loadtest.run import LoadSettings

X = np.ones((1, 3), np.float32)
INFER = "/v2/models/add_one/infer"
MS = 1_000_000  # ns


@contextmanager
def generator(
    server: StandIn, *, path: str = INFER, connections: int = 64, connector: type[Connector] = Connector
) -> Iterator[Generator]:
    address = parse_address(server.url)
    head = b'{"inputs":[{"name":"x","shape":[1,3],"datatype":"FP32","parameters":{"binary_data_size":12}}]}'
    headers = {"Inference-Header-Content-Length": str(len(head))}
    request = request_bytes(address, path, body=head + X.tobytes(), headers=headers)
    with closing(Generator(connector(address), [request], connections=connections)) as made:
        yield made


def latencies_ms(shots: Shots) -> list[float]:
    return [(end - due) / MS for due, end in zip(shots.due_ns, shots.ended_ns, strict=True)]


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


def test_an_open_loop_without_a_server_ends_with_its_schedule() -> None:
    with closing(Generator(Connector(parse_address("127.0.0.1:1")), [b"x"])) as made:
        began = monotonic()
        assert made.open_loop([0, MS, 2 * MS]).statuses == [0] * 3
        assert monotonic() - began < 5  # and not after 30 s


class ThreeFiles(Connector):
    """The process may not open a fourth."""

    left = 3

    def open(self) -> Connection:
        if not self.left:
            raise OSError(errno.EMFILE, "Too many open files")
        self.left -= 1
        return super().open()


def test_clients_with_a_connection_go_on_when_there_is_none_for_others() -> None:
    with (
        stand_in(delay_s=0.01, keep_seen=False) as server,
        generator(server, connector=ThreeFiles) as made,
    ):
        shots = made.closed_loop(5, 0.3)
        answered, lost = shots.statuses.count(200), shots.statuses.count(0)
        assert answered > 30
        assert 1 <= lost <= 0.3 / 0.005 + 1  # an attempt every 5 ms
        assert "Too many open files" in shots.problem
        assert made.open_loop([0] * 6).statuses.count(200) == 3


def test_a_server_that_ends_costs_few_requests() -> None:
    with ExitStack() as running:
        server = running.enter_context(stand_in(delay_s=0.002, keep_seen=False))
        with generator(server) as made:
            ending = Timer(0.1, running.close)
            ending.start()
            shots = made.closed_loop(4, 0.3)
            ending.join()
    assert shots.statuses.count(200) > 10
    assert 4 <= shots.statuses.count(0) <= 4 + 0.3 / 0.005 + 1


def test_a_client_asks_again_when_its_answer_is_overdue() -> None:
    with stand_in(silent=True, keep_seen=False) as server, generator(server) as made:
        shots = made.closed_loop(1, 0.2, patience_s=0.04)
        assert set(shots.statuses) == {0}
        assert 3 <= len(shots.statuses) <= 6
        assert all(each >= 40 for each in latencies_ms(shots))


def test_an_answer_that_is_held_back_does_not_lower_the_throughput(monkeypatch: pytest.MonkeyPatch) -> None:
    held = iter([*[False] * 10, True, *[False] * 9])

    async def work() -> None:
        await asyncio.sleep(0.5 if next(held) else 0)

    with stand_in(keep_seen=False) as server, generator(server) as made:
        monkeypatch.setattr(server, "_work", work)
        shots = made.open_loop([i * 10 * MS for i in range(20)], seconds=0.2)
        row = level_row(100, shots, rows_per_request=1, server=None)
        assert (row.requests, row.seconds) == (20, 0.2)
        assert 75 <= row.throughput_rps <= 95
        assert row.max_us is not None
        assert row.max_us >= 500e3


def test_a_request_is_not_late_because_the_one_before_it_took_time(monkeypatch: pytest.MonkeyPatch) -> None:
    send = Connection.send

    def slow(connection: Connection, request: bytes) -> None:
        send(connection, request)
        sleep(0.02)

    monkeypatch.setattr(Connection, "send", slow)
    with stand_in(delay_s=0.1, keep_seen=False) as server, generator(server) as made:
        made.open_connections(2)
        assert made.open_loop([0, 40 * MS]).late_ns[1] < 10 * MS


def test_more_connections_than_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections.resource, "getrlimit", lambda kind: (100, 100))
    target = Target("add_one", "", {"x": X}, {})
    with stand_in(keep_seen=False) as server, Client(server.url) as client:
        with pytest.raises(
            OptionError, match=r"(?s)--concurrency.*got   64.*want  at most 36.*ulimit -n 128"
        ):
            run_levels(client, target, [1, 64], LoadSettings(), is_open=False)
        for run in (
            lambda settings: run_levels(client, target, [1], settings, is_open=True),
            lambda settings: highest_rate(client, target, 1e3, settings),
        ):
            with pytest.raises(OptionError, match="--connections"):
                run(LoadSettings(connections=37))
        assert server.connections == 0


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


@pytest.mark.parametrize(
    "reply",
    [
        (404, {}, b'{"error":"Not Found"}'),
        (200, {}, b"[1]"),
        (200, {}, b'{"model_stats": 5}'),
        (200, {}, b'{"model_stats": [{"name": "add_one"}]}'),
        (200, {}, b'{"model_stats": [{"inference_stats": {}, "inference_count": Infinity}]}'),
    ],
)
def test_a_server_without_statistics_is_measured_as_well(reply: tuple[int, dict[str, str], bytes]) -> None:
    with stand_in(keep_seen=False) as server, Client(server.url) as client:
        server.replies["/v2/models/add_one/stats"] = reply
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
