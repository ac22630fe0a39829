"""The end of a channel that lives on an event loop: nothing blocks, many messages are read per wake-up."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from ridgeline.serve.link.areas import Attach, Detach, ReadArea, WrittenArea
from ridgeline.serve.link.arena import Block
from ridgeline.serve.link.channel import LIMIT_BYTES, Release
from ridgeline.serve.link.frames import ChannelError, FrameReader, FrameWriter

# blocks given back travel with the next message, unless they are large or nothing is sent for so long
PROMPT_BYTES = 1 << 20
RELEASE_SECONDS = 0.02


class LoopChannel:
    """All calls come from the event loop. `on_message` may raise `ChannelError`: then the channel closes."""

    def __init__(
        self,
        sock: socket.socket,
        accepted: Iterable[type[msgspec.Struct]],
        *,
        on_message: Callable[[Any], None],
        on_closed: Callable[[str], None],
        limit_bytes: int = LIMIT_BYTES,
    ) -> None:
        """`on_closed(why)` is called once, unless this side closes first."""
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._handlers: dict[type, Callable[[Any], None]] = {
            Attach: self._attach,
            Detach: self._detach,
            Release: self._freed,
        }
        self._handlers |= dict.fromkeys(accepted, self._guarded(on_message))
        self._on_closed = on_closed
        self._reader = FrameReader(sock, self._handlers)
        self._writer = FrameWriter()
        self._unsent: deque[tuple[bytes, int | None]] = deque()
        self._written = WrittenArea(limit_bytes, self._tell)
        self._read = ReadArea()
        self._waiting: deque[tuple[int, Callable[[Block], None]]] = deque()
        self._released: list[Block] = []
        self._released_bytes = 0
        self._release_timer: asyncio.TimerHandle | None = None
        self.is_open = True
        sock.setblocking(False)
        self._loop.add_reader(sock, self._on_readable)

    def send(self, message: msgspec.Struct, descriptor: int | None = None) -> None:
        """Nothing is sent on a closed channel: `on_closed` has told so."""
        self._tell(message, descriptor)

    def allocate(self, nbytes: int, then: Callable[[Block], None]) -> None:
        """Call `then` with a block: at once, or in turn when the peer has given back enough.

        `ValueError` for more than the whole area. On a channel that closes nobody is called any more.
        """
        block = None if self._waiting else self._written.arena.allocate(nbytes)
        if block is not None:
            then(block)
            return
        if nbytes > self._written.arena.limit_bytes:
            raise ValueError(
                f"{nbytes:,} bytes are more than the limit of {self._written.arena.limit_bytes:,}"
            )
        self._waiting.append((nbytes, then))

    def free(self, block: Block) -> None:
        """A block of this side, which the peer does not read any more."""
        self._written.arena.free(block)
        if self._waiting:
            self._serve_waiting()

    def release(self, block: Block) -> None:
        """A block of the peer, which nobody here reads any more."""
        if not self.is_open:
            return
        self._released.append(block)
        self._released_bytes += block.nbytes
        if self._released_bytes >= PROMPT_BYTES:
            self._flush()
        elif self._release_timer is None:
            self._release_timer = self._loop.call_later(RELEASE_SECONDS, self._flush)

    def view(self, block: Block) -> memoryview:
        return self._written.view(block)

    def peer_view(self, block: Block) -> memoryview:
        """Read-only. It outlives the channel."""
        try:
            return self._read.view(block)
        except ValueError as error:
            raise ChannelError(str(error)) from error

    def read_rest(self) -> None:
        """Take what a peer that ends had sent before, and close. `on_closed` is not called."""
        self._on_closed = _ignore
        while self.is_open and self._on_readable():
            pass
        self.close()

    def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        if self._release_timer is not None:
            self._release_timer.cancel()
        self._reader.close()
        for _, descriptor in self._unsent:
            if descriptor is not None:
                os.close(descriptor)
        self._unsent.clear()
        self._waiting.clear()
        self._socket.close()

    def _on_readable(self) -> bool:
        """Whether there was anything to read."""
        try:
            if not self._reader.read():
                self._fail("the other process closed the connection")
                return False
            for message in self._reader.messages():
                self._handlers[type(message)](message)
                if not self.is_open:
                    return False
        except BlockingIOError:
            return False
        except (ChannelError, ValueError, OSError) as error:
            self._fail(str(error))
            return False
        return True

    def _guarded(self, function: Callable[[Any], None]) -> Callable[[Any], None]:
        """Errors of other modules are theirs: further messages still arrive."""

        def guarded(argument: Any) -> None:
            try:
                function(argument)
            except ChannelError:
                raise
            except Exception as error:
                context = {"message": "a handler of a channel's messages failed", "exception": error}
                self._loop.call_exception_handler(context)

        return guarded

    def _attach(self, message: Attach) -> None:
        self._read.attach(message, self._reader.take_descriptor())

    def _detach(self, message: Detach) -> None:
        self._read.detach(message.segment)

    def _freed(self, message: Release) -> None:
        for block in message.blocks:
            self._written.arena.free(block)
        self._serve_waiting()

    def _serve_waiting(self) -> None:
        while self._waiting:
            nbytes, then = self._waiting[0]
            block = self._written.arena.allocate(nbytes)
            if block is None:
                return
            self._waiting.popleft()
            self._guarded(then)(block)

    def _fail(self, why: str) -> None:
        if self.is_open:
            self.close()
            self._on_closed(why)

    def _flush(self) -> None:
        self._writer.buffer.clear()
        self._add_released()
        self._send_buffer(None)

    def _add_released(self) -> None:
        self._writer.add(Release(self._released))
        self._released, self._released_bytes = [], 0
        if self._release_timer is not None:
            self._release_timer.cancel()
            self._release_timer = None

    def _tell(self, message: msgspec.Struct, descriptor: int | None) -> None:
        if not self.is_open:
            return
        self._writer.buffer.clear()
        self._writer.add(message)  # first: a message that cannot be written leaves all as it was
        if self._released:
            self._add_released()
        self._send_buffer(descriptor)

    def _send_buffer(self, descriptor: int | None) -> None:
        buffer, sent = self._writer.buffer, 0
        if not self._unsent:
            sent = self._send_some(buffer, descriptor)
            if sent == len(buffer):
                return
            self._loop.add_writer(self._socket, self._on_writable)
        # the descriptor travels with the first byte
        later = os.dup(descriptor) if descriptor is not None and not sent else None
        self._unsent.append((bytes(memoryview(buffer)[sent:]), later))

    def _on_writable(self) -> None:
        while self._unsent:
            data, descriptor = self._unsent[0]
            sent = self._send_some(data, descriptor)
            if sent and descriptor is not None:
                os.close(descriptor)
                descriptor = None
            if sent < len(data):
                self._unsent[0] = (data[sent:], descriptor)
                return
            self._unsent.popleft()
        self._loop.remove_writer(self._socket)

    def _send_some(self, data: bytes | bytearray, descriptor: int | None) -> int:
        """How many bytes went. To a peer that is gone all of them: the reader will notice."""
        try:
            if descriptor is None:
                return self._socket.send(data)
            return socket.send_fds(self._socket, [data], [descriptor])
        except BlockingIOError:
            return 0
        except ConnectionError:
            return len(data)
        except OSError as error:  # of descriptors or buffers there are no more: the message would be missing
            self._loop.call_soon(self._fail, str(error))
            return len(data)


def _ignore(why: str) -> None:
    """The owner closes, and knows why."""
