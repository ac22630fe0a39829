"""Memory between a front end and the server: given back whatever becomes of a request and its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ridgeline.serve.errors import RequestError
from ridgeline.serve.front_ends.link import FrontEndLink
from ridgeline.serve.front_ends.remote_service import RemoteService
from ridgeline.serve.link.channel import socket_pair
from ridgeline.serve.messages import InferRequest, InferResponse, Tensor

LARGE = Tensor("x", "UINT8", (1 << 16,), bytes(1 << 16))


class Held:
    """A service that answers when it is told to."""

    def __init__(self) -> None:
        self.goes, self.waiting, self.released = asyncio.Event(), 0, 0

    async def infer(self, request: InferRequest) -> InferResponse:
        self.waiting += 1
        await self.goes.wait()
        return InferResponse(request.model, "1", request.id, request.inputs, release=self._release)

    def _release(self) -> None:
        self.released += 1

    async def ask(self, verb: str, **arguments: Any) -> Any:
        return {}


class Pair:
    """Both ends on one loop."""

    def __init__(self) -> None:
        ours, theirs = socket_pair()
        self.service = Held()
        self.link = FrontEndLink(ours, self.service)
        self.remote = RemoteService(theirs, on_order=lambda _: None, on_closed=lambda _: None)

    def close(self) -> None:
        self.remote.channel.close()
        self.link.channel.close()

    def taken(self) -> int:
        areas = (self.link.channel._written.arena, self.remote.channel._written.arena)
        return sum(len(segment._taken) for arena in areas for segment in arena._segments.values())

    async def until(self, holds: Any) -> None:
        for _ in range(500):
            if holds():
                return
            await asyncio.sleep(0.01)
        raise AssertionError("it did not come about in time")


def run(work: Callable[[Pair], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        pair = Pair()
        try:
            await asyncio.wait_for(work(pair), 20)
        finally:
            pair.close()

    asyncio.run(whole())


def test_a_request_that_cannot_be_written_costs_no_memory() -> None:
    async def work(pair: Pair) -> None:
        with pytest.raises(RequestError, match="cannot be passed on"):
            await pair.remote.infer(InferRequest("m", id="\ud800", inputs=[LARGE]))
        assert pair.taken() == 0
        pair.service.goes.set()
        response = await pair.remote.infer(InferRequest("m", inputs=[LARGE]))
        response.release()
        await pair.until(lambda: pair.taken() == 0)

    run(work)


def test_an_answer_that_comes_as_its_client_goes_is_given_back() -> None:
    async def work(pair: Pair) -> None:
        asked = asyncio.ensure_future(pair.remote.infer(InferRequest("m", inputs=[LARGE])))
        await pair.until(lambda: pair.service.waiting)
        had = pair.remote._on_message

        def come_and_go(message: Any) -> None:
            had(message)
            asked.cancel()

        for kind in list(pair.remote.channel._handlers):
            if kind.__name__ == "Answer":
                pair.remote.channel._handlers[kind] = come_and_go
        pair.service.goes.set()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await pair.until(lambda: pair.taken() == 0)

    run(work)


def test_answers_that_wait_for_room_are_given_back_with_their_front_end() -> None:
    async def work(pair: Pair) -> None:
        arena = pair.link.channel._written.arena
        asked = asyncio.ensure_future(pair.remote.infer(InferRequest("m", inputs=[LARGE])))
        await pair.until(lambda: pair.service.waiting)
        arena.allocate = lambda _: None  # type: ignore[assignment, misc]  # it is full
        pair.service.goes.set()
        await pair.until(lambda: pair.link._unsent)
        assert pair.service.released == 0
        pair.remote.channel.close()
        await pair.until(lambda: pair.service.released == 1)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)

    run(work)
