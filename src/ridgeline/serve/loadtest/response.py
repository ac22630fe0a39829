"""The end of an HTTP response and its status, with as little reading as that takes."""

from __future__ import annotations

from ridgeline.serve.loadtest.chunks import ChunkReader

LONGEST_HEAD = 65536
KEPT_BODY = 600  # of a refusal: enough for its message
NO_CONTENT = (204, 304)
_END = b"\r\n\r\n"
# searched for in the whole head, in small letters: most heads have one of them
CONNECTION, CODING, LENGTH = b"\r\nconnection:", b"\r\ntransfer-encoding:", b"\r\ncontent-length:"


class ResponseReader:
    """Feed it what a connection receives. `ValueError` for bytes that are no response."""

    __slots__ = ("_chunks", "_head", "_remaining", "body", "is_last", "status")

    def __init__(self) -> None:
        self._head = b""
        self._remaining = -1  # of the body; -1: the head is not whole yet
        self._chunks: ChunkReader | None = None
        self.status = 0
        self.is_last = False  # the server closes the connection after it
        self.body = b""  # of a refusal, its beginning

    def feed(self, data: bytes) -> bool:
        """Whether the response is whole."""
        while self._remaining < 0:
            data = self._head + data if self._head else data
            end = data.find(_END)
            if end < 0:
                if len(data) > LONGEST_HEAD:
                    raise ValueError("the head of the answer does not end")
                self._head = data
                return False
            self._read_head(data[:end])
            self._head, data = b"", data[end + len(_END) :]
        if self._chunks is not None:
            is_whole = self._chunks.feed(data)
            self.body = self._chunks.beginning
            return is_whole
        if self.status >= 300 and len(self.body) < KEPT_BODY:
            self.body += data[:KEPT_BODY]
        self._remaining -= len(data)
        if self._remaining < 0:
            raise ValueError(f"{-self._remaining} bytes after the end of the answer")
        return self._remaining == 0

    def _read_head(self, head: bytes) -> None:
        """The head of an interim response, such as 100 Continue, leaves the next one to be read."""
        if not head.startswith(b"HTTP/1.") or not head[9:12].isdigit():
            raise ValueError("the answer is not HTTP/1.1")
        self.status = int(head[9:12])
        if self.status < 200:
            return
        lowered = head.lower()
        self.is_last = lowered.startswith(b"http/1.0") or (
            CONNECTION in lowered and b"close" in _value(lowered, CONNECTION)
        )
        if self.status in NO_CONTENT:
            self._remaining = 0
        elif CODING in lowered and _value(lowered, CODING).endswith(b"chunked"):
            self._remaining, self._chunks = 0, ChunkReader(kept=KEPT_BODY if self.status >= 300 else 0)
        elif (length := _value(lowered, LENGTH)).isdigit():
            self._remaining = int(length)
        else:
            raise ValueError("the answer has no length")


def _value(head: bytes, field: bytes) -> bytes:
    return head.partition(field)[2].partition(b"\r")[0].strip()
