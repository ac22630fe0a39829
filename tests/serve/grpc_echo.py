"""A small service that answers with its inputs, behind a real gRPC server on loopback."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from ridgeline.serve.errors import Kind, RequestError, unavailable
from ridgeline.serve.grpc_calls import Access
from ridgeline.serve.grpc_server import GrpcServer
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
                raise RequestError(Kind(next(kind for kind in Kind if kind.word == other).value), "è" * 1500)

    def _held(self, request_id: str) -> asyncio.Event:
        return self.held.setdefault(request_id, asyncio.Event())

    def _release(self) -> None:
        self.released += 1


class Running:
    """A server on an event loop in a thread of its own, and calls of a client."""

    def __init__(self, echo: Echo, settings: Settings, access: Access | None) -> None:
        self.echo = echo
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        try:
            self.server = self.on_loop(_make(echo, settings, access))
            self.port = self.on_loop(self.server.start())
        except BaseException:
            self._end_loop()
            raise
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.port}", options=UNLIMITED)

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
        self._end_loop()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


async def _make(echo: Echo, settings: Settings, access: Access | None) -> GrpcServer:
    return GrpcServer(echo, settings, access)


@contextmanager
def running(settings: Settings | None = None, access: Access | None = None) -> Iterator[Running]:
    server = Running(Echo(), settings or Settings((), grpc_port=0), access)
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
