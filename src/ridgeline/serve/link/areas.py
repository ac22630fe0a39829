"""Memory that one side of a channel writes and the other reads: segments of a memfd, passed as descriptors.

A reader maps what it was given, and checks every place against it: the writer may have crashed half-way.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable

import msgspec

from ridgeline.serve.link.arena import Arena, Block

# nobody can take pages away under a reader: touching them would be a bus error
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
SEGMENTS = 4096  # of one writer, at the same time


class Attach(msgspec.Struct, tag="+", array_like=True, gc=False):
    """A new segment of the sender; its descriptor comes with the message."""

    segment: int
    nbytes: int


class Detach(msgspec.Struct, tag="-", array_like=True, gc=False):
    segment: int


class WrittenArea:
    """Segments of this side."""

    def __init__(self, limit_bytes: int, tell: Callable[[Attach | Detach, int | None], None]) -> None:
        """`tell(message, descriptor)` sends at once, so that the peer knows a segment before its blocks."""
        self.arena = Arena(limit_bytes=limit_bytes, on_add=self._add, on_drop=self._drop)
        self._tell = tell
        self._memory: dict[int, memoryview] = {}

    def _add(self, segment: int, nbytes: int) -> None:
        descriptor = os.memfd_create("ridgeline-serve", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, nbytes)
            mapped = mmap.mmap(descriptor, nbytes)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
            self._tell(Attach(segment, nbytes), descriptor)
        finally:
            os.close(descriptor)
        self._memory[segment] = memoryview(mapped)

    def _drop(self, segment: int) -> None:
        # not closed: somebody may still hold a view, and the last one unmaps it
        del self._memory[segment]
        self._tell(Detach(segment), None)

    def view(self, block: Block) -> memoryview:
        return self._memory[block.segment][block.offset : block.offset + block.nbytes]


class ReadArea:
    """Segments of the peer. `ValueError` for whatever does not fit them."""

    def __init__(self) -> None:
        self._memory: dict[int, memoryview] = {}

    def attach(self, message: Attach, descriptor: int) -> None:
        """The descriptor is closed in any case."""
        try:
            if message.segment in self._memory or len(self._memory) >= SEGMENTS:
                raise ValueError(f"segment {message.segment} is there already, or one too many")
            if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SEALS != SEALS:
                raise ValueError(f"segment {message.segment} may still change its size")
            found = os.fstat(descriptor).st_size
            if not 0 < message.nbytes <= found:
                raise ValueError(f"segment {message.segment} has {found} bytes, not {message.nbytes}")
            mapped = mmap.mmap(descriptor, message.nbytes, access=mmap.ACCESS_READ)
        except OSError as error:  # no memfd at all, or no address space
            raise ValueError(f"segment {message.segment} cannot be mapped: {error}") from error
        finally:
            os.close(descriptor)
        self._memory[message.segment] = memoryview(mapped)

    def detach(self, segment: int) -> None:
        if self._memory.pop(segment, None) is None:
            raise ValueError(f"there is no segment {segment}")

    def view(self, block: Block) -> memoryview:
        memory = self._memory.get(block.segment)
        if memory is None:
            raise ValueError(f"there is no segment {block.segment}")
        end = block.offset + block.nbytes
        if not 0 <= block.offset <= end <= len(memory):
            raise ValueError(f"segment {block.segment} has {len(memory)} bytes, not {block.offset} to {end}")
        return memory[block.offset : end]
