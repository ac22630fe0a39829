"""Which parts of a growing area are taken: numbers only, no memory. One side of a channel writes into it.

An area is made of segments. Blocks are freed in any order, and segments that stay empty are given back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import msgspec

ALIGNMENT = 64  # of blocks: vectors that straddle cache lines are slow to read
PAGE = 4096
SEGMENT_BYTES = 1 << 24
# of empty segments: fresh pages cost more than the copy that fills them
KEPT_BYTES = 1 << 26


class Block(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Bytes of a segment."""

    segment: int
    offset: int
    nbytes: int


def rounded(nbytes: int, unit: int) -> int:
    return -(-nbytes // unit) * unit


class Segment:
    """Free ranges in order of their offsets; no two of them touch."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._begins, self._ends = [0], [nbytes]
        self._taken: dict[int, int] = {}  # offset of a block to the size that was asked for

    @property
    def is_empty(self) -> bool:
        return not self._taken

    def take(self, nbytes: int) -> int | None:
        """The lowest offset with so much room, so that later segments become empty."""
        size = rounded(max(nbytes, 1), ALIGNMENT)
        for i, (begin, end) in enumerate(zip(self._begins, self._ends, strict=True)):
            if end - begin >= size:
                self._taken[begin] = nbytes
                if end - begin == size:
                    del self._begins[i], self._ends[i]
                else:
                    self._begins[i] += size
                return begin
        return None

    def give(self, offset: int, nbytes: int) -> None:
        """`ValueError` for what is not taken."""
        if self._taken.get(offset) != nbytes:
            raise ValueError(f"no block of {nbytes} bytes is taken at {offset}")
        del self._taken[offset]
        begin, end = offset, offset + rounded(max(nbytes, 1), ALIGNMENT)
        i = bisect_left(self._begins, begin)
        if i < len(self._begins) and self._begins[i] == end:
            end = self._ends[i]
            del self._begins[i], self._ends[i]
        if i and self._ends[i - 1] == begin:
            self._ends[i - 1] = end
        else:
            self._begins.insert(i, begin)
            self._ends.insert(i, end)


class Arena:
    """Segments that are added and dropped as blocks need them. Numbers of segments are not used twice."""

    def __init__(
        self,
        *,
        limit_bytes: int,
        on_add: Callable[[int, int], None],
        on_drop: Callable[[int], None],
        segment_bytes: int = SEGMENT_BYTES,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        """`on_add(segment, nbytes)` comes before the first block of a segment, `on_drop` after its last."""
        self.limit_bytes = max(rounded(limit_bytes, PAGE), PAGE)
        self._on_add, self._on_drop = on_add, on_drop
        self._segment_bytes, self._kept_bytes = rounded(segment_bytes, PAGE), kept_bytes
        self._segments: dict[int, Segment] = {}
        self._next = 0

    @property
    def nbytes(self) -> int:
        """Of all segments."""
        return sum(segment.nbytes for segment in self._segments.values())

    def allocate(self, nbytes: int) -> Block | None:
        """None: there is no room now. `ValueError`: there will never be."""
        self.require(nbytes)
        for number, segment in self._segments.items():
            offset = segment.take(nbytes)
            if offset is not None:
                return Block(number, offset, nbytes)
        size = rounded(max(nbytes, 1), PAGE)
        room = self.limit_bytes - self.nbytes
        if size > room:
            room += self._drop_empty(size - room)
        if size > room:
            return None
        number, self._next = self._next, self._next + 1
        segment = Segment(min(max(size, self._segment_bytes), room))
        self._on_add(number, segment.nbytes)
        self._segments[number] = segment
        offset = segment.take(nbytes)
        assert offset is not None, "the segment was made for this block"
        return Block(number, offset, nbytes)

    def require(self, nbytes: int) -> None:
        """`ValueError` for more than there will ever be room for."""
        if nbytes > self.limit_bytes:
            raise ValueError(f"{nbytes:,} bytes are more than the area's limit of {self.limit_bytes:,}")

    def free(self, block: Block) -> None:
        """`ValueError` for what is not taken."""
        segment = self._segments.get(block.segment)
        if segment is None:
            raise ValueError(f"there is no segment {block.segment}")
        segment.give(block.offset, block.nbytes)
        if segment.is_empty:
            empty = sum(each.nbytes for each in self._segments.values() if each.is_empty)
            self._drop_empty(empty - self._kept_bytes)

    def _drop_empty(self, at_least: int) -> int:
        """Drop empty segments, the newest first, until so many bytes are gone; how many went."""
        dropped = 0
        for number in [n for n, segment in reversed(self._segments.items()) if segment.is_empty]:
            if dropped >= at_least:
                break
            dropped += self._segments.pop(number).nbytes
            self._on_drop(number)
        return dropped
