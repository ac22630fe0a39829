"""A server over real sockets of the loopback, on a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import uvloop
from echo_service import EchoService

from ridgeline.serve.access import Access
from ridgeline.serve.http.app import HttpApp
from ridgeline.serve.http.server import HttpServer
from ridgeline.serve.settings import HttpLimits, Keys, Settings

LIMIT_S = 10
HOST = "127.0.0.1"


class Rig:
    """`ask` for whole requests, `raw` for bytes as they are."""

    def __init__(self, settings: Settings, ssl_context: ssl.SSLContext | None = None, **flags: bool) -> None:
        self.settings = settings
        self.loop = uvloop.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="rig")
        self.thread.start()
        self.service = EchoService()
        self.app = HttpApp(self.service, settings, Access(settings.keys), **flags)
        self.server = HttpServer(self.app, settings, HOST, 0, ssl=ssl_context)
        self.port: int = self.run(self.server.start())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(LIMIT_S)

    def stop(self, grace: float = 0.0) -> None:
        try:
            self.run(self.server.stop(grace))
            self.run(self.loop.shutdown_default_executor())
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(LIMIT_S)
            self.loop.close()

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[HTTPResponse, bytes]:
        connection = HTTPConnection(HOST, self.port, timeout=LIMIT_S)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response, response.read()
        finally:
            connection.close()

    def infer(self, document: Any, model: str = "echo", **headers: str) -> tuple[int, Any]:
        """A request that is all JSON, and its answer's JSON."""
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        response, answer = self.ask("POST", f"/v2/models/{model}/infer", body, headers)
        return response.status, json.loads(answer)

    def infer_binary(self, document: Any, blobs: bytes, length: str | None = None) -> tuple[int, Any, bytes]:
        """Status, JSON and binary data of the answer."""
        header = document if isinstance(document, bytes) else json.dumps(document).encode()
        headers = {"Inference-Header-Content-Length": str(len(header)) if length is None else length}
        response, answer = self.ask("POST", "/v2/models/echo/infer", header + blobs, headers)
        at = int(response.headers.get("Inference-Header-Content-Length", len(answer)))
        return response.status, json.loads(answer[:at]), answer[at:]

    @contextmanager
    def socket(self) -> Iterator[socket.socket]:
        with socket.create_connection((HOST, self.port), timeout=LIMIT_S) as connection:
            yield connection

    def raw(self, data: bytes) -> bytes:
        """All that is sent back until the server closes."""
        with self.socket() as connection:
            connection.sendall(data)
            return read_all(connection)

    def one(self, data: bytes) -> bytes:
        """The first answer, without waiting for the server to close."""
        with self.socket() as connection:
            connection.sendall(data)
            answer = b""
            while b"\r\n\r\n" not in answer:
                answer += connection.recv(65536)
            head, _, body = answer.partition(b"\r\n\r\n")
            length = int(head.lower().split(b"\ncontent-length:")[1].split(b"\r\n")[0])
            while len(body) < length:
                body += connection.recv(65536)
            return head + b"\r\n\r\n" + body

    def wait(self, condition: str) -> None:
        """Until an expression about `rig` holds."""
        end = threading.Event()
        for _ in range(1000):
            if eval(condition, {"rig": self}):
                return
            end.wait(0.005)
        raise AssertionError(f"{condition} did not become true")

    def check_alive(self) -> None:
        response, body = self.ask("GET", "/v2/health/live")
        assert (response.status, json.loads(body)) == (200, {"live": True})


def read_all(connection: socket.socket) -> bytes:
    parts = []
    while True:
        try:
            part = connection.recv(65536)
        except ConnectionResetError:
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


@contextmanager
def running(
    limits: HttpLimits | None = None,
    keys: Keys | None = None,
    ssl_context: ssl.SSLContext | None = None,
    **flags: bool,
) -> Iterator[Rig]:
    settings = Settings((Path(),), limits=limits or HttpLimits(), keys=keys or Keys())
    settings = replace(settings, access_log=flags.pop("access_log", False))
    rig = Rig(settings, ssl_context, **flags)
    try:
        yield rig
    finally:
        rig.stop()
