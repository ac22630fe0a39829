"""A small service that answers with its inputs, behind a real gRPC server on loopback."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import grpc

from ridgeline.serve.errors import KINDS, RequestError, unavailable
from ridgeline.serve.grpc.calls import Access
from ridgeline.serve.grpc.server import GrpcServer
from ridgeline.serve.messages import InferRequest, InferResponse
from ridgeline.serve.protocol import messages
from ridgeline.serve.settings import Settings

UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


class Echo:
    """What a request gets is in the name of its model."""

    def __init__(self) -> None:
        self.seen: list[InferRequest] = []
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[str, Any] = {"live": True, "ready": True, "model_ready": True}
        self.running = self.most_running = self.released = self.cancelled = 0
        self.held: dict[str, asyncio.Event] = {}  # by id of the request

    async def infer(self, request: InferRequest) -> InferResponse:
        self.seen.append(request)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self._behave(request)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        wanted = request.outputs
        outputs = [each for each in request.inputs if wanted is None or each.name in {w.name for w in wanted}]
        return InferResponse(
            request.model, "7", request.id, outputs, dict(request.parameters), release=self._release
        )

    async def ask(self, verb: str, **arguments: Any) -> Any:
        self.asked.append((verb, arguments))
        answer = self.answers[verb]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def let_go(self, request_id: str) -> None:
        self._held(request_id).set()

    async def _behave(self, request: InferRequest) -> None:
        match request.model:
            case "echo":
                pass
            case "hold":
                await self._held(request.id).wait()
            case "full":
                raise unavailable("the queue is full")
            case "broken":
                raise ZeroDivisionError("a secret path")
            case "lost":
                raise asyncio.CancelledError
            case other:
                raise RequestError(KINDS[other], "x" + "è" * 1500)

    def _held(self, request_id: str) -> asyncio.Event:
        return self.held.setdefault(request_id, asyncio.Event())

    def _release(self) -> None:
        self.released += 1


@cache
def event_loop() -> asyncio.AbstractEventLoop:
    """One for all servers: grpc.aio hands events of one loop to another where there are several."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


class Running:
    """A server on an event loop in another thread, and calls of a client."""

    def __init__(self, echo: Echo, settings: Settings, access: Access | None, *, reuse_port: bool) -> None:
        self.echo = echo
        self._loop = event_loop()
        self.server = self.on_loop(_make(echo, settings, access, reuse_port))
        self.port = self.on_loop(self.server.start())
        host = "[::1]" if settings.host == "::1" else settings.host
        self.channel = grpc.insecure_channel(f"{host}:{self.port}", options=UNLIMITED)

    def on_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def soon(self, call: Any, *arguments: Any) -> None:
        self._loop.call_soon_threadsafe(call, *arguments)

    def method(self, name: str, service: str = messages.SERVICE) -> Any:
        return self.channel.unary_unary(f"/{service}/{name}")

    def infer(self, request: Any, **options: Any) -> Any:
        body = request if isinstance(request, bytes) else request.SerializeToString()
        return messages.ModelInferResponse.FromString(self.method("ModelInfer")(body, timeout=10, **options))

    def ask(self, name: str, request: Any = None, **options: Any) -> Any:
        body = b"" if request is None else request.SerializeToString()
        answer = self.method(name)(body, timeout=10, **options)
        return getattr(messages, f"{name}Response").FromString(answer)

    def close(self) -> None:
        self.channel.close()
        self.on_loop(self.server.stop(0))


async def _make(echo: Echo, settings: Settings, access: Access | None, reuse_port: bool) -> GrpcServer:
    return GrpcServer(echo, settings, access, reuse_port=reuse_port)


@contextmanager
def running(
    settings: Settings | None = None, access: Access | None = None, *, reuse_port: bool = False
) -> Iterator[Running]:
    server = Running(Echo(), settings or Settings((), grpc_port=0), access, reuse_port=reuse_port)
    try:
        yield server
    finally:
        server.close()


def request(model: str = "echo", **fields: Any) -> Any:
    """One INT8 input of two elements."""
    made = messages.ModelInferRequest(model_name=model, **fields)
    made.inputs.add(name="x", datatype="INT8", shape=[2])
    made.raw_input_contents.append(b"\x01\x02")
    return made


def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    try:
        call()
    except grpc.RpcError as error:
        return error.code(), error.details()
    raise AssertionError("the call was not refused")
