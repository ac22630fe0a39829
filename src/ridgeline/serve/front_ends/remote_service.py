"""The server process as a `Service` of a front-end process: requests go through shared memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from ridgeline.serve.errors import KINDS, RequestError, invalid, unavailable
from ridgeline.serve.front_ends.wire import (
    TO_FRONT_END,
    Answer,
    Ask,
    Cancel,
    Infer,
    Refused,
    Told,
    lay_out,
    pick_up,
    total_bytes,
)
from ridgeline.serve.link.arena import Block
from ridgeline.serve.link.loop_channel import LoopChannel
from ridgeline.serve.messages import InferRequest, InferResponse
from ridgeline.serve.service import Verb


class RemoteService:
    def __init__(
        self, sock: Any, *, on_order: Callable[[Any], None], on_closed: Callable[[str], None]
    ) -> None:
        """`on_order` hears what the server wants of this process; `on_closed` that there is no server."""
        self._loop = asyncio.get_running_loop()
        self._on_order, self._told_closed = on_order, on_closed
        self._tickets = count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self.channel = LoopChannel(sock, TO_FRONT_END, on_message=self._on_message, on_closed=self._on_closed)

    async def infer(self, request: InferRequest) -> InferResponse:
        ticket, nbytes = next(self._tickets), total_bytes(request.inputs)
        answer = self._expect(ticket)
        try:
            if nbytes:
                self.channel.allocate(nbytes, partial(self._send, ticket, request))
            else:
                self._send(ticket, request, None)
            return self._response(request, await answer)
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                self._drop(answer.result())  # it came in the moment in which nobody wanted it any more
            else:
                self.channel.send(Cancel(ticket))
            raise
        except ValueError as error:
            raise unavailable("the request is larger than the memory between processes") from error
        finally:
            self._waiting.pop(ticket, None)

    async def ask(self, verb: Verb, **arguments: Any) -> Any:
        ticket = next(self._tickets)
        answer = self._expect(ticket)
        try:
            self.channel.send(Ask(ticket, verb, arguments))
            return await answer
        finally:
            self._waiting.pop(ticket, None)

    def _expect(self, ticket: int) -> asyncio.Future[Any]:
        if not self.channel.is_open:
            raise unavailable("the server is stopping")
        answer = self._waiting[ticket] = self._loop.create_future()
        return answer

    def _send(self, ticket: int, request: InferRequest, block: Block | None) -> None:
        if ticket not in self._waiting:  # cancelled while it waited for memory
            if block is not None:
                self.channel.free(block)
            return
        try:
            self._send_in(ticket, request, block)
        except Exception as error:
            if block is not None:
                self.channel.free(block)
            answer = self._waiting[ticket]
            if not answer.done():
                answer.set_exception(invalid(f"the request cannot be passed on: {error}"))

    def _send_in(self, ticket: int, request: InferRequest, block: Block | None) -> None:
        refs = lay_out(request.inputs, None if block is None else self.channel.view(block))
        outputs = None if request.outputs is None else [(each.name, each.classes) for each in request.outputs]
        self.channel.send(
            Infer(
                ticket, request.model, request.version, request.id, block, refs, outputs,
                dict(request.parameters), request.priority, request.timeout_us, request.trace,
            )
        )  # fmt: skip

    def _drop(self, answer: Answer) -> None:
        if answer.block is not None:
            self.channel.release(answer.block)

    def _response(self, request: InferRequest, answer: Answer) -> InferResponse:
        block = answer.block
        if block is None:
            return InferResponse(answer.model, answer.version, request.id, pick_up(answer.outputs, None))
        outputs = pick_up(answer.outputs, self.channel.peer_view(block))
        release = partial(self.channel.release, block)
        return InferResponse(answer.model, answer.version, request.id, outputs, release=release)

    def _on_message(self, message: Any) -> None:
        if not isinstance(message, Answer | Told | Refused):
            self._on_order(message)
            return
        answer = self._waiting.get(message.ticket)
        if answer is None or answer.done():  # nobody waits any more
            if isinstance(message, Answer):
                self._drop(message)
        elif isinstance(message, Refused):
            answer.set_exception(RequestError(KINDS[message.kind], message.message, reason=message.reason))
        else:
            answer.set_result(message.value if isinstance(message, Told) else message)

    def _on_closed(self, why: str) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(unavailable("the server ended before it answered", reason="BACKEND"))
        self._told_closed(why)
