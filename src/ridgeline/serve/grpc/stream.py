"""A stream of inferences: requests overlap, and answers come in the order of the requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from ridgeline.serve.errors import unavailable

DEPTH = 64  # requests of one stream that may be under way; the next one waits in the client


class InferStream:
    def __init__(self, context: Any, answer: Callable[[bytes], Awaitable[bytes]]) -> None:
        self._context, self._answer = context, answer
        # taken before a request is read: what was read must never wait for a place, nor be lost in its wait
        self._places = asyncio.Semaphore(DEPTH)
        self._waiting: asyncio.Queue[asyncio.Future[bytes] | None] = asyncio.Queue()
        self._running: set[asyncio.Future[bytes]] = set()
        self._reader: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Until the client has no more requests. `RequestError` if `end` came first."""
        self._reader = asyncio.ensure_future(self._read())
        try:
            while (answer := await self._waiting.get()) is not None:
                await self._context.write(await answer)
                self._places.release()
            if self._reader.cancelled():
                raise unavailable("the server is stopping")
            await self._reader
        finally:
            # the client is gone: so are its places in the queues
            self._reader.cancel()
            for each in self._running:
                each.cancel()
            await asyncio.gather(self._reader, *self._running, return_exceptions=True)

    def end(self) -> None:
        """Reads no more; what was read is answered."""
        if self._reader is not None:
            self._reader.cancel()

    async def _read(self) -> None:
        try:
            while True:
                await self._places.acquire()
                body = await self._context.read()
                if body is grpc.aio.EOF:
                    return
                answer = asyncio.ensure_future(self._answer(body))
                self._running.add(answer)
                answer.add_done_callback(self._running.discard)
                self._waiting.put_nowait(answer)
        finally:
            self._waiting.put_nowait(None)
