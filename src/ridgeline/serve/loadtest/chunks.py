"""The end of a chunked body. Its chunks are walked by their sizes: their data may look like an end."""

from __future__ import annotations

import re

LONGEST_LINE = 65536
_SIZE = re.compile(rb"([0-9a-f]{1,15})[ \t]*(?:;.*)?", re.IGNORECASE)
# what is next: the line with a chunk's size, its data, the end of the line behind them, fields after the last
SIZE, DATA, DATA_END, TRAILERS = range(4)


class ChunkReader:
    """Feed it the body as it is received. `ValueError` for bytes that are no chunks."""

    __slots__ = ("_expected", "_kept", "_left", "_line", "beginning")

    def __init__(self, *, kept: int) -> None:
        self._expected, self._kept = SIZE, kept
        self._left = 0  # of the data of this chunk
        self._line = b""  # the beginning of a line that is not whole
        self.beginning = b""  # of the data, at most `kept` bytes

    def feed(self, data: bytes) -> bool:
        """Whether the body is whole."""
        data, at = self._line + data, 0
        self._line = b""
        while at < len(data):
            if self._expected == DATA:
                at = self._take_data(data, at)
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                self._line = data[at:]
                if len(self._line) > LONGEST_LINE:
                    raise ValueError("a line between the chunks of the answer does not end")
                return False
            is_last = self._take_line(data[at:end])
            at = end + 2
            if is_last:
                if at < len(data):
                    raise ValueError(f"{len(data) - at} bytes after the end of the answer")
                return True
        return False

    def _take_data(self, data: bytes, at: int) -> int:
        """Where the chunk, or what is there of it, ends."""
        end = min(len(data), at + self._left)
        missing = self._kept - len(self.beginning)
        if missing > 0:
            self.beginning += data[at : min(end, at + missing)]
        self._left -= end - at
        if not self._left:
            self._expected = DATA_END
        return end

    def _take_line(self, line: bytes) -> bool:
        """Whether it ends the body."""
        if self._expected == TRAILERS:
            return not line
        if self._expected == DATA_END:
            if line:
                raise ValueError("a chunk of the answer is longer than its size")
            self._expected = SIZE
            return False
        found = _SIZE.fullmatch(line)
        if found is None:
            raise ValueError("a chunk of the answer has no size")
        self._left = int(found[1], 16)
        self._expected = DATA if self._left else TRAILERS
        return False
