"""One end of a pair: messages over a socket, tensors through memory that both sides map.

Each side allocates from an area of its own and writes there; the peer reads, and says when it is done.
`Channel` belongs to one thread, and blocks; `loop_channel.LoopChannel` is for an event loop, and never does.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Iterable, Iterator
from time import monotonic
from typing import Any

import msgspec

from ridgeline.serve.link.areas import Attach, Detach, ReadArea, WrittenArea
from ridgeline.serve.link.arena import Block
from ridgeline.serve.link.frames import ChannelError, FrameReader, FrameWriter

LIMIT_BYTES = 1 << 30  # of the area of one side
ALLOCATE_SECONDS = 20.0


class Release(msgspec.Struct, tag="~", array_like=True, gc=False):
    """Blocks of the receiver that the sender has read."""

    blocks: list[Block]


def socket_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


class Channel:
    """Whatever fails is a `ChannelError`, but for what the caller asks too much of."""

    def __init__(
        self, sock: socket.socket, accepted: Iterable[type[msgspec.Struct]], *, limit_bytes: int = LIMIT_BYTES
    ) -> None:
        self._socket = sock
        self._reader = FrameReader(sock, (Attach, Detach, Release, *accepted))
        self._writer = FrameWriter()
        self._written = WrittenArea(limit_bytes, self._tell)
        self._read = ReadArea()
        self._inbox: deque[Any] = deque()

    def receive(self) -> Iterator[Any]:
        """Messages until the peer is gone."""
        while self._inbox or self._read_more():
            while self._inbox:
                yield self._inbox.popleft()

    def send(self, message: msgspec.Struct) -> None:
        self._tell(message, None)

    def allocate(self, nbytes: int) -> Block:
        """Waits until the peer has given back enough, but not for ever: it may itself wait for this side.

        `ValueError` for more than the whole area, and when nothing came back in time.
        """
        end = monotonic() + ALLOCATE_SECONDS
        while (block := self._written.arena.allocate(nbytes)) is None:
            if not select.select([self._socket], [], [], max(0.0, end - monotonic()))[0]:
                raise ValueError(f"no room for {nbytes:,} bytes in {ALLOCATE_SECONDS:.0f} s")
            if not self._read_more():
                raise ChannelError("the other process is gone, and gives nothing back")
        return block

    def release(self, block: Block) -> None:
        """A block of the peer, which nobody here reads any more."""
        self.send(Release([block]))

    def view(self, block: Block) -> memoryview:
        return self._written.view(block)

    def peer_view(self, block: Block) -> memoryview:
        """Read-only."""
        try:
            return self._read.view(block)
        except ValueError as error:
            raise ChannelError(str(error)) from error

    def take_descriptor(self) -> int:
        """That came with the message of which this is asked."""
        return self._reader.take_descriptor()

    def close(self) -> None:
        self._reader.close()
        self._socket.close()

    def _read_more(self) -> bool:
        """False once the peer is gone."""
        try:
            if not self._reader.read():
                return False
            for message in self._reader.messages():
                self._take(message)
        except (OSError, ValueError) as error:
            raise ChannelError(str(error)) from error
        return True

    def _take(self, message: Any) -> None:
        match message:
            case Attach():
                self._read.attach(message, self._reader.take_descriptor())
            case Detach():
                self._read.detach(message.segment)
            case Release():
                for block in message.blocks:
                    self._written.arena.free(block)
            case _:
                self._inbox.append(message)

    def _tell(self, message: msgspec.Struct, descriptor: int | None) -> None:
        buffer = self._writer.buffer
        buffer.clear()
        self._writer.add(message)
        try:
            if descriptor is None:
                self._socket.sendall(buffer)
            else:
                sent = socket.send_fds(self._socket, [buffer], [descriptor])
                self._socket.sendall(memoryview(buffer)[sent:])
        except OSError as error:
            raise ChannelError(str(error)) from error
