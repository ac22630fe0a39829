"""A whole answer, past the two messages of ASGI: one write, and headers of ours that nobody checks again."""

from __future__ import annotations

from collections.abc import Sequence

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

EXTENSION = "ridgeline.answer"  # of a request's scope
CLOSE = (b"connection", b"close")
JOINED_BYTES = 2**16  # a larger body is not copied to stand behind its head


async def answer_whole(
    cycle: RequestResponseCycle, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes
) -> None:
    """What uvicorn does for a start and a body, of a length that `headers` tell."""
    if cycle.flow.write_paused and not cycle.disconnected:
        await cycle.flow.drain()
    if cycle.disconnected:
        return
    if CLOSE in headers:
        cycle.keep_alive = False
    parts = [STATUS_LINE[status]]
    for name, value in (*cycle.default_headers, *headers):
        parts += (name, b": ", value, b"\r\n")
    parts.append(b"\r\n" if cycle.keep_alive or CLOSE in headers else b"connection: close\r\n\r\n")
    if cycle.scope["method"] == "HEAD":
        body = b""
    cycle.response_started, cycle.waiting_for_100_continue = True, False
    if len(body) <= JOINED_BYTES:
        parts.append(body)
        cycle.transport.write(b"".join(parts))
    else:
        cycle.transport.writelines((b"".join(parts), body))
    cycle.response_complete = True
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
