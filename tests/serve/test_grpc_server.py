"""Inference over real gRPC connections: answers, refusals, cancellation, keys, limits, the end."""

from __future__ import annotations

import logging
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import grpc
import pytest
from grpc import StatusCode
from grpc_echo import Running, refused, request, running

from ridgeline.errors import OptionError
from ridgeline.serve.errors import Kind, RequestError
from ridgeline.serve.protocol import messages
from ridgeline.serve.settings import HttpLimits, Settings

SETTINGS = Settings((), grpc_port=0, limits=HttpLimits(body_bytes=2**20))


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(SETTINGS) as server:
        yield server


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 5
    while not holds():
        assert time.monotonic() < end, "it did not happen within 5 s"
        time.sleep(0.005)


def tensor_request(datatype: str, shape: tuple[int, ...], raw: bytes, model: str = "echo") -> Any:
    made = messages.ModelInferRequest(model_name=model, raw_input_contents=[raw])
    made.inputs.add(name="x", datatype=datatype, shape=shape)
    return made


def test_an_answer_has_the_bits_of_the_input(server: Running) -> None:
    signalling = struct.pack("<I", 0x7F800001)
    floats = struct.pack("<4f", float("nan"), float("inf"), float("-inf"), -0.0) + signalling
    for datatype, shape, raw in (
        ("FP32", (5,), floats),
        ("BF16", (2, 1), b"\x01\x7f\xc1\xff"),
        ("BYTES", (2,), b"\0\0\0\0\2\0\0\0\xff\0"),
        ("FP64", (0, 3), b""),
        ("BOOL", (), b"\1"),
    ):
        got = server.infer(tensor_request(datatype, shape, raw))
        assert [(each.datatype, tuple(each.shape)) for each in got.outputs] == [(datatype, shape)]
        assert list(got.raw_output_contents) == [raw]


def test_outputs_come_in_order_with_id_version_and_parameters(server: Running) -> None:
    made = request(id="req 1")
    made.inputs.add(name="z", datatype="UINT8", shape=[1])
    made.raw_input_contents.append(b"\7")
    made.parameters["mode"].string_param = "fast"
    trace = f"00-{'ab' * 16}-{'cd' * 8}-01"
    got = server.infer(made, metadata=[("traceparent", trace), ("x-bin", b"\0")])
    assert (got.model_name, got.model_version, got.id) == ("echo", "7", "req 1")
    assert [each.name for each in got.outputs] == ["x", "z"]
    assert list(got.raw_output_contents) == [b"\1\2", b"\7"]
    assert got.parameters["mode"].string_param == "fast"
    assert server.echo.seen[-1].trace == trace
    made.outputs.add(name="z")
    assert list(server.infer(made).raw_output_contents) == [b"\7"]


@pytest.mark.parametrize(
    "given", ["", "x", "00-ab-cd-01", f"00-{'0' * 32}-{'cd' * 8}-01", f"00-{'AB' * 16}-{'cd' * 8}-01"]
)
def test_a_traceparent_that_is_none_is_left_out(server: Running, given: str) -> None:
    server.infer(request(), metadata=[("traceparent", given)])
    assert server.echo.seen[-1].trace == ""


def test_memory_of_an_answer_is_given_back(server: Running) -> None:
    before = server.echo.released
    server.infer(request())
    assert server.echo.released == before + 1


def test_a_large_tensor_passes(server: Running) -> None:
    raw = bytes(range(256)) * 2048
    assert server.infer(tensor_request("UINT8", (len(raw),), raw)).raw_output_contents[0] == raw


@pytest.mark.parametrize("kind", Kind)
def test_each_kind_of_refusal_has_its_status(server: Running, kind: Kind) -> None:
    status, details = refused(lambda: server.infer(request(kind.word)))
    assert status is StatusCode[kind.grpc_status]
    # long texts are cut, where a character ends
    assert details == "x" + "è" * 999


