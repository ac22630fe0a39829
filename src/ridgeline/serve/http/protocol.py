"""uvicorn's connection with the bounds that it lacks: of heads, chunks, pipelines, connections and time.

Errors of framing are JSON like all others. A refused connection says why and is closed.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import httptools
import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from ridgeline.serve.http.answer import EXTENSION, answer_whole
from ridgeline.serve.http.overdue import Overdue
from ridgeline.serve.settings import HttpLimits

HEAD_BYTES, MOST_HEADERS = 2**16, 128
MOST_CHUNKS = 65536
MOST_PIPELINED = 64
REFUSED_S = 1.0  # for the request of a connection beyond the limit
BAD, SLOW, HEAD_TOO_LARGE, BUSY = 400, 408, 431, 503


class FramingError(Exception):
    """Stops the parser inside a callback; the connection already knows what to answer."""


class Connections(ServerState):
    """What all connections of a server share."""

    def __init__(self, limits: HttpLimits) -> None:
        super().__init__()
        self.limits = limits
        self.most_connections = limits.connections
        self.is_draining = False
        self.heads = Overdue(limits.body_seconds, BoundedProtocol.head_is_late)
        self.idle = Overdue(limits.keep_alive_seconds, BoundedProtocol.timeout_keep_alive_handler)
        self.refused = Overdue(REFUSED_S, BoundedProtocol.close)


async def refuse_connection(scope: Any, receive: Any, send: Any) -> None:
    """In place of the application when there are too many connections."""
    body = _error_body("too many connections; try again later")
    headers = [
        (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)),
        (b"retry-after", b"1"), (b"connection", b"close"),
    ]  # fmt: skip
    await send({"type": "http.response.start", "status": BUSY, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _error_body(message: str) -> bytes:
    return msgspec.json.encode({"error": message})


class BoundedProtocol(HttpToolsProtocol):
    server_state: Connections

    def __init__(
        self,
        config: Config,
        server_state: Connections,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._active: RequestResponseCycle | None = None  # uvicorn's `cycle` is the last one that was parsed
        self._is_in_head = self._is_deaf = False
        self._pending_bytes = 0  # received since a head, a part of a body or a message was whole
        self._chunks = 0
        self._unsent = 0  # bytes of its answers, when they were last looked at
        self._plain_left = 0  # of a body that the parser does not read
        self._refusal = (BAD, "the bytes are no HTTP request")

    @property
    def is_idle(self) -> bool:
        return self._active is None or self._active.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.server_state.most_connections:
            self.app = refuse_connection
            self.server_state.refused.add(self)
        else:
            self.server_state.heads.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        # uvicorn keeps its timer after a reset, and with it the connection
        for timers in (self.server_state.heads, self.server_state.idle, self.server_state.refused):
            timers.discard(self)
        active = self._active
        if active is not None and not active.response_complete:
            active.disconnected = True
            active.message_event.set()
        self.pipeline.clear()

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            self._take_plain(data)
            return
        # more requests do not prolong the time of a client that does not read its answers
        if not self.flow.write_paused:
            self.server_state.idle.discard(self)
        self._pending_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._refuse_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse()
        else:
            if self._pending_bytes > HEAD_BYTES:
                self._refusal = HEAD_TOO_LARGE, f"headers are larger than {HEAD_BYTES} bytes"
                self._refuse()
        # whenever nobody works for this connection, its time is limited; more bytes do not prolong it
        if self.is_idle and self not in self.server_state.heads:
            self.server_state.heads.add(self)

    def _refuse_upgrade(self, rest: bytes) -> None:
        """Nothing is upgraded: the request is answered as any other, and is the connection's last.

        The parser takes what follows for another protocol. Clients in Java ask for HTTP/2 with each request,
        and send their bodies at once.
        """
        self._is_deaf, self.cycle.keep_alive = True, False
        headers = dict(self.headers)
        if b"transfer-encoding" in headers:
            # the parser has told its end, although none of its chunks was read
            self.cycle.more_body = True
            self._refuse()
            return
        self._plain_left = int(headers.get(b"content-length", b"0"))
        if self._plain_left:
            self.cycle.more_body = True
            self._take_plain(rest)

    def _take_plain(self, data: bytes) -> None:
        if self._plain_left:
            part = data[: self._plain_left]
            self._plain_left -= len(part)
            self.on_body(part)
            if not self._plain_left:
                self.on_message_complete()

    def on_message_begin(self) -> None:
        self._is_in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """As uvicorn's, but for trailers, which the parser tells in the same way and nobody checked."""
        if not self._is_in_head:
            return
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if len(self.headers) > MOST_HEADERS:
            self._stop(HEAD_TOO_LARGE, f"there are more than {MOST_HEADERS} headers")
        if self._pending_bytes > HEAD_BYTES and self._head_bytes() > HEAD_BYTES:
            self._stop(HEAD_TOO_LARGE, f"headers are larger than {HEAD_BYTES} bytes")
        if len(self.pipeline) >= MOST_PIPELINED:
            self._stop(BAD, f"more than {MOST_PIPELINED} requests came before the first was answered")
        self._is_in_head, self._pending_bytes = False, 0
        self.server_state.heads.discard(self)
        super().on_headers_complete()
        if self.pipeline:
            self._read_on()
        if self.server_state.is_draining:
            self.cycle.keep_alive = False

    def _read_on(self) -> None:
        """uvicorn stops reading behind a second request, and would not see that its client leaves."""
        if sum(len(cycle.body) for cycle, _ in self.pipeline) <= HIGH_WATER_LIMIT:
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        self._pending_bytes = 0
        super().on_body(body)

    def on_chunk_header(self) -> None:
        self._chunks += 1
        if self._chunks > MOST_CHUNKS:
            self._stop(BAD, f"the body came in more than {MOST_CHUNKS} chunks")

    def on_message_complete(self) -> None:
        self._pending_bytes = self._chunks = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        self._unsent = 0
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())
                return
        # while it is paused, its time runs already
        if not self.flow.write_paused:
            self.server_state.idle.add(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._limit_idle()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.is_idle:
            self.server_state.idle.discard(self)

    def _limit_idle(self) -> None:
        """Time runs while nothing is asked, and while an answer waits for its client to read."""
        if self not in self.server_state.idle:
            self.server_state.idle.add(self)

    def timeout_keep_alive_handler(self) -> None:
        """A client that reads slowly has time; one that reads nothing would keep its answers for ever."""
        unsent = self.transport.get_write_buffer_size()
        if unsent and unsent == self._unsent:
            self.transport.abort()
        elif unsent:
            self._unsent = unsent
            self.server_state.idle.add(self)
        elif self.is_idle:
            super().timeout_keep_alive_handler()

    def _unset_keepalive_if_required(self) -> None:
        self.server_state.idle.discard(self)

    def head_is_late(self) -> None:
        if self.transport.is_closing():
            return  # what is unsent has a time of its own
        if self._is_in_head:
            self._refusal = SLOW, "the request did not arrive in time"
            self._refuse()
        else:
            self.close()

    def close(self) -> None:
        """What is unsent is still sent, but not for ever."""
        self.transport.close()
        self._limit_idle()

    def begin_drain(self) -> None:
        """The answer that is under way is the last one."""
        for cycle in (self._active, self.cycle):
            if cycle is not None:
                cycle.keep_alive = False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._active = cycle
        cycle.scope["extensions"] = {EXTENSION: partial(answer_whole, cycle)}  # type: ignore[dict-item]
        super()._start_asgi_task(cycle, app)

    def _head_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _stop(self, status: int, message: str) -> None:
        self._refusal = status, message
        raise FramingError

    def _refuse(self) -> None:
        """Writes nothing where an answer is still to come: its client would take this for the answer."""
        self._is_deaf = True
        self.pipeline.clear()
        active = self._active
        if active is not None and not active.response_complete:
            active.keep_alive = False
            if active.response_started or not active.more_body:
                return
            # it waits for its body, and must not answer behind the refusal
            active.disconnected = True
            active.message_event.set()
            self._active = None
        status, message = self._refusal
        body = _error_body(message)
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(
            body
        )
        self.transport.write(STATUS_LINE[status] + head + body)
        self.close()
