"""Connections of the load generator: raw sockets that are never waited for."""

from __future__ import annotations

import errno
import os
import resource
import socket
import ssl
from pathlib import Path
from typing import Any

from ridgeline.errors import OptionError
from ridgeline.serve.clients.address import Address
from ridgeline.serve.clients.client import trusted_by
from ridgeline.serve.loadtest.response import ResponseReader

CHUNK = 65536
CONNECT_S = 5.0
OTHER_FILES = 64  # that are open beside the connections, and some to spare
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def require_connections(count: int, *, option: str) -> None:
    """Refuses more connections than this process may have files open, beside its others."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = allowed - OTHER_FILES
    if allowed != resource.RLIM_INFINITY and count > room:
        raise OptionError(
            f"{option} asks for more connections than this process may open", got=f"{count:,}",
            want=f"at most {max(room, 0):,}", help=f"ulimit -n {count + OTHER_FILES} allows as many files",
        )  # fmt: skip


class Connection:
    """One request at a time. `OSError` and `ValueError` mean that it is lost."""

    __slots__ = ("began_ns", "fd", "outgoing", "reader", "socket")

    def __init__(self, made: socket.socket) -> None:
        self.socket, self.fd = made, made.fileno()
        self.outgoing = memoryview(b"")  # of the request: what the socket did not take yet
        self.reader = ResponseReader()
        self.began_ns = 0

    def send(self, request: bytes) -> None:
        self.reader = ResponseReader()
        self.outgoing = memoryview(request)
        self.flush()

    def flush(self) -> None:
        try:
            while self.outgoing:
                self.outgoing = self.outgoing[self.socket.send(self.outgoing) :]
        except _NOT_NOW:
            return

    def receive(self) -> bool:
        """Whether the answer is whole."""
        try:
            data = self.socket.recv(CHUNK)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            is_whole = self.reader.feed(data)
            # bytes that TLS has decrypted already do not show in the socket
            while not is_whole and isinstance(self.socket, ssl.SSLSocket) and self.socket.pending():
                is_whole = self.reader.feed(self.socket.recv(CHUNK))
        except _NOT_NOW:
            return False
        return is_whole

    def stays_open(self) -> bool:
        """Of one that is readable although nothing was asked on it. TLS sends session tickets by itself."""
        try:
            self.socket.recv(1)
        except _NOT_NOW:
            return True
        except OSError:
            return False
        return False  # it was closed, or holds an answer to nothing

    def close(self) -> None:
        self.socket.close()


class Connector:
    """Opens connections to one server.

    The first finds which address of a name answers, and is waited for. With TLS each one is waited for, and
    its handshake.
    """

    def __init__(self, address: Address, ca: Path | None = None) -> None:
        self._address = address
        self._tls = trusted_by(ca) if address.tls else None
        self._found: tuple[socket.AddressFamily, Any] | None = None

    def open(self) -> Connection:
        made = self._connecting() if self._found is not None and self._tls is None else self._connected()
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                made = self._tls.wrap_socket(made, server_hostname=self._address.host)
            made.setblocking(False)
        except BaseException:
            made.close()
            raise
        return Connection(made)

    def _connected(self) -> socket.socket:
        made = socket.create_connection((self._address.host, self._address.port), timeout=CONNECT_S)
        self._found = made.family, made.getpeername()
        return made

    def _connecting(self) -> socket.socket:
        """Not waited for: a server whose queue of new connections is full keeps them there for seconds."""
        assert self._found is not None, "the first connection has found it"
        family, place = self._found
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setblocking(False)
        problem = made.connect_ex(place)
        if problem not in (0, errno.EINPROGRESS):
            made.close()
            raise OSError(problem, os.strerror(problem))
        return made
