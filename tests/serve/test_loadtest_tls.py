"""The load generator over TLS: session tickets are no answers, and no end of a connection."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import sleep

import pytest
from protocol_stand_in import StandIn

from ridgeline.serve.clients.address import Address
from ridgeline.serve.clients.wire import request_bytes
from ridgeline.serve.loadtest.connections import Connector
from ridgeline.serve.loadtest.generator import Generator

SUBJECT = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-days", "2", "-keyout", "key.pem", "-out", "cert.pem", *SUBJECT]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "cert.pem"


@contextmanager
def tls_stand_in(certificate: Path) -> Iterator[StandIn]:
    """The stand-in of the other tests, with a certificate."""
    server, ready, ended, loop = StandIn(), threading.Event(), asyncio.Event(), asyncio.new_event_loop()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))

    async def run() -> None:
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=context)
        server.port = listening.sockets[0].getsockname()[1]
        ready.set()
        async with listening:
            await ended.wait()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    ready.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)
        loop.close()


def test_idle_connections_are_used_although_tickets_came_on_them(certificate: Path) -> None:
    with tls_stand_in(certificate) as server:
        address = Address("127.0.0.1", server.port, tls=True)
        request = request_bytes(address, "/v2/health/live", method="GET")
        with closing(Generator(Connector(address, certificate), [request])) as made:
            made.open_connections(5)
            sleep(0.05)
            assert made.open_loop([0] * 5).statuses == [200] * 5
            assert set(made.closed_loop(5, 0.05).statuses) == {200}
        assert server.connections == 5
