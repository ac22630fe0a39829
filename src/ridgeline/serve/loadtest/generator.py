"""Sends requests made beforehand over many connections, and notes when each was answered.

One thread, no event loop of a library: asyncio and epoll wake up at whole milliseconds, which is longer than
many answers take. A schedule is kept to some ten microseconds here, and a request costs about twenty.
"""

from __future__ import annotations

import gc
import select
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import perf_counter_ns, process_time_ns

from ridgeline.serve.loadtest.connections import Connection, Connector

BURST = 32  # requests sent before answers are looked at, when the schedule is behind
RETRY_NS = 5_000_000  # a closed loop opens no new connection for so long after one has failed
READ, READ_WRITE = select.EPOLLIN, select.EPOLLIN | select.EPOLLOUT
LOST = 0  # the status of a request without an answer
OVERDUE = "no answer within the time allowed"


@dataclass
class Shots:
    """The requests of a run, in the order of their answers; times since its start."""

    due_ns: list[int] = field(default_factory=list)  # when a request should have been sent
    ended_ns: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    late_ns: list[int] = field(default_factory=list)  # the generator's own lateness, of an open loop
    refusals: dict[int, bytes] = field(default_factory=dict)  # the first body of each status of an error
    problem: str = ""  # of the first connection that was lost
    window_ns: int = 0  # in which answers count for the throughput
    cpu_ns: int = 0
    gave_up: bool = False  # an answer was overdue for longer than the run's patience


