"""The end of an HTTP response and its status, with as little reading as that takes."""

from __future__ import annotations

LONGEST_HEAD = 65536
KEPT_BODY = 600  # of a refusal: enough for its message
_END = b"\r\n\r\n"


class ResponseReader:
    """Feed it what a connection receives. `ValueError` for bytes that are no response."""

    __slots__ = ("_chunk_end", "_head", "_is_chunked", "_remaining", "body", "is_last", "status")

    def __init__(self) -> None:
        self._head = b""
        self._remaining = -1  # of the body; -1: the head is not whole yet
        self._is_chunked = False
        self._chunk_end = b""
        self.status = 0
        self.is_last = False  # the server closes the connection after it
        self.body = b""

    def feed(self, data: bytes) -> bool:
        """Whether the response is whole."""
        if self._remaining < 0:
            data = self._head + data if self._head else data
            end = data.find(_END)
            if end < 0:
                if len(data) > LONGEST_HEAD:
                    raise ValueError("the head of the answer does not end")
                self._head = data
                return False
            self._read_head(data[:end])
            data = data[end + len(_END) :]
            if self.status < 200:
                self._head, self._remaining = b"", -1
                return self.feed(data) if data else False
        if self.status >= 300 and len(self.body) < KEPT_BODY:
            self.body += data[:KEPT_BODY]
        if self._is_chunked:
            self._chunk_end = (self._chunk_end + data)[-7:]
            return self._chunk_end.endswith(b"0\r\n\r\n") and self._chunk_end[:2] in (b"\r\n", b"0\r")
        self._remaining -= len(data)
        if self._remaining < 0:
            raise ValueError(f"{-self._remaining} bytes after the end of the answer")
        return self._remaining == 0

    def _read_head(self, head: bytes) -> None:
        if not head.startswith(b"HTTP/1.") or not head[9:12].isdigit():
            raise ValueError("the answer is not HTTP/1.1")
        self.status = int(head[9:12])
        fields = head.lower()
        self.is_last = b"\r\nconnection: close" in fields or fields.startswith(b"http/1.0")
        at = fields.find(b"\r\ncontent-length:")
        if at >= 0:
            self._remaining = int(fields[at + 17 : at + 40].split(b"\r", 1)[0])
        elif b"\r\ntransfer-encoding: chunked" in fields:
            self._remaining, self._is_chunked = 0, True
        elif self.status < 200 or self.status == 204:
            self._remaining = 0
        else:
            raise ValueError("the answer has no length")
