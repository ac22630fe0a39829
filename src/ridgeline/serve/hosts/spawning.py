"""The server's side of the spawner: workers are forked from it in milliseconds, and it tells how they end."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
from typing import Any

import msgspec

from ridgeline.serve.hosts.spawner_messages import PACKET_BYTES, Exited, Fork, Forked, Kill, Packet, Ready

START_SECONDS = 120.0  # PyTorch from a cold disk
STOP_SECONDS = 5.0
# ONNX Runtime's uploader and OpenBLAS's pool are threads, which a fork would lose; and nothing is uploaded
LOG_JSON = "--log-json"
COMMAND = ("env", "ORT_DISABLE_TELEMETRY=1", "OPENBLAS_NUM_THREADS=1")
_log = logging.getLogger(__name__)


class SpawnError(Exception):
    """There is no process to fork from, or no worker could be forked."""


class Child:
    """A worker process."""

    def __init__(self, spawner: Spawner, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self._spawner, self.number = spawner, number
        self.pid: asyncio.Future[int] = loop.create_future()
        self.exited: asyncio.Future[str] = loop.create_future()  # in words: by which signal, or status

    def kill(self) -> None:
        """At once. `exited` tells when it is over."""
        if not self.exited.done():
            self._spawner.kill(self.number)


class Spawner:
    """One for a server. It is started again when it is needed and gone."""

    def __init__(self, *, log_json: bool = False) -> None:
        """`log_json`: what workers log, they log as the server does."""
        self._log_json = log_json
        self._process: subprocess.Popen[bytes] | None = None
        self._ending: asyncio.Future[None] | None = None
        self._socket: socket.socket | None = None
        self._ready: asyncio.Future[None] | None = None
        self._children: dict[int, Child] = {}
        self._next = 0
        self._is_over = False
        self._decoder = msgspec.msgpack.Decoder[Ready | Forked | Exited](Ready | Forked | Exited)

    async def start(self) -> None:
        """Return when workers can be forked."""
        if self._is_over:
            raise SpawnError("the server stops: no worker is forked any more")
        if self._ready is None:
            self._start()
        assert self._ready is not None, "it was started"
        try:
            await asyncio.wait_for(asyncio.shield(self._ready), START_SECONDS)
        except TimeoutError:
            raise SpawnError(
                f"the process that forks workers was not ready in {START_SECONDS:.0f} s"
            ) from None

    async def fork(self, device: str, sock: socket.socket, limit_bytes: int) -> Child:
        """A worker at the other end of `sock`, which the caller closes."""
        await self.start()
        assert self._socket is not None, "it was started"
        number, self._next = self._next, self._next + 1
        child = self._children[number] = Child(self, number, asyncio.get_running_loop())
        packet = msgspec.msgpack.encode(Fork(number, device, limit_bytes))
        try:
            socket.send_fds(self._socket, [packet], [sock.fileno()])
        except OSError as error:
            self._lose()
            raise SpawnError(f"the process that forks workers is gone: {error}") from error
        either: list[asyncio.Future[Any]] = [child.pid, child.exited]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not child.pid.done():
            raise SpawnError(f"the worker {child.exited.result()}")
        return child

    def kill(self, number: int) -> None:
        if self._socket is not None:
            try:
                self._socket.send(msgspec.msgpack.encode(Kill(number)))
            except OSError:
                self._lose()

    async def stop(self) -> None:
        """Workers that are left end with it."""
        self._is_over = True
        self._lose()
        if self._ending is not None:
            await self._ending

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # -P: modules of the folder that the server was started in are none of ours
            python = [sys.executable, "-P", "-m", "ridgeline.serve.hosts.spawner", str(theirs.fileno())]
            command = [*COMMAND, *python, *([LOG_JSON] if self._log_json else [])]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        ours.setblocking(False)
        self._socket = ours
        self._ready = loop.create_future()
        self._ready.add_done_callback(_retrieve)
        loop.add_reader(ours, self._on_readable)

    def _on_readable(self) -> None:
        while self._socket is not None:
            try:
                data = self._socket.recv(PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._lose()
                return
            self._take(self._decoder.decode(data))

    def _take(self, packet: Packet) -> None:
        if isinstance(packet, Ready):
            assert self._ready is not None, "it was started"
            self._ready.set_result(None)
            if len(packet.threads) > 1:
                _log.warning("workers are forked from a process with threads: %s", packet.threads)
        elif isinstance(packet, Forked):
            self._children[packet.number].pid.set_result(packet.pid)
        elif isinstance(packet, Exited):
            self._children.pop(packet.number).exited.set_result(packet.text)

    def _lose(self) -> None:
        """Its workers end with it."""
        if self._socket is None:
            return
        assert self._process is not None, "its socket is there"
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        self._socket.close()
        self._ending = loop.run_in_executor(None, _end, self._process)
        self._socket = self._process = None
        ready, self._ready = self._ready, None
        if ready is not None and not ready.done():
            ready.set_exception(SpawnError("the process that forks workers ended while it started"))
        children, self._children = self._children, {}
        for child in children.values():
            child.exited.set_result("ended with the process that it was forked from")


def _end(process: subprocess.Popen[bytes]) -> None:
    """It ends by itself when its socket is closed."""
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _retrieve(future: asyncio.Future[None]) -> None:
    """Nobody need wait for it."""
    if not future.cancelled():
        future.exception()
