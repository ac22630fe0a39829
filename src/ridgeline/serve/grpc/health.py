"""grpc.health.v1: whether the server takes requests, asked for once or watched."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import grpc

from ridgeline.serve.errors import RequestError, not_found
from ridgeline.serve.grpc.status import abort
from ridgeline.serve.grpc.wire import parse
from ridgeline.serve.protocol import messages
from ridgeline.serve.service import Service

SERVICES = frozenset({"", messages.SERVICE})
_STATUS = messages.HealthCheckResponse.ServingStatus
SERVING: int = _STATUS.Value("SERVING")
NOT_SERVING: int = _STATUS.Value("NOT_SERVING")
UNKNOWN: int = _STATUS.Value("SERVICE_UNKNOWN")
LOOK_EVERY_S = 1.0  # while somebody watches: a service does not tell that it is ready no more


class Health:
    """As ready as the service is, but not serving until it is told so."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._is_serving = self._is_closed = False
        self._changed = asyncio.Event()  # replaced at every change

    def set_serving(self, *, is_serving: bool) -> None:
        self._is_serving = is_serving
        self._tell()

    def close(self) -> None:
        """Who watches hears that it ended, and does not keep the server from stopping."""
        self._is_serving, self._is_closed = False, True
        self._tell()

    def handler(self) -> Any:
        return grpc.method_handlers_generic_handler(
            messages.HEALTH,
            {
                "Check": grpc.unary_unary_rpc_method_handler(self._check),
                "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
            },
        )

    async def _check(self, body: bytes, context: Any) -> bytes:
        try:
            service = parse(messages.HealthCheckRequest, body).service
            if service not in SERVICES:
                raise not_found(f"there is no service {service!r}: {messages.SERVICE}")
        except RequestError as error:
            await abort(context, error)
        return _answer(await self._status(service))

    async def _watch(self, body: bytes, context: Any) -> None:
        try:
            service = parse(messages.HealthCheckRequest, body).service
        except RequestError as error:
            await abort(context, error)
        told = None
        while True:
            changed = self._changed
            status = await self._status(service)
            if status != told:
                await context.write(_answer(status))
                told = status  # and it may have changed since
            elif self._is_closed:
                return
            else:
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), LOOK_EVERY_S)

    async def _status(self, service: str) -> int:
        if service not in SERVICES:
            return UNKNOWN
        return SERVING if self._is_serving and await self._is_ready() else NOT_SERVING

    async def _is_ready(self) -> bool:
        try:
            return bool(await self._service.ask("ready"))
        except RequestError:
            # the server process is gone
            return False

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _answer(status: int) -> bytes:
    return bytes(messages.HealthCheckResponse(status=status).SerializeToString())
