"""A channel for tests: the end on an event loop, and the other end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from ridgeline.serve.link.arena import Block
from ridgeline.serve.link.channel import Channel, socket_pair
from ridgeline.serve.link.loop_channel import LoopChannel


class Parcel(msgspec.Struct, tag=True, array_like=True):
    """A message that mentions memory of its sender."""

    block: Block
    text: str = ""


class Note(msgspec.Struct, tag=True, array_like=True):
    text: str


class Ends:
    """A `LoopChannel` here, and at the other end a `Channel` in a thread, or a bare socket."""

    def __init__(self, limit_bytes: int = 1 << 30) -> None:
        self.got: list[Any] = []
        self.closed: list[str] = []
        self.ours, self.theirs = socket_pair()
        self.here = LoopChannel(
            self.ours,
            (Parcel, Note),
            on_message=self.got.append,
            on_closed=self.closed.append,
            limit_bytes=limit_bytes,
        )

    def there(self, limit_bytes: int = 1 << 30) -> Channel:
        return Channel(self.theirs, (Parcel, Note), limit_bytes=limit_bytes)

    async def until(self, is_so: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not is_so():
                await asyncio.sleep(0.001)

    def __enter__(self) -> Ends:
        return self

    def __exit__(self, *_: object) -> None:
        self.here.close()
        self.theirs.close()
