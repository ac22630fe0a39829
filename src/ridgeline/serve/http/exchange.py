"""One request and its answer over ASGI: headers, the body within its limits, an answer exactly once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any

from ridgeline.serve.codec.body import BodyBudget, too_large
from ridgeline.serve.errors import RequestError, invalid
from ridgeline.serve.http.answer import CLOSE, EXTENSION
from ridgeline.serve.settings import HttpLimits

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

# two of them would mean two things: which one counts must not depend on who reads
SINGLE = (
    b"authorization", b"x-api-key", b"content-length", b"content-encoding", b"traceparent",
    b"inference-header-content-length", b"host", b"origin", b"sec-fetch-site",
)  # fmt: skip
MOST_PARTS = 65536  # that a body may come in
LINGER_S, LINGER_BYTES = 1.0, 2**23  # what is still read of a body that was refused
SMALL_REST = 2**16  # the server itself skips so much of a body that nobody read
logger = logging.getLogger(__name__)


class Gone(Exception):
    """The client went away: nobody reads an answer."""


class Exchange:
    __slots__ = (
        "_is_read", "_receive", "_scope", "_send", "headers", "is_gone", "is_late", "is_started", "limits",
        "method", "received", "reserved", "sent", "status", "task", "watch",
    )  # fmt: skip

    def __init__(self, scope: Mapping[str, Any], receive: Receive, send: Send, limits: HttpLimits) -> None:
        self._scope, self._receive, self._send, self.limits = scope, receive, send, limits
        self.method: str = scope["method"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.task = asyncio.current_task()
        self.watch: asyncio.Task[None] | None = None
        self._is_read = self.is_started = self.is_late = self.is_gone = False
        self.status = self.received = self.reserved = self.sent = 0

    @property
    def path(self) -> str:
        """As it came: a percent sign may not stand for a part of a path that is not a name."""
        scope = self._scope
        raw: bytes = scope.get("raw_path") or b""
        path: str = raw.decode("latin-1").partition("?")[0] if b"%" in raw else scope["path"]
        return path.removeprefix(scope.get("root_path", ""))

    def check_headers(self) -> None:
        given = self._scope["headers"]
        if len(given) != len(self.headers):
            names = [name for name, _ in given]
            for name in SINGLE:
                if names.count(name) > 1:
                    raise invalid(f"the header {name.decode()} is there more than once")

    def text(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1")

    @property
    def declared_length(self) -> int | None:
        """As Content-Length says; None where the body tells its end itself."""
        declared = self.headers.get(b"content-length")
        if declared is None:
            return None if b"transfer-encoding" in self.headers else 0
        if not declared.isdigit() or len(declared) > 18:
            raise invalid("Content-Length must be a number of bytes")
        return int(declared)

    async def body(self, budget: BodyBudget, most: int) -> bytes:
        if (self.declared_length or 0) > most:
            raise too_large(most)
        parts: list[bytes] = []
        for _ in range(MOST_PARTS):
            message = await self._next()
            part: bytes = message.get("body", b"")
            self.received += len(part)
            if self.received > most:
                raise too_large(most)
            if not message.get("more_body", False):
                self._is_read = True
                return b"".join((*parts, part)) if parts else part
            self.reserve(len(part), budget)
            parts.append(part)
        raise invalid(f"the body came in more than {MOST_PARTS} parts")

    def reserve(self, nbytes: int, budget: BodyBudget) -> None:
        budget.take(nbytes)
        self.reserved += nbytes

    async def _next(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise Gone
        return message

    async def wait_gone(self) -> bool:
        """Only after the whole body: nothing but the client's leaving can come."""
        message = await self._receive()
        return bool(message["type"] == "http.disconnect")

    async def answer(self, status: int, body: bytes, headers: Headers, *, close: bool = False) -> None:
        """`close` ends the connection, as an answer does that comes before a large body was read."""
        is_unread = not close and not self._is_read and self._has_large_rest()
        headers.append((b"content-length", b"%d" % len(body)))
        if close or is_unread:
            headers.append(CLOSE)
        self.is_started, self.status, self.sent = True, status, len(body)
        whole = None if is_unread else self._scope.get("extensions", {}).get(EXTENSION)
        try:
            if whole is not None:
                await whole(status, headers, body)
                return
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
            await self._send({"type": "http.response.body", "body": body, "more_body": is_unread})
            if is_unread:
                await self._linger()
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        except (RuntimeError, OSError) as error:
            # the connection was lost while its answer was written
            logger.debug("an answer was not sent: %s", error)

    def _has_large_rest(self) -> bool:
        with suppress(RequestError):
            length = self.declared_length
            return length is None or length > SMALL_REST
        return True

    async def _linger(self) -> None:
        """A connection that is closed with bytes unread is reset, and its client may never see the answer."""
        read = 0
        with suppress(TimeoutError, Gone):
            async with asyncio.timeout(LINGER_S):
                while read < LINGER_BYTES:
                    message = await self._next()
                    read += len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return
