"""The process that workers are forked from: it has imported everything, started no thread, touched no GPU.

    python -m ridgeline.serve.hosts.spawner DESCRIPTOR [--log-json]

The descriptor is a socket to the server. The process ends when the server's end does, and workers with it.
"""

from __future__ import annotations

import gc
import logging
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from ridgeline.serve.hosts.spawner_messages import PACKET_BYTES, Exited, Fork, Forked, Kill, Packet, Ready
from ridgeline.serve.hosts.worker import work
from ridgeline.serve.log import log_to_stderr

FORK_FAILED = 71  # EX_OSERR
WORKER_FAILED = 70  # EX_SOFTWARE
_log = logging.getLogger(__name__)


class Spawner:
    """Forks workers on request, and tells how they end."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._woken, self._wake = socket.socketpair()
        for sock in (self._woken, self._wake):
            sock.setblocking(False)
        self._decoder = msgspec.msgpack.Decoder[Fork | Kill](Fork | Kill)
        self._numbers: dict[int, int] = {}  # pid to number

    def serve(self) -> None:
        """Return when the server is gone."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        self._tell(Ready(native_threads()))
        while True:
            readable, _, _ = select.select([self._control, self._woken], [], [])
            if self._woken in readable:
                with suppress(BlockingIOError):
                    self._woken.recv(PACKET_BYTES)
                self._reap()
            if self._control in readable and not self._take_request():
                return

    def end(self) -> None:
        for pid in self._numbers:
            os.kill(pid, signal.SIGKILL)

    def _take_request(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self._control, PACKET_BYTES, 1)
        if not data:
            return False
        request = self._decoder.decode(data)
        if isinstance(request, Fork):
            self._fork(request, socket.socket(fileno=descriptors[0]))
        else:
            for pid, number in self._numbers.items():
                if number == request.number:
                    os.kill(pid, signal.SIGKILL)  # not reaped yet, so the pid is still its own
        return True

    def _fork(self, request: Fork, sock: socket.socket) -> None:
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            sock.close()
            self._tell(Exited(request.number, FORK_FAILED, str(error)))
            return
        if not pid:
            self._become_worker(request, sock, parent)
        sock.close()
        self._numbers[pid] = request.number
        self._tell(Forked(request.number, pid))

    def _become_worker(self, request: Fork, sock: socket.socket, parent: int) -> None:
        status = WORKER_FAILED
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for other in (self._control, self._woken, self._wake):
                other.close()
            work(sock, request.device, request.limit_bytes, parent)
            status = 0
        except BaseException:
            _log.exception("the worker for %s failed", request.device)
        finally:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
            os._exit(status)  # threads may still compute, and nobody waits for them

    def _reap(self) -> None:
        for pid, number in list(self._numbers.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._numbers[pid]
                self._tell(Exited(number, os.waitstatus_to_exitcode(status)))

    def _tell(self, packet: Packet) -> None:
        with suppress(OSError):  # the server is gone: the next read tells
            self._control.send(msgspec.msgpack.encode(packet))


def native_threads() -> list[str]:
    """Names of this process's threads as the system has them; none where it does not tell."""
    tasks = Path("/proc/self/task")
    return [(task / "comm").read_text().strip() for task in tasks.iterdir()] if tasks.is_dir() else []


def leave_signals_to_the_server() -> None:
    """It decides when this process and its workers end, not a signal to a whole group."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def main(descriptor: int, *, log_json: bool) -> None:
    leave_signals_to_the_server()
    log_to_stderr(as_json=log_json)
    # what is here stays for ever: a collector that looked at it would copy its pages in every worker
    gc.collect()
    gc.freeze()
    spawner = Spawner(socket.socket(fileno=descriptor))
    try:
        spawner.serve()
    finally:
        spawner.end()
        os._exit(0)  # there is nothing to tidy up, and libraries would take their time


if __name__ == "__main__":
    main(int(sys.argv[1]), log_json="--log-json" in sys.argv[2:])
