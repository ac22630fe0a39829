"""The inference service over gRPC, on the event loop that the `Service` runs on.

It is grpc.aio: a pool of threads costs no less (bench/grpc_servers.py), and every call that waits holds one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import grpc

from ridgeline.errors import OptionError
from ridgeline.serve.errors import RequestError, unavailable, unsupported
from ridgeline.serve.grpc.calls import Access, Calls
from ridgeline.serve.grpc.health import Health
from ridgeline.serve.grpc.questions import QUESTIONS, Question
from ridgeline.serve.grpc.status import abort
from ridgeline.serve.grpc.stream import InferStream
from ridgeline.serve.protocol import messages
from ridgeline.serve.service import OPEN, Service
from ridgeline.serve.settings import MIB, Settings, Tls

SLACK_BYTES = MIB  # of a message, besides its tensors
MOST_STREAMS = 1024  # calls of one connection at a time
KEEPALIVE_S, KEEPALIVE_TIMEOUT_S = 60, 20  # a client that is gone without a word is noticed
PINGS_EVERY_S = 10  # a client may ask as often whether the server is there
HANDSHAKE_S = 20
REFUSING_S = 0.1  # at least, so that a client that sends one call after another hears it before the end
SENDING_S = 1  # at least, for answers that are given and not yet sent


class GrpcServer:
    """All methods are called on the event loop that the service runs on."""

    def __init__(
        self, service: Service, settings: Settings, access: Access | None = None, *, reuse_port: bool = False
    ) -> None:
        self._settings, self._reuse_port = settings, reuse_port
        self._calls = Calls(service, settings, access)
        self._health = Health(service)
        self._streams: set[InferStream] = set()
        self._under_way = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._is_stopping = False
        self._server: Any = None

    async def start(self) -> int:
        """The port it listens on."""
        settings = self._settings
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"{host}:{settings.grpc_port or 0}"
        server = grpc.aio.server(
            handlers=(self._handler(), self._health.handler()),
            options=_options(settings, reuse_port=self._reuse_port),
        )
        try:
            if settings.tls is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, _credentials(settings.tls))
        except RuntimeError as error:
            raise OptionError(
                f"gRPC cannot listen on {address}",
                got=str(error),
                help="another program may have the port: choose one with --grpc",
            ) from error
        await server.start()
        self._server = server
        return int(port)

    def set_serving(self, is_serving: bool) -> None:
        """What health checks are told; requests are taken until `stop`."""
        self._health.set_serving(is_serving=is_serving)

    async def stop(self, grace_s: float) -> None:
        """Takes no more calls; those under way have so long to end. A later call may shorten that.

        grpc.aio ends calls that come while it stops with CANCELLED, as if they had been taken. So it is told
        to stop when all is answered; until then calls are refused here, with what makes clients go elsewhere.
        """
        if self._server is None:
            return
        self._is_stopping = True
        loop = asyncio.get_running_loop()
        end = loop.time() + grace_s
        self._health.close()
        for stream in self._streams:
            stream.end()
        await asyncio.sleep(min(REFUSING_S, grace_s))
        try:
            await asyncio.wait_for(self._is_idle.wait(), max(end - loop.time(), 0))
        except TimeoutError:
            await self._server.stop(None)
        else:
            await self._server.stop(max(end - loop.time(), SENDING_S))

    @contextmanager
    def _taken(self) -> Iterator[None]:
        if self._is_stopping:
            raise unavailable("the server is stopping")
        # grpc.aio has a limit of its own, which holds up probes too; in 1.60 they get no answer at all
        if self._under_way >= self._settings.limits.connections:
            raise unavailable("the server has as many calls under way as it may; try again later")
        self._under_way += 1
        self._is_idle.clear()
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._is_idle.set()

    def _handler(self) -> Any:
        unary = grpc.unary_unary_rpc_method_handler
        return grpc.method_handlers_generic_handler(
            messages.SERVICE,
            {question.name: unary(self._asks(question)) for question in QUESTIONS}
            | {
                "ModelInfer": unary(self._infer),
                "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(self._infer_stream),
                "TraceSetting": unary(_no_traces),
            },
        )

    def _asks(self, question: Question) -> Any:
        async def call(body: bytes, context: Any) -> bytes:
            try:
                with nullcontext() if question.verb in OPEN else self._taken():
                    return await self._calls.ask(question, body, context.invocation_metadata())
            except RequestError as error:
                await abort(context, error)

        return call

    async def _infer(self, body: bytes, context: Any) -> bytes:
        try:
            with self._taken():
                return await self._calls.infer(body, context.invocation_metadata())
        except RequestError as error:
            await abort(context, error)

    async def _infer_stream(self, _: Any, context: Any) -> None:
        metadata = context.invocation_metadata()
        stream = InferStream(context, lambda body: self._calls.infer_in_stream(body, metadata))
        try:
            with self._taken():
                self._calls.admit(metadata, "infer")
                self._streams.add(stream)
                await stream.run()
        except RequestError as error:
            await abort(context, error)
        finally:
            self._streams.discard(stream)


async def _no_traces(_: bytes, context: Any) -> bytes:
    await abort(context, unsupported("trace settings are not served"))


def _options(settings: Settings, *, reuse_port: bool) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", settings.limits.body_bytes + SLACK_BYTES),
        ("grpc.max_send_message_length", -1),  # as large as the model's outputs are
        ("grpc.per_message_decompression", 0),  # wire.inflated says why
        ("grpc.max_concurrent_streams", MOST_STREAMS),
        ("grpc.keepalive_time_ms", KEEPALIVE_S * 1000),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_S * 1000),
        ("grpc.keepalive_permit_without_calls", 1),  # else only a client with a call under way is noticed
        ("grpc.http2.min_ping_interval_without_data_ms", PINGS_EVERY_S * 1000),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_S * 1000),
        ("grpc.so_reuseport", int(reuse_port)),
    ]


def _credentials(tls: Tls) -> Any:
    return grpc.ssl_server_credentials(
        [(tls.key.read_bytes(), tls.certificate.read_bytes())],
        root_certificates=None if tls.client_ca is None else tls.client_ca.read_bytes(),
        require_client_auth=tls.client_ca is not None,
    )