class Generator:
    """Keeps its connections from run to run. Close it at the end."""

    def __init__(self, connector: Connector, requests: Sequence[bytes], *, connections: int = 512) -> None:
        self._connector, self._requests, self._limit = connector, requests, connections
        self._epoll = select.epoll()
        self._free: list[Connection] = []
        self._busy: dict[int, Connection] = {}  # the one that has waited longest first
        self._shots, self._sent, self._start_ns = Shots(), 0, 0
        self._retry_ns = 0  # when a closed loop may open a connection again

    def close(self) -> None:
        for connection in (*self._busy.values(), *self._free):
            connection.close()
        self._epoll.close()

    def open_connections(self, count: int) -> None:
        """As many as a run is likely to need. Opened in a burst they would wait until they are accepted."""
        with suppress(OSError):
            while len(self._free) < min(count, self._limit):
                self._free.append(self._open())

    def closed_loop(self, concurrency: int, seconds: float, *, patience_s: float = 30.0) -> Shots:
        """So many clients; each sends its next request when it has its answer, or has waited in vain."""
        patience = round(patience_s * 1e9)
        with self._run() as shots:
            shots.window_ns = round(seconds * 1e9)
            while (now := self._now()) < shots.window_ns or self._busy:
                self._drop_overdue(now - patience)
                while len(self._busy) < concurrency and self._may_send(now) and now < shots.window_ns:
                    if self._send(now) is None:
                        break
                    now = self._now()
                if len(self._busy) < concurrency and now < shots.window_ns:
                    # a client whose connection failed: the others' answers are read until it may try again
                    self._take_answers(0 if self._free else self._retry_ns - self._now())
                elif self._busy:
                    self._take_answers(self._oldest((), now) + patience - self._now())
        return shots

    def open_loop(
        self, due_ns: Sequence[int], *, seconds: float | None = None, patience_s: float = 30.0
    ) -> Shots:
        """Requests at these times, whatever becomes of those before: as from many users.

        Latency counts from the time in the schedule. A request that waits for a connection, because as many
        as are allowed are taken, waits as long as its user would. One that gets none for another reason is
        lost at once. `seconds` is the length of the schedule; without it the last answer is its end.
        """
        waiting: deque[int] = deque()
        count, at, patience = len(due_ns), 0, round(patience_s * 1e9)
        with self._run() as shots:
            while at < count or waiting or self._busy:
                now = self._now()
                if now - self._oldest(waiting, now) > patience:
                    shots.gave_up = True
                    break
                burst = min(count, at + BURST)
                while at < burst and due_ns[at] <= now:
                    if self._free or len(self._busy) < self._limit:
                        if (late := self._send(due_ns[at])) is not None:
                            shots.late_ns.append(late)
                    else:
                        waiting.append(due_ns[at])
                    at += 1
                overdue = self._oldest(waiting, now) + patience if self._busy else 0
                # the burst took time: `now` is over
                self._take_answers((due_ns[at] if at < count else overdue) - self._now())
                while waiting and (self._free or len(self._busy) < self._limit):
                    self._send(waiting.popleft())
            ended = self._now()
            window = ended if seconds is None else round(seconds * 1e9)
            shots.window_ns = min(window, ended) if shots.gave_up else window
            shots.due_ns += waiting
            self._lose(len(waiting))
        return shots

    @contextmanager
    def _run(self) -> Iterator[Shots]:
        """What is not answered in the end counts as lost, and its connection is closed."""
        self._shots, self._sent, self._retry_ns = Shots(), 0, 0
        self._take_answers(0)  # connections that the server has closed since the last run
        was_enabled = gc.isenabled()
        gc.disable()
        cpu = process_time_ns()
        self._start_ns = perf_counter_ns()
        try:
            yield self._shots
            self._shots.cpu_ns = process_time_ns() - cpu
        finally:
            for connection in [*self._busy.values()]:
                self._drop(connection, OVERDUE)
            if was_enabled:
                gc.enable()

    def _now(self) -> int:
        return perf_counter_ns() - self._start_ns

    def _oldest(self, waiting: Sequence[int], now: int) -> int:
        """When the request was due that has waited longest."""
        for connection in self._busy.values():
            return connection.began_ns
        return waiting[0] if waiting else now

    def _drop_overdue(self, before_ns: int) -> None:
        while self._busy and (oldest := next(iter(self._busy.values()))).began_ns < before_ns:
            self._drop(oldest, OVERDUE)

    def _may_send(self, now: int) -> bool:
        """A new connection is opened some time after a failure only: the next one is likely to fail too."""
        return bool(self._free) or now >= self._retry_ns

    def _send(self, due_ns: int) -> int | None:
        """How late it was sent; None if it could not be."""
        request = self._requests[self._sent % len(self._requests)]
        self._sent += 1
        try:
            connection = self._free.pop() if self._free else self._open()
        except OSError as error:
            self._shots.due_ns.append(due_ns)
            self._lose(1, str(error))
            return None
        connection.began_ns = due_ns
        self._busy[connection.fd] = connection
        late = self._now() - due_ns
        try:
            connection.send(request)
        except OSError as error:
            self._drop(connection, str(error))
            return None
        if connection.outgoing:
            self._epoll.modify(connection.fd, READ_WRITE)
        return late

    def _open(self) -> Connection:
        connection = self._connector.open()
        self._epoll.register(connection.fd, READ)
        return connection

    def _take_answers(self, wait_ns: int) -> None:
        """Those that are there; if none is, wait for one so long."""
        events = self._epoll.poll(0)
        if not events and wait_ns > 0:
            # select has a timeout in microseconds, and epoll's descriptor can be waited for like any other
            select.select([self._epoll], (), (), wait_ns / 1e9)
            events = self._epoll.poll(0)
        for fd, event in events:
            connection = self._busy.get(fd)
            if connection is None:
                self._forget_idle(fd)
            else:
                self._attend(connection, event)

    def _attend(self, connection: Connection, event: int) -> None:
        try:
            if connection.outgoing:
                connection.flush()
                if not connection.outgoing:
                    self._epoll.modify(connection.fd, READ)
            if not event & ~select.EPOLLOUT or not connection.receive():
                return
        except (OSError, ValueError) as error:
            self._drop(connection, str(error))
            return
        shots, reader = self._shots, connection.reader
        shots.due_ns.append(connection.began_ns)
        shots.ended_ns.append(self._now())
        shots.statuses.append(reader.status)
        if reader.status >= 300:
            shots.refusals.setdefault(reader.status, reader.body)
        del self._busy[connection.fd]
        if reader.is_last:
            self._shut(connection)
        else:
            self._free.append(connection)

    def _drop(self, connection: Connection, why: str) -> None:
        del self._busy[connection.fd]
        self._shut(connection)
        self._shots.due_ns.append(connection.began_ns)
        self._lose(1, why)

    def _lose(self, count: int, why: str = "never sent: answers fell far behind the schedule") -> None:
        if count:
            self._shots.problem = self._shots.problem or why
            self._shots.ended_ns += [self._now()] * count
            self._shots.statuses += [LOST] * count
            self._retry_ns = self._now() + RETRY_NS

    def _forget_idle(self, fd: int) -> None:
        """Unless it stays open: the server closed a connection that nothing was asked on."""
        for connection in self._free:
            if connection.fd == fd:
                if not connection.stays_open():
                    self._free.remove(connection)
                    self._shut(connection)
                return

    def _shut(self, connection: Connection) -> None:
        self._epoll.unregister(connection.fd)
        connection.close()
