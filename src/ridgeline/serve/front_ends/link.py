"""The server's side of a front-end process: takes its requests, sends its answers, watches over it."""

from __future__ import annotations

import asyncio
import logging
import socket
from functools import partial
from typing import Any, cast

from ridgeline.serve.errors import Kind, RequestError, unavailable
from ridgeline.serve.front_ends.wire import (
    TO_SERVER,
    Answer,
    Ask,
    Cancel,
    Closed,
    Infer,
    Refused,
    Started,
    Told,
    lay_out,
    pick_up,
    total_bytes,
)
from ridgeline.serve.link.arena import Block
from ridgeline.serve.link.frames import ChannelError
from ridgeline.serve.link.loop_channel import LoopChannel
from ridgeline.serve.messages import InferRequest, InferResponse, Wanted
from ridgeline.serve.service import Service, Verb

_log = logging.getLogger(__name__)


class FrontEndLink:
    """One front end. `is_lost` is set when its process has ended."""

    def __init__(self, sock: socket.socket, service: Service, *, copies: bool = False) -> None:
        """`copies`: inputs are copied. Engines of this process may read them after their client went away."""
        self._service, self._copies = service, copies
        self._unsent: dict[int, InferResponse] = {}  # answers that wait for room
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self.has_started, self.has_closed, self.is_lost = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.channel = LoopChannel(sock, TO_SERVER, on_message=self._on_message, on_closed=self._on_closed)

    def _on_message(self, message: Any) -> None:
        if isinstance(message, Infer):
            self._begin(message.ticket, self._infer(message))
        elif isinstance(message, Ask):
            self._begin(message.ticket, self._ask(message))
        elif isinstance(message, Cancel):
            task = self._tasks.get(message.ticket)
            if task is not None:
                task.cancel()
        elif isinstance(message, Started):
            self.has_started.set()
        elif isinstance(message, Closed):
            self.has_closed.set()

    def _begin(self, ticket: int, work: Any) -> None:
        if ticket in self._tasks:
            work.close()
            raise ChannelError(f"ticket {ticket} is in use")
        task = self._tasks[ticket] = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self._tasks.pop(ticket, None))

    async def _infer(self, asked: Infer) -> None:
        try:
            await self._answer(asked)
        except RequestError as error:
            self.channel.send(Refused(asked.ticket, error.kind.word, error.message, error.reason))
        except ChannelError:
            raise
        except Exception:
            _log.exception("a request to %r failed", asked.model)
            self.channel.send(Refused(asked.ticket, Kind.INTERNAL.word, "internal error", "OTHER"))
        finally:
            if asked.block is not None:
                self.channel.release(asked.block)

    async def _answer(self, asked: Infer) -> None:
        whole = None if asked.block is None else self.channel.peer_view(asked.block)
        if whole is not None and self._copies:
            whole = memoryview(bytes(whole))
        outputs = None if asked.outputs is None else [Wanted(*each) for each in asked.outputs]
        request = InferRequest(
            asked.model, asked.version, asked.id, pick_up(asked.inputs, whole), outputs, asked.parameters,
            asked.priority, asked.timeout_us, asked.trace,
        )  # fmt: skip
        response = await self._service.infer(request)
        nbytes = total_bytes(response.outputs)
        self._unsent[asked.ticket] = response
        if not self.channel.is_open:
            self._drop_unsent()
        elif nbytes:
            try:
                self.channel.allocate(nbytes, partial(self._send, asked.ticket))
            except (ValueError, OSError) as error:
                self._unsent.pop(asked.ticket).release()
                raise unavailable("the answer is larger than the memory between processes") from error
        else:
            self._send(asked.ticket, None)

    def _send(self, ticket: int, block: Block | None) -> None:
        response = self._unsent.pop(ticket)
        try:
            refs = lay_out(response.outputs, None if block is None else self.channel.view(block))
        finally:
            response.release()
        self.channel.send(Answer(ticket, response.model, response.version, block, refs))

    def _drop_unsent(self) -> None:
        while self._unsent:
            self._unsent.popitem()[1].release()

    async def _ask(self, asked: Ask) -> None:
        try:
            value = await self._service.ask(cast("Verb", asked.verb), **asked.arguments)
        except RequestError as error:
            self.channel.send(Refused(asked.ticket, error.kind.word, error.message, error.reason))
        except Exception:
            _log.exception("%s failed", asked.verb)
            self.channel.send(Refused(asked.ticket, Kind.INTERNAL.word, "internal error", "OTHER"))
        else:
            self.channel.send(Told(asked.ticket, value))

    def _on_closed(self, why: str) -> None:
        for task in list(self._tasks.values()):
            task.cancel()
        self._drop_unsent()
        self.is_lost.set()
        self.has_started.set()
        self.has_closed.set()
