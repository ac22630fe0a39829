"""grpc.health.v1: whether the server takes requests, asked for once or watched."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from ridgeline.serve.errors import RequestError, not_found
from ridgeline.serve.grpc.status import abort
from ridgeline.serve.grpc.wire import parse
from ridgeline.serve.protocol import messages

SERVICES = frozenset({"", messages.SERVICE})
_STATUS = messages.HealthCheckResponse.ServingStatus


class Health:
    """Not serving until it is told otherwise."""

    def __init__(self) -> None:
        self._status = _STATUS.Value("NOT_SERVING")
        self._is_closed = False
        self._changed = asyncio.Event()  # replaced at every change

    def set_serving(self, *, is_serving: bool) -> None:
        self._status = _STATUS.Value("SERVING" if is_serving else "NOT_SERVING")
        self._tell()

    def close(self) -> None:
        """Who watches hears that it ended, and does not keep the server from stopping."""
        self._status, self._is_closed = _STATUS.Value("NOT_SERVING"), True
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
        return _answer(self._status)

    async def _watch(self, body: bytes, context: Any) -> None:
        try:
            service = parse(messages.HealthCheckRequest, body).service
        except RequestError as error:
            await abort(context, error)
        told = None
        while True:
            changed = self._changed
            status = self._status if service in SERVICES else _STATUS.Value("SERVICE_UNKNOWN")
            if status != told:
                await context.write(_answer(status))
                told = status  # and it may have changed since
            elif self._is_closed:
                return
            else:
                await changed.wait()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _answer(status: int) -> bytes:
    return bytes(messages.HealthCheckResponse(status=status).SerializeToString())
