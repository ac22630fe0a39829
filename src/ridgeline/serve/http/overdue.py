"""One timer for many waits: a timer of uvloop's for each costs more than parsing a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
MOST_TICK_S = 1.0


class Overdue(Generic[T]):
    """Calls `act` once with what has been in for `after_s`, late by at most that again, or a second."""

    def __init__(self, after_s: float, act: Callable[[T], None]) -> None:
        self._after, self._tick, self._act = after_s, min(MOST_TICK_S, after_s), act
        self._since: dict[T, float] = {}  # the oldest first
        self._timer: asyncio.TimerHandle | None = None

    def add(self, each: T) -> None:
        loop = asyncio.get_running_loop()
        self._since[each] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self._tick, self._look, loop)

    def __contains__(self, each: T) -> bool:
        return each in self._since

    def discard(self, each: T) -> None:
        self._since.pop(each, None)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        last = loop.time() - self._after
        over = []
        for each, since in self._since.items():
            if since > last:
                break
            over.append(each)
        try:
            for each in over:
                del self._since[each]
                self._act(each)
        finally:
            self._timer = loop.call_later(self._tick, self._look, loop) if self._since else None
