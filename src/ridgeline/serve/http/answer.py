"""uvicorn's answer to one request, written at once: head and body in one call of the system, not in two."""

from __future__ import annotations

import asyncio

CONTINUE = b"HTTP/1.1 100 "


class OneWrite:
    """A transport that keeps the head of an answer until its body, or the end, is there."""

    __slots__ = ("_head", "_is_begun", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head, self._is_begun = b"", False

    def write(self, data: bytes) -> None:
        # a client that waits for leave to go on sends no body before it has it
        if self._is_begun or data.startswith(CONTINUE):
            self._transport.write(data)
        elif self._head:
            self._is_begun = True
            self._transport.writelines((self._head, data))
        else:
            self._head = data

    def flush(self) -> None:
        """The answer has no body, or is over."""
        if self._head and not self._is_begun:
            self._is_begun = True
            self._transport.write(self._head)

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()
