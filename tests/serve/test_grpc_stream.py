"""ModelStreamInfer: one answer for each request, in the order of the requests."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from grpc import StatusCode
from grpc_echo import Running, refused, request, running

from ridgeline.serve.grpc.stream import DEPTH
from ridgeline.serve.protocol import messages


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as server:
        yield server


class Stream:
    """A stream of which the test sends and reads by hand."""

    def __init__(self, server: Running) -> None:
        self._sent: queue.Queue[bytes | None] = queue.Queue()
        call = server.channel.stream_stream(f"/{messages.SERVICE}/ModelStreamInfer")
        self.call = call(iter(self._sent.get, None), timeout=10)

    def send(self, made: Any) -> None:
        self._sent.put(made if isinstance(made, bytes) else made.SerializeToString())

    def close(self) -> None:
        self._sent.put(None)

    def read(self) -> Any:
        return messages.ModelStreamInferResponse.FromString(next(self.call))

    def rest(self) -> list[Any]:
        return [messages.ModelStreamInferResponse.FromString(each) for each in self.call]


def until_running(server: Running, count: int) -> None:
    end = time.monotonic() + 5
    while server.echo.running != count:
        assert time.monotonic() < end, f"{server.echo.running} requests run, not {count}"
        time.sleep(0.005)


def test_requests_overlap_and_answers_keep_their_order(server: Running) -> None:
    stream = Stream(server)
    for at in range(5):
        stream.send(request("hold", id=f"o{at}"))
    until_running(server, 5)
    for at in (4, 2, 3, 1, 0):
        server.soon(server.echo.let_go, f"o{at}")
    assert [stream.read().infer_response.id for _ in range(5)] == [f"o{at}" for at in range(5)]
    stream.send(request(id="later"))
    got = stream.read().infer_response
    assert (got.id, list(got.raw_output_contents)) == ("later", [b"\1\2"])
    stream.close()
    assert stream.rest() == []
    assert stream.call.code() is StatusCode.OK


def test_errors_are_messages_and_the_stream_goes_on(server: Running) -> None:
    stream = Stream(server)
    sequence = request(id="q")
    sequence.parameters["sequence_id"].int64_param = 3
    for made in (
        request("full", id="f"),
        b"\xff",
        request("broken"),
        sequence,
        request("lost"),
        request(id="ok"),
    ):
        stream.send(made)
    stream.close()
    got = stream.rest()
    assert [each.error_message for each in got] == [
        "the queue is full",
        "the message is no ModelInferRequest",
        "internal error",
        "sequences of requests are not served: send requests without sequence_id",
        "the request was cancelled",
        "",
    ]
    assert got[0].infer_response.id == "f"
    assert got[-1].infer_response.id == "ok"
    assert stream.call.code() is StatusCode.OK


def test_triton_clients_may_ask_for_an_empty_final_answer(server: Running) -> None:
    made = request(id="e")
    made.parameters["triton_enable_empty_final_response"].bool_param = True
    stream = Stream(server)
    stream.send(made)
    stream.close()
    assert [each.infer_response.id for each in stream.rest()] == ["e"]


def test_a_stream_holds_no_more_than_its_depth(server: Running) -> None:
    stream = Stream(server)
    for at in range(DEPTH + 40):
        stream.send(request("hold", id=f"d{at}"))
    until_running(server, DEPTH)
    time.sleep(0.1)
    assert server.echo.running == DEPTH
    for at in range(DEPTH + 40):
        server.soon(server.echo.let_go, f"d{at}")
    stream.close()
    assert [each.infer_response.id for each in stream.rest()] == [f"d{at}" for at in range(DEPTH + 40)]


@pytest.mark.parametrize("count", [3, DEPTH + 10])
def test_a_client_that_goes_frees_all_its_requests(server: Running, count: int) -> None:
    before = server.echo.cancelled
    stream = Stream(server)
    for at in range(count):
        stream.send(request("hold", id=f"g{count}-{at}"))
    held = min(count, DEPTH)
    until_running(server, held)
    stream.call.cancel()
    until_running(server, 0)
    assert server.echo.cancelled == before + held
    stream.close()


def test_stop_answers_what_was_read_and_ends_the_stream() -> None:
    with running() as server:
        stream, idle = Stream(server), Stream(server)
        stream.send(request("hold", id="s"))
        idle.send(request(id="i"))
        assert idle.read().infer_response.id == "i"
        until_running(server, 1)
        with ThreadPoolExecutor(1) as threads:
            began = time.monotonic()
            stopping = threads.submit(server.on_loop, server.server.stop(8))
            assert refused(idle.rest) == (StatusCode.UNAVAILABLE, "the server is stopping")
            server.soon(server.echo.let_go, "s")
            assert stream.read().infer_response.id == "s"
            assert refused(stream.rest) == (StatusCode.UNAVAILABLE, "the server is stopping")
            stopping.result(5)
            assert time.monotonic() - began < 5
        stream.close()
        idle.close()


def test_stop_answers_all_that_was_read_of_a_full_stream() -> None:
    with running() as server:
        stream = Stream(server)
        ids = [f"f{at}" for at in range(DEPTH + 2)]
        for each in ids:
            stream.send(request("hold", id=each))
        until_running(server, DEPTH)
        time.sleep(0.05)  # as much is read as may be
        with ThreadPoolExecutor(1) as threads:
            stopping = threads.submit(server.on_loop, server.server.stop(8))
            while not server.server._is_stopping:
                time.sleep(0.005)
            for each in ids:
                server.soon(server.echo.let_go, each)
            read = len(server.echo.seen)
            assert [stream.read().infer_response.id for _ in range(read)] == ids[:read]
            assert refused(stream.rest) == (StatusCode.UNAVAILABLE, "the server is stopping")
            stopping.result(5)
        assert len(server.echo.seen) == read
        stream.close()
