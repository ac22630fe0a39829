"""A whole answer is one write, and the same bytes that uvicorn makes of its start and its body."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from ridgeline.serve.http.answer import CLOSE, JOINED_BYTES, answer_whole

TYPE = (b"content-type", b"application/json")


class Recorder:
    """A transport that keeps what it was given."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.calls.append(data)

    def writelines(self, parts: tuple[bytes, ...]) -> None:
        self.calls.append(b"".join(parts))

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


def cycle_of(method: str, *, keep_alive: bool) -> tuple[RequestResponseCycle, Recorder, list[str]]:
    transport, told, logger = Recorder(), [], logging.getLogger(__name__)
    scope: Any = {"type": "http", "method": method}
    cycle = RequestResponseCycle(
        scope, transport, FlowControl(transport), logger, logger, access_log=False,  # type: ignore[arg-type]
        default_headers=[(b"date", b"today")], message_event=asyncio.Event(), expect_100_continue=False,
        keep_alive=keep_alive, on_response=lambda: told.append("complete"),
    )  # fmt: skip
    return cycle, transport, told


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
@pytest.mark.parametrize("keep_alive", [True, False])
@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("nbytes", [0, 5, JOINED_BYTES + 1])
def test_bytes_and_ends_are_those_of_uvicorn(
    method: str, keep_alive: bool, closes: bool, nbytes: int
) -> None:
    body = b"x" * nbytes
    headers = [TYPE, (b"content-length", b"%d" % nbytes), *([CLOSE] if closes else [])]

    async def both() -> None:
        theirs, expected, told = cycle_of(method, keep_alive=keep_alive)
        await theirs.send({"type": "http.response.start", "status": 200, "headers": headers})
        await theirs.send({"type": "http.response.body", "body": body, "more_body": False})
        ours, got, ours_told = cycle_of(method, keep_alive=keep_alive)
        await answer_whole(ours, 200, headers, body)
        assert len(got.calls) == 1
        assert got.calls[0] == b"".join(expected.calls)
        assert (got.is_closed, ours_told) == (expected.is_closed, told)
        for name in ("response_started", "response_complete", "keep_alive", "waiting_for_100_continue"):
            assert getattr(ours, name) == getattr(theirs, name), name

    asyncio.run(both())


def test_a_client_that_is_gone_is_written_nothing() -> None:
    async def gone() -> None:
        cycle, transport, _ = cycle_of("GET", keep_alive=True)
        cycle.disconnected = True
        await answer_whole(cycle, 200, [TYPE], b"")
        assert transport.calls == []

    asyncio.run(gone())
