"""A listener from its start to its end: limits of connections, clients that leave, drains, TLS."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from http_rig import HOST, Rig, read_all, running

from ridgeline.errors import OptionError
from ridgeline.serve.http import protocol
from ridgeline.serve.http.overdue import Overdue
from ridgeline.serve.http.server import HttpServer, tls_context
from ridgeline.serve.settings import HttpLimits, Tls

X = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.5, -2]}
BODY = json.dumps({"inputs": [X]}).encode()
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
RESET = struct.pack("ii", 1, 0)


def infer(model: str = "echo", body: bytes = BODY) -> bytes:
    return f"POST /v2/models/{model}/infer HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.fixture
def rig() -> Iterator[Rig]:
    with running() as served:
        yield served


@pytest.mark.parametrize("linger", [None, RESET], ids=["close", "reset"])
def test_a_client_that_leaves_cancels_its_request(rig: Rig, linger: bytes | None) -> None:
    with rig.socket() as connection:
        connection.sendall(infer("gate"))
        rig.wait("rig.service.waiting == 1")
        if linger:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    rig.wait("rig.service.cancelled == 1 and rig.service.waiting == 0 and not rig.server.connections")
    rig.check_alive()


def test_a_client_that_leaves_with_a_pipeline_cancels_its_first_request(rig: Rig) -> None:
    with rig.socket() as connection:
        connection.sendall(infer("gate") + LIVE + LIVE)
        rig.wait("rig.service.waiting == 1")
    rig.wait("rig.service.cancelled == 1 and not rig.server.connections")


def test_a_client_that_asks_for_more_and_leaves_cancels_its_request(rig: Rig) -> None:
    with rig.socket() as connection:
        connection.sendall(infer("gate"))
        rig.wait("rig.service.waiting == 1")
        time.sleep(0.05)  # somebody looks by now whether the client is there
        connection.sendall(LIVE)
        time.sleep(0.05)
    rig.wait("rig.service.cancelled == 1 and not rig.server.connections")


def test_one_that_leaves_takes_no_other_with_it(rig: Rig) -> None:
    with rig.socket() as stays, rig.socket() as leaves:
        for connection in (stays, leaves):
            connection.sendall(infer("gate"))
        rig.wait("rig.service.waiting == 2")
        leaves.close()
        rig.wait("rig.service.cancelled == 1")
        rig.loop.call_soon_threadsafe(rig.service.gate.set)
        assert stays.recv(1000).startswith(b"HTTP/1.1 200")


def test_connections_beyond_the_limit_are_told_so() -> None:
    with running(HttpLimits(connections=2)) as rig:
        with rig.socket(), rig.socket() as second:
            rig.wait("rig.server.connections == 2")
            answer = rig.raw(LIVE)
            assert answer.startswith(b"HTTP/1.1 503")
            assert b"\r\nretry-after: 1\r\n" in answer
            assert "connections" in json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
            second.sendall(LIVE)
            assert second.recv(1000).startswith(b"HTTP/1.1 200")
        rig.wait("rig.server.connections == 0")
        rig.check_alive()


def test_connections_beyond_the_limit_have_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "REFUSED_S", 0.05)
    with running(HttpLimits(connections=1)) as rig, rig.socket() as first:
        first.sendall(LIVE)
        assert first.recv(1000).startswith(b"HTTP/1.1 200")
        assert rig.raw(b"GET /v2") == b""
        assert rig.server.connections == 1
        assert not rig.server._state.refused._since


def test_idle_connections_are_closed_in_the_end() -> None:
    with running(HttpLimits(keep_alive_seconds=0.1)) as rig, rig.socket() as connection:
        connection.sendall(LIVE)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        assert connection.recv(1000) == b""


def test_a_reset_leaves_no_timer_behind() -> None:
    with running() as rig:
        with rig.socket() as connection:
            connection.sendall(LIVE)
            connection.recv(1000)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        rig.wait("not rig.server.connections")
        state = rig.server._state
        assert not state.idle._since
        assert not state.heads._since


@pytest.mark.parametrize(
    ("last", "then"),
    [(b"", b""), (b"Connection: close\r\n", b""), (b"", LIVE), (b"", LIVE + LIVE), (b"", b"G")],
    ids=["kept", "last", "another request", "two more", "half a request"],
)
def test_a_client_that_reads_nothing_does_not_hold_its_answer_for_ever(last: bytes, then: bytes) -> None:
    size = 20_000_000
    tensor = {"name": "x", "shape": [size], "datatype": "UINT8", "parameters": {"binary_data_size": size}}
    header = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    head = f"POST /v2/models/echo/infer HTTP/1.1\r\nContent-Length: {len(header) + size}\r\n".encode()
    head += b"Inference-Header-Content-Length: %d\r\n" % len(header) + last + b"\r\n"
    limits = HttpLimits(keep_alive_seconds=0.1, body_seconds=0.5)
    with running(limits) as rig, rig.socket() as connection:
        connection.sendall(head + header + bytes(size))
        rig.wait("rig.service.released == 1")
        connection.sendall(then)
        rig.wait("not rig.server.connections")


def test_a_slow_reader_gets_it_all() -> None:
    size = 10_000_000
    tensor = {"name": "x", "shape": [size], "datatype": "UINT8", "parameters": {"binary_data_size": size}}
    header = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    head = f"POST /v2/models/echo/infer HTTP/1.1\r\nContent-Length: {len(header) + size}\r\n".encode()
    head += b"Inference-Header-Content-Length: %d\r\n\r\n" % len(header)
    with running(HttpLimits(keep_alive_seconds=0.3)) as rig, rig.socket() as connection:
        connection.sendall(head + header + bytes(size))
        got = 0
        while part := connection.recv(500_000):
            got += len(part)
            if got < size:
                time.sleep(0.02)
        assert got > size


def test_a_drain_answers_with_the_end_of_each_connection(rig: Rig) -> None:
    with rig.socket() as busy, rig.socket() as idle:
        idle.sendall(LIVE)
        assert b"connection: close" not in idle.recv(1000)
        busy.sendall(infer("gate"))
        rig.wait("rig.service.waiting == 1")
        rig.loop.call_soon_threadsafe(rig.server.drain)
        idle.sendall(LIVE)
        assert b"connection: close" in read_all(idle)
        # new connections are still taken, and probes answered
        assert b"connection: close" in rig.raw(LIVE)
        rig.loop.call_soon_threadsafe(rig.service.gate.set)
        answer = read_all(busy)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in answer


def test_a_stop_waits_for_what_is_under_way(rig: Rig) -> None:
    with rig.socket() as connection:
        connection.sendall(infer("gate"))
        rig.wait("rig.service.waiting == 1")
        stopping = asyncio.run_coroutine_threadsafe(rig.server.stop(10), rig.loop)
        rig.wait("rig.server._state.is_draining")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, rig.port), timeout=5)
        rig.loop.call_soon_threadsafe(rig.service.gate.set)
        assert read_all(connection).startswith(b"HTTP/1.1 200")
        stopping.result(5)


def test_a_stop_tells_those_who_wait_too_long(rig: Rig) -> None:
    with rig.socket() as connection, rig.socket() as idle:
        idle.sendall(LIVE[:10])
        connection.sendall(infer("gate"))
        rig.wait("rig.service.waiting == 1")
        rig.run(rig.server.stop(0.05))
        answer = read_all(connection)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"stopping" in answer
        assert read_all(idle) == b""
    assert rig.service.cancelled == 1


def test_connections_in_the_systems_queue_are_served_at_a_stop(rig: Rig) -> None:
    is_blocked, go_on = threading.Event(), threading.Event()

    def block() -> None:
        is_blocked.set()
        go_on.wait(5)

    rig.loop.call_soon_threadsafe(block)
    is_blocked.wait(5)
    clients = [socket.create_connection((HOST, rig.port), timeout=5) for _ in range(20)]
    for client in clients:
        client.sendall(LIVE)
    stopping = asyncio.run_coroutine_threadsafe(rig.server.stop(5), rig.loop)
    go_on.set()
    for client in clients:
        assert read_all(client).startswith(b"HTTP/1.1 200")
        client.close()
    stopping.result(5)


def hammer(rig: Rig, counts: list[int]) -> None:
    """Requests one after the other until connections are refused; counts those answered and those lost."""
    connection: socket.socket | None = None
    while True:
        if connection is None:
            try:
                connection = socket.create_connection((HOST, rig.port), timeout=5)
            except ConnectionRefusedError:
                return
        answer = b""
        with suppress(ConnectionError):
            connection.sendall(infer())
            while not answer.endswith(b"]}]}") and (part := connection.recv(10_000)):
                answer += part
        is_whole = answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"]}]}")
        counts[0 if is_whole else 1] += 1
        if b"connection: close" in answer or not is_whole:
            connection.close()
            connection = None


def test_stops_under_load_lose_nothing() -> None:
    answered = 0
    for _ in range(5):
        with running() as rig:
            counts = [[0, 0] for _ in range(4)]
            threads = [threading.Thread(target=hammer, args=(rig, each)) for each in counts]
            for thread in threads:
                thread.start()
            time.sleep(0.1)
            rig.run(rig.server.stop(5))
            for thread in threads:
                thread.join(5)
        answered += sum(good for good, _ in counts)
        assert [lost for _, lost in counts] == [0] * 4
    assert answered > 100


def test_a_port_that_is_taken_is_an_error_with_a_cure(rig: Rig) -> None:
    with pytest.raises(OptionError, match=str(rig.port)):
        rig.run(HttpServer(rig.app, rig.settings, HOST, rig.port).start())
    with pytest.raises(OptionError, match="no address"):
        rig.run(HttpServer(rig.app, rig.settings, "a..b", 0).start())


def test_listeners_share_a_port_if_they_are_asked_to(rig: Rig) -> None:
    first, second = (HttpServer(rig.app, rig.settings, HOST, 0, reuse_port=True) for _ in range(2))
    port = rig.run(first.start())
    second._port = port
    assert rig.run(second.start()) == port
    rig.run(first.stop(0))
    with socket.create_connection((HOST, port), timeout=5) as connection:
        connection.sendall(LIVE)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    rig.run(second.stop(0))


def test_what_is_overdue_is_acted_on_once() -> None:
    acted: list[str] = []

    async def wait() -> None:
        overdue = Overdue[str](0.02, acted.append)
        overdue.add("left")
        overdue.add("over")
        overdue.discard("left")
        await asyncio.sleep(0.08)
        overdue.add("later")
        assert "later" in overdue
        await asyncio.sleep(0.08)
        assert overdue._timer is None, "no timer without anything to wait for"

    asyncio.run(wait())
    assert acted == ["over", "later"]


def test_what_is_overdue_is_looked_for_after_an_error_too() -> None:
    acted: list[str] = []

    def act(each: str) -> None:
        acted.append(each)
        if each == "broken":
            raise ZeroDivisionError

    async def wait() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        overdue = Overdue[str](0.01, act)
        overdue.add("broken")
        overdue.add("next")
        await asyncio.sleep(0.06)

    asyncio.run(wait())
    assert acted == ["broken", "next"]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificates")
    folder = tmp_path_factory.mktemp("https")
    new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    new += " -addext subjectAltName=IP:127.0.0.1"
    for name in ("server", "client"):
        command = [
            "openssl",
            *new.split(),
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.pem",
            "-subj",
            f"/CN={name}",
        ]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("has_client_ca", [False, True])
def test_tls(certificates: Path, has_client_ca: bool) -> None:
    client_ca = certificates / "client.pem" if has_client_ca else None
    settings = Tls(certificates / "server.pem", certificates / "server.key", client_ca)

    def ask(context: ssl.SSLContext) -> bytes:
        with rig.socket() as plain, context.wrap_socket(plain, server_hostname=HOST) as connection:
            connection.sendall(LIVE)
            return connection.recv(1000)

    with running(ssl_context=tls_context(settings)) as rig:
        trusting = ssl.create_default_context(cafile=certificates / "server.pem")
        if has_client_ca:
            # in TLS 1.3 a client learns of it when it reads: as an error, or as the end
            with suppress(ssl.SSLError, ConnectionError):
                assert ask(trusting) == b""
            trusting.load_cert_chain(certificates / "client.pem", certificates / "client.key")
        assert ask(trusting).startswith(b"HTTP/1.1 200")
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(ssl.create_default_context())
        assert not rig.raw(LIVE).startswith(b"HTTP"), "nothing is answered in the clear"


def test_certificates_that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="certificates"):
        tls_context(Tls(tmp_path / "no.pem", tmp_path / "no.key"))