def test_bad_requests_are_refused_before_the_model(server: Running) -> None:
    before = len(server.echo.seen)
    assert refused(lambda: server.infer(b"\xff"))[0] is StatusCode.INVALID_ARGUMENT
    assert refused(lambda: server.infer(tensor_request("INT8", (3,), b"\1"))) == (
        StatusCode.INVALID_ARGUMENT,
        "unexpected size for input 'x': 1 bytes, its shape and type need 3",
    )
    sequence = request()
    sequence.parameters["sequence_id"].int64_param = 1
    assert refused(lambda: server.infer(sequence))[0] is StatusCode.UNIMPLEMENTED
    assert len(server.echo.seen) == before
    server.infer(request())


def test_an_unexpected_error_tells_the_log_and_not_the_client(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "ridgeline"):
        assert refused(lambda: server.infer(request("broken"))) == (StatusCode.INTERNAL, "internal error")
    assert "a secret path" in caplog.text
    server.infer(request())


def test_a_cancelled_batch_is_an_answer_not_a_hang(server: Running) -> None:
    assert refused(lambda: server.infer(request("lost"))) == (
        StatusCode.CANCELLED,
        "the request was cancelled",
    )


def test_a_message_beyond_the_limit_is_refused(server: Running) -> None:
    raw = bytes(3 * 2**20)
    assert refused(lambda: server.infer(tensor_request("UINT8", (len(raw),), raw)))[0] is (
        StatusCode.RESOURCE_EXHAUSTED
    )


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_messages_are_taken_and_bombs_are_not(
    server: Running, compression: grpc.Compression
) -> None:
    raw = bytes(2**19)
    got = server.infer(tensor_request("UINT8", (len(raw),), raw), compression=compression)
    assert got.raw_output_contents[0] == raw
    bomb = bytes(2**24)
    status, details = refused(
        lambda: server.infer(tensor_request("UINT8", (len(bomb),), bomb), compression=compression)
    )
    assert status is StatusCode.RESOURCE_EXHAUSTED
    assert "1048576 bytes" in details


def test_a_client_that_cancels_frees_its_request(server: Running) -> None:
    before = server.echo.cancelled
    call = server.method("ModelInfer").future(request("hold", id="c").SerializeToString())
    until(lambda: server.echo.running == 1)
    call.cancel()
    until(lambda: server.echo.cancelled == before + 1)
    assert server.echo.running == 0


def test_a_deadline_of_the_client_frees_its_request(server: Running) -> None:
    before = server.echo.cancelled
    call = server.method("ModelInfer")
    held = request("hold", id="d").SerializeToString()
    assert refused(lambda: call(held, timeout=0.05))[0] is StatusCode.DEADLINE_EXCEEDED
    until(lambda: server.echo.cancelled == before + 1)


