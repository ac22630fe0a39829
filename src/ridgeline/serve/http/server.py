"""uvicorn inside an event loop of ours: listening, draining and stopping in order. No signals, no exits."""

from __future__ import annotations

import asyncio
import socket
import ssl as tls
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import Any

from uvicorn.config import Config

from ridgeline.errors import OptionError
from ridgeline.serve.http.open_files import room_for
from ridgeline.serve.http.protocol import BoundedProtocol, Connections
from ridgeline.serve.settings import Settings, Tls

App = Callable[[Any, Any, Any], Awaitable[None]]
BACKLOG = 2048
HANDSHAKE_S = 10.0
IDLE_LINGER_S = 1.0  # a client may just have sent a request on a connection that looks idle
CANCEL_S = 1.0  # for answers that say that the server stops
STEP_S = 0.01


def tls_context(settings: Tls) -> tls.SSLContext:
    context = tls.SSLContext(tls.PROTOCOL_TLS_SERVER)
    context.minimum_version = tls.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.certificate, settings.key)
        if settings.client_ca is not None:
            context.load_verify_locations(settings.client_ca)
            context.verify_mode = tls.CERT_REQUIRED
    except (OSError, tls.SSLError) as error:
        raise OptionError("the certificates for TLS cannot be read", got=str(error)) from error
    return context


class HttpServer:
    """One listener. `start`, then `drain`, `close` and `stop`, or `stop` alone."""

    def __init__(
        self,
        app: App,
        settings: Settings,
        host: str,
        port: int,
        *,
        reuse_port: bool = False,
        ssl: tls.SSLContext | None = None,
    ) -> None:
        self._app, self._limits = app, settings.limits
        self._host, self._port, self._reuse_port, self._ssl = host, port, reuse_port, ssl
        self._state = Connections(settings.limits)
        self._listener: asyncio.Server | None = None
        self._socket: socket.socket | None = None
        self._clock: asyncio.TimerHandle | None = None
        self._config = Config(
            app,
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            forwarded_allow_ips=[],
            workers=1,
        )
        self._config.load()
        # uvicorn counts in whole seconds
        self._config.timeout_keep_alive = settings.limits.keep_alive_seconds  # type: ignore[assignment]

    async def start(self) -> int:
        """The port that it listens on."""
        loop = asyncio.get_running_loop()
        self._state.most_connections = room_for(self._limits.connections)
        self._socket = _bound(self._host, self._port, reuse_port=self._reuse_port)
        self._tell_time(loop)
        self._listener = await loop.create_server(
            self._connection,
            sock=self._socket.dup(),
            ssl=self._ssl,
            backlog=BACKLOG,
            ssl_handshake_timeout=HANDSHAKE_S if self._ssl else None,
        )
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        return len(self._state.connections)

    def drain(self) -> None:
        """Every answer from now on is its connection's last; new connections are still taken."""
        self._state.is_draining = True
        for each in self._protocols():
            each.begin_drain()

    async def close(self) -> None:
        """No connection is taken from now on. Those that the system took already are served, not reset."""
        if self._listener is not None and self._socket is not None:
            listener, listening = self._listener, self._socket
            self._listener = self._socket = None
            listener.close()
            taken = close_listening(listening)
            for each in taken:
                if self._ssl is None:
                    await asyncio.get_running_loop().connect_accepted_socket(self._connection, each)
                else:
                    each.close()  # before its handshake it has asked for nothing
        # only now: clients that are told to come back on another connection must find none here
        self.drain()

    async def stop(self, grace: float) -> None:
        """What is under way may end within `grace` seconds; then it is told that the server stops."""
        await self.close()
        loop = asyncio.get_running_loop()
        end = loop.time() + grace
        linger_end = min(end, loop.time() + IDLE_LINGER_S)
        if grace:
            await asyncio.sleep(STEP_S)  # connections that were taken just now are made
        while self._state.connections and loop.time() < end:
            if loop.time() >= linger_end:
                self._close_idle()
            await asyncio.sleep(STEP_S)
        tasks = set(self._state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_S)
        self._close_idle()
        await self._gone(CANCEL_S if tasks else STEP_S)
        for each in self._protocols():
            each.transport.abort()
        await self._gone(CANCEL_S)
        if self._clock is not None:
            self._clock.cancel()

    async def _gone(self, limit_s: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + limit_s
        while self._state.connections and loop.time() < end:
            await asyncio.sleep(STEP_S)

    def _connection(self) -> BoundedProtocol:
        return BoundedProtocol(self._config, self._state, {})

    def _protocols(self) -> list[BoundedProtocol]:
        return [each for each in self._state.connections if isinstance(each, BoundedProtocol)]

    def _close_idle(self) -> None:
        for each in self._protocols():
            if each.is_idle:
                each.transport.close()

    def _tell_time(self, loop: asyncio.AbstractEventLoop) -> None:
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        self._clock = loop.call_later(1.0, self._tell_time, loop)


def close_listening(listening: socket.socket) -> list[socket.socket]:
    """What has connected before the end. Nothing connects between the last of them and the end.

    A socket that is closed resets the connections in its queue, whose clients may have sent requests. So the
    queue is cut down to one place, emptied, and its place taken by a connection of our own.
    """
    taken: list[socket.socket] = []
    with listening:
        listening.listen(0)
        for _ in range(2 * BACKLOG):
            try:
                connection, _ = listening.accept()
            except OSError:
                if _fills(listening):
                    break
            else:
                connection.setblocking(False)
                taken.append(connection)
    return taken


def _fills(listening: socket.socket) -> bool:
    """Whether a connection of our own came to be: then no other can."""
    host, *rest = listening.getsockname()
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    with socket.socket(listening.family, socket.SOCK_STREAM) as own:
        own.setblocking(False)
        own.connect_ex((host, *rest))
        try:
            own.getpeername()
        except OSError:
            return False
        # it stays in the queue as it is closed
        return True


def _bound(host: str, port: int, *, reuse_port: bool) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # of a name with addresses of both families the older one: what clients try first differs
        family, kind, protocol, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
        listening = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise OptionError(f"{host} is no address to listen on", got=str(error)) from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.setblocking(False)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise OptionError(
            f"{host}:{port} cannot be listened on",
            got=str(error),
            help="choose another port; 0 is a free one",
        ) from error
    return listening
