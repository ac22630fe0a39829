"""What requests wait for: a body, but not for ever; an answer, but not after the client went away."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from ridgeline.serve.codec.body import BodyBudget
from ridgeline.serve.errors import Kind, RequestError
from ridgeline.serve.http.exchange import Exchange, Gone
from ridgeline.serve.http.overdue import Overdue
from ridgeline.serve.settings import HttpLimits

T = TypeVar("T")
WATCH_AFTER_S = 0.005  # shorter requests are answered before anyone looks whether the client is there


class Waits:
    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._bodies = Overdue(limits.body_seconds, _give_up)
        self._answers = Overdue(WATCH_AFTER_S, _watch)

    async def body(self, exchange: Exchange, budget: BodyBudget, most: int) -> bytes:
        self._bodies.add(exchange)
        try:
            return await exchange.body(budget, most)
        except asyncio.CancelledError:
            if not exchange.is_late:
                raise
            _uncancel(exchange)
            raise RequestError(
                Kind.SLOW, f"the body did not arrive within {self._limits.body_seconds:g} s"
            ) from None
        finally:
            self._bodies.discard(exchange)

    async def answer(self, exchange: Exchange, work: Coroutine[Any, Any, T]) -> T:
        """`work` is cancelled when the client goes away; then `Gone` is raised."""
        self._answers.add(exchange)
        try:
            return await work
        except asyncio.CancelledError:
            if not exchange.is_gone:
                raise
            _uncancel(exchange)
            raise Gone from None
        finally:
            self._answers.discard(exchange)
            if exchange.watch is not None:
                exchange.watch.cancel()


def _give_up(exchange: Exchange) -> None:
    exchange.is_late = True
    _cancel(exchange)


def _watch(exchange: Exchange) -> None:
    exchange.watch = asyncio.get_running_loop().create_task(_wait_gone(exchange))


async def _wait_gone(exchange: Exchange) -> None:
    if await exchange.wait_gone():
        exchange.is_gone = True
        _cancel(exchange)


def _cancel(exchange: Exchange) -> None:
    if exchange.task is not None:
        exchange.task.cancel()


def _uncancel(exchange: Exchange) -> None:
    if exchange.task is not None:
        exchange.task.uncancel()
