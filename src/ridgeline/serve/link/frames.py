"""Messages on a stream socket: four bytes of length, little-endian, then a struct as MessagePack.

Never a pickle: what arrives is decoded into structs of fixed types, or refused.
"""

from __future__ import annotations

import functools
import operator
import os
import socket
import struct
from array import array
from collections import deque
from collections.abc import Iterable
from typing import Any

import msgspec

LENGTH = struct.Struct("<I")
LONGEST = 1 << 24
RECEIVED_BYTES = 1 << 16
DESCRIPTORS = 16  # that have come and wait for their message
_ANCILLARY_BYTES = socket.CMSG_SPACE(DESCRIPTORS * array("i").itemsize)
# as numbers: arithmetic with members of an enum takes longer than the call of the system
_CLOSE_ON_EXEC, _CUT_SHORT = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_CTRUNC)


class ChannelError(Exception):
    """The peer is gone, or sent what no sound peer sends."""


class FrameWriter:
    """Structs to bytes. `clear` the buffer before it is used again."""

    def __init__(self) -> None:
        self._encode_into = msgspec.msgpack.Encoder().encode_into
        self.buffer = bytearray()

    def add(self, message: msgspec.Struct) -> None:
        buffer = self.buffer
        begin = len(buffer)
        try:
            self._encode_into(message, buffer, begin + LENGTH.size)
        except BaseException:
            del buffer[begin:]
            raise
        length = len(buffer) - begin - LENGTH.size
        if length > LONGEST:
            del buffer[begin:]
            raise ValueError(f"a message of {length:,} bytes is longer than {LONGEST:,}")
        LENGTH.pack_into(buffer, begin, length)


class FrameReader:
    """Bytes from a socket to structs, many for each call of the system, and descriptors beside them."""

    def __init__(self, sock: socket.socket, accepted: Iterable[type[msgspec.Struct]]) -> None:
        self._socket = sock
        self._decode = msgspec.msgpack.Decoder[Any](functools.reduce(operator.or_, accepted)).decode
        self._view = memoryview(bytearray(RECEIVED_BYTES))
        self._begin = self._end = 0
        self._descriptors: deque[int] = deque()

    def read(self) -> bool:
        """Take what has arrived; False once the peer has closed its end."""
        if self._begin == self._end:
            self._begin = self._end = 0
        elif self._end == len(self._view):
            self._make_room()
        try:
            count, ancillary, flags, _ = self._socket.recvmsg_into(
                (self._view[self._end :],), _ANCILLARY_BYTES, _CLOSE_ON_EXEC
            )
        except ConnectionError:
            return False
        if ancillary or flags & _CUT_SHORT:
            self._keep_descriptors(ancillary, flags)
        self._end += count
        return count > 0

    def messages(self) -> list[Any]:
        """What has arrived whole."""
        found: list[Any] = []
        view, begin, end = self._view, self._begin, self._end
        while end - begin >= LENGTH.size:
            (length,) = LENGTH.unpack_from(view, begin)
            if length > LONGEST:
                raise ChannelError(f"a message of {length:,} bytes")
            begin += LENGTH.size
            if begin + length > end:
                break
            try:
                found.append(self._decode(view[begin : begin + length]))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, MemoryError) as error:
                raise ChannelError(f"a message that cannot be read: {error}") from error
            begin += length
            self._begin = begin
        return found

    def take_descriptor(self) -> int:
        """The oldest that nobody has taken: the caller closes it."""
        if not self._descriptors:
            raise ChannelError("a descriptor is missing")
        return self._descriptors.popleft()

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.popleft())

    def _keep_descriptors(self, ancillary: list[tuple[int, int, bytes]], flags: int) -> None:
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                found = array("i")
                found.frombytes(data[: len(data) - len(data) % found.itemsize])
                self._descriptors.extend(found)
        if flags & _CUT_SHORT or len(self._descriptors) > DESCRIPTORS:
            raise ChannelError("too many descriptors at once")

    def _make_room(self) -> None:
        """Move the beginning of a message to the front of a buffer that will hold all of it."""
        rest = self._view[self._begin : self._end]
        length = LENGTH.unpack_from(rest)[0] if len(rest) >= LENGTH.size else 0
        view = memoryview(bytearray(max(LENGTH.size + length, RECEIVED_BYTES)))
        view[: len(rest)] = rest
        self._view, self._begin, self._end = view, 0, len(rest)