def test_a_client_that_vanishes_frees_its_request(server: Running) -> None:
    before = server.echo.cancelled
    with grpc.insecure_channel(
        f"127.0.0.1:{server.port}", options=[("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        call = channel.unary_unary(f"/{messages.SERVICE}/ModelInfer")
        waiting = call.future(request("hold", id="v").SerializeToString())
        until(lambda: server.echo.running == 1)
    until(lambda: server.echo.cancelled == before + 1)
    assert waiting.code() is StatusCode.CANCELLED


def test_calls_run_at_the_same_time(server: Running) -> None:
    count = 200
    calls = [
        server.method("ModelInfer").future(request("hold", id=f"m{at}").SerializeToString())
        for at in range(count)
    ]
    until(lambda: server.echo.running == count)
    for at in reversed(range(count)):
        server.soon(server.echo.let_go, f"m{at}")
    ids = [messages.ModelInferResponse.FromString(call.result(timeout=5)).id for call in calls]
    assert ids == [f"m{at}" for at in range(count)]


def test_many_clients_get_their_own_answers(server: Running) -> None:
    def infer(at: int) -> bytes:
        raw = struct.pack("<q", at)
        return bytes(server.infer(tensor_request("INT64", (1,), raw)).raw_output_contents[0])

    with ThreadPoolExecutor(64) as threads:
        assert list(threads.map(infer, range(256))) == [struct.pack("<q", at) for at in range(256)]


def test_calls_of_other_services_are_not_found(server: Running) -> None:
    for name in ("SystemSharedMemoryStatus", "CudaSharedMemoryRegister", "NoSuchCall"):
        assert refused(lambda name=name: server.method(name)(b""))[0] is StatusCode.UNIMPLEMENTED
    assert refused(lambda: server.ask("TraceSetting"))[0] is StatusCode.UNIMPLEMENTED


def test_a_port_that_is_taken_is_an_error_with_a_cure() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(OptionError, match=rf"gRPC cannot listen on 127\.0\.0\.1:{port}"),
            running(replace(SETTINGS, grpc_port=port)),
        ):
            pass


def test_front_ends_may_share_a_port() -> None:
    with running(SETTINGS, reuse_port=True) as one:
        shared = replace(SETTINGS, grpc_port=one.port)
        with running(shared, reuse_port=True) as other:
            assert other.port == one.port
        with pytest.raises(OptionError, match="cannot listen"), running(shared):
            pass


def test_an_address_of_ipv6() -> None:
    if not socket.has_ipv6:
        pytest.skip("this Python has no IPv6")
    with socket.socket(socket.AF_INET6) as tried:
        try:
            tried.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no ::1")
    with running(replace(SETTINGS, host="::1")) as server:
        assert server.ask("ServerLive").live


def test_calls_at_a_time_are_bounded() -> None:
    few = replace(SETTINGS, limits=HttpLimits(connections=2))
    with running(few) as server:
        held = [
            server.method("ModelInfer").future(request("hold", id=name).SerializeToString()) for name in "ab"
        ]
        until(lambda: server.echo.running == 2)
        status, details = refused(lambda: server.infer(request()))
        assert status is StatusCode.UNAVAILABLE
        assert "as many calls under way as it may" in details
        assert server.ask("ServerLive").live
        for call, name in zip(held, "ab", strict=True):
            server.soon(server.echo.let_go, name)
            call.result(timeout=5)
        server.infer(request())


def check(metadata: Mapping[str, str], verb: str) -> None:
    assert all(isinstance(value, str) for value in metadata.values())
    if verb in ("live", "ready"):
        return
    key = metadata.get("authorization") or metadata.get("x-api-key")
    if key == "broken":
        raise KeyError("a secret path")
    if key is None:
        raise RequestError(Kind.UNAUTHENTICATED, "a key is needed")
    if key != f"key of {verb}":
        raise RequestError(Kind.FORBIDDEN, "not with this key")


def test_every_call_but_probes_is_checked() -> None:
    with running(SETTINGS, check) as server:
        server.infer(request(), metadata=[("x-api-key", "key of infer")])
        server.infer(request(), metadata=[("authorization", "key of infer"), ("x-bin", b"\xff")])
        assert refused(lambda: server.infer(request())) == (StatusCode.UNAUTHENTICATED, "a key is needed")
        stream = server.channel.stream_stream(f"/{messages.SERVICE}/ModelStreamInfer")
        assert refused(lambda: list(stream(iter([request().SerializeToString()]))))[0] is (
            StatusCode.UNAUTHENTICATED
        )
        other = [("x-api-key", "key of infer")]
        for name in ("RepositoryModelLoad", "ModelMetadata", "ServerMetadata", "ModelStatistics"):
            assert refused(lambda name=name: server.ask(name))[0] is StatusCode.UNAUTHENTICATED
            call = lambda name=name: server.ask(name, metadata=other)  # noqa: E731
            assert refused(call)[0] is StatusCode.PERMISSION_DENIED
        assert server.ask("ServerLive").live
        assert server.ask("ServerReady").ready
        assert [verb for verb, _ in server.echo.asked] == ["live", "ready"]
        broken = [("x-api-key", "broken")]
        assert refused(lambda: server.infer(request(), metadata=broken)) == (
            StatusCode.INTERNAL,
            "internal error",
        )


def test_stop_ends_what_is_under_way_and_refuses_the_rest() -> None:
    with running(SETTINGS) as server:
        held = server.method("ModelInfer").future(request("hold", id="s").SerializeToString())
        until(lambda: server.echo.running == 1)
        with ThreadPoolExecutor(1) as threads:
            stopping = threads.submit(server.on_loop, server.server.stop(10))
            until(lambda: refused_now(server))
            stopped = (StatusCode.UNAVAILABLE, "the server is stopping")
            assert [refused(lambda: server.infer(request())) for _ in range(20)] == [stopped] * 20
            assert refused(lambda: server.ask("RepositoryIndex")) == stopped
            stream = server.channel.stream_stream(f"/{messages.SERVICE}/ModelStreamInfer")
            assert refused(lambda: list(stream(iter(())))) == stopped
            assert server.ask("ServerLive").live
            assert not stopping.done()
            server.soon(server.echo.let_go, "s")
            assert messages.ModelInferResponse.FromString(held.result(timeout=5)).id == "s"
            stopping.result(5)
        assert server.echo.cancelled == 0


def refused_now(server: Running) -> bool:
    try:
        server.infer(request())
    except grpc.RpcError as error:
        return error.code() is StatusCode.UNAVAILABLE
    return False


def test_stop_loses_no_call_of_clients_that_go_on_calling() -> None:
    with running(SETTINGS) as server:

        def call_until_refused(_: int) -> tuple[int, Any]:
            for count in range(100_000):
                try:
                    server.infer(request())
                except grpc.RpcError as error:
                    return count, (error.code(), error.details())
            raise AssertionError("never refused")

        with ThreadPoolExecutor(4) as threads:
            calls = threads.map(call_until_refused, range(4))
            until(lambda: len(server.echo.seen) > 20)
            server.on_loop(server.server.stop(5))
            answered, refusals = zip(*calls, strict=True)
        assert set(refusals) == {(StatusCode.UNAVAILABLE, "the server is stopping")}
        assert sum(answered) == len(server.echo.seen)


def test_a_large_answer_is_sent_whole_before_the_end() -> None:
    with running() as server:
        raw = bytes(2**25)
        body = tensor_request("UINT8", (len(raw),), raw, model="hold")
        held = server.method("ModelInfer").future(body.SerializeToString())
        until(lambda: server.echo.running == 1)
        with ThreadPoolExecutor(1) as threads:
            stopping = threads.submit(server.on_loop, server.server.stop(10))
            server.soon(server.echo.let_go, "")
            stopping.result(5)
            assert len(held.result(timeout=5)) > len(raw)


def test_a_later_stop_shortens_the_grace() -> None:
    with running(SETTINGS) as server:
        held = server.method("ModelInfer").future(request("hold", id="s").SerializeToString())
        until(lambda: server.echo.running == 1)
        with ThreadPoolExecutor(1) as threads:
            stopping = threads.submit(server.on_loop, server.server.stop(10))
            server.on_loop(server.server.stop(0))
            stopping.result(3)
        assert held.code() in (StatusCode.UNAVAILABLE, StatusCode.CANCELLED)


def test_stop_cancels_what_takes_longer_than_its_grace() -> None:
    with running(SETTINGS) as server:
        held = server.method("ModelInfer").future(request("hold", id="s").SerializeToString())
        until(lambda: server.echo.running == 1)
        began = time.monotonic()
        server.on_loop(server.server.stop(0.1))
        assert time.monotonic() - began < 3
        assert held.code() in (StatusCode.UNAVAILABLE, StatusCode.CANCELLED)
        assert server.echo.cancelled == 1
