"""All that a server listens at: its front end, or several processes of it; metrics; admin calls."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from ridgeline.errors import OptionError
from ridgeline.serve.access import Access, why_not_serve
from ridgeline.serve.front_ends.front_end import FrontEnd, Ports
from ridgeline.serve.front_ends.link import FrontEndLink
from ridgeline.serve.front_ends.process import Setup, encode_setup
from ridgeline.serve.front_ends.wire import Close, Serving, Stop
from ridgeline.serve.http.app import HttpApp
from ridgeline.serve.http.server import HttpServer, tls_context
from ridgeline.serve.link.channel import socket_pair
from ridgeline.serve.server import Server
from ridgeline.serve.settings import Keys, Settings

START_SECONDS = 30.0
AGAIN_SECONDS = 1.0  # after a front-end process has died
_log = logging.getLogger(__name__)


class Listeners:
    def __init__(self, server: Server, settings: Settings) -> None:
        self._server, self._settings = server, settings
        self._ports = Ports(settings.http_port, settings.grpc_port)
        self._own: FrontEnd | None = None
        self._processes: FrontEndProcesses | None = None
        self._beside: dict[str, tuple[HttpServer, int]] = {}

    async def start(self) -> None:
        settings = self._settings
        access = Access(settings.keys)
        if refused := why_not_serve(settings.host, admin=settings.mode == "explicit", keys=settings.keys):
            raise OptionError(refused)
        for warning in access.warnings():
            _log.warning("%s", warning)
        if settings.http_workers == 1:
            self._own = FrontEnd(self._server, settings, access, ports=self._ports, shares_ports=False)
            self._ports = await self._own.start()
        else:
            self._processes = FrontEndProcesses(self._server, settings)
            self._ports = await self._processes.start()
        if settings.metrics_port is not None:
            # scrapers have no key, and metrics have a port of their own to be kept inside
            app = HttpApp(self._server, settings, Access(Keys()), inference=False, metrics=True)
            await self._listen_beside(
                "metrics", HttpServer(app, settings, settings.host, settings.metrics_port)
            )
        if settings.admin_port is not None and settings.mode == "explicit":
            app = HttpApp(self._server, settings, access, admin=True, inference=False)
            tls = None if settings.tls is None else tls_context(settings.tls)
            await self._listen_beside(
                "admin", HttpServer(app, settings, settings.host, settings.admin_port, ssl=tls)
            )

    async def _listen_beside(self, name: str, server: HttpServer) -> None:
        self._beside[name] = (server, await server.start())

    @property
    def ports(self) -> dict[str, int]:
        """By name, those that are listened at."""
        known = {"http": self._ports.http, "grpc": self._ports.grpc}
        beside = {name: port for name, (_, port) in self._beside.items()}
        return {name: port for name, port in known.items() if port is not None} | beside

    def addresses(self) -> Iterator[str]:
        for name, port in self.ports.items():
            yield f"{name:<8} {self._settings.host}:{port}"

    async def set_serving(self, *, is_serving: bool) -> None:
        if self._own is not None:
            self._own.set_serving(is_serving=is_serving)
        if self._processes is not None:
            self._processes.tell(Serving(is_serving))

    async def close(self) -> None:
        """Take no new connections, and answer what is under way. Metrics and admin go on."""
        seconds = self._settings.drain_seconds
        if self._own is not None:
            await self._own.close(seconds)
        if self._processes is not None:
            await self._processes.close(seconds)

    async def stop(self) -> None:
        if self._own is not None:
            await self._own.close(0.0)
        if self._processes is not None:
            await self._processes.stop()
        for server, _ in self._beside.values():
            await server.stop(0.0)


@dataclass(eq=False)
class Running:
    process: asyncio.subprocess.Process
    link: FrontEndLink


class FrontEndProcesses:
    """Processes that share the ports; one that dies is started again."""

    def __init__(self, server: Server, settings: Settings) -> None:
        self._server, self._settings = server, settings
        self._running: list[Running] = []
        self._watches: set[asyncio.Task[None]] = set()
        self._is_serving = self._is_closing = False
        self._kept: list[socket.socket] = []  # bound, not listening: so that the ports stay ours

    async def start(self) -> Ports:
        self._ports = Ports(self._reserve(self._settings.http_port), self._reserve(self._settings.grpc_port))
        await asyncio.gather(*(self._start_one() for _ in range(self._settings.http_workers)))
        return self._ports

    def _reserve(self, port: int | None) -> int | None:
        if port is None:
            return None
        family = socket.AF_INET6 if ":" in self._settings.host else socket.AF_INET
        kept = socket.socket(family, socket.SOCK_STREAM)
        self._kept.append(kept)
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            kept.bind((self._settings.host, port))
        except OSError as error:
            raise OptionError(f"cannot listen on {self._settings.host}:{port}", got=str(error)) from error
        return int(kept.getsockname()[1])

    async def _start_one(self) -> None:
        """`OptionError` or `OSError` if it does not start; then nothing of it is left."""
        ours, theirs = socket_pair()
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-P", "-m", "ridgeline.serve.front_ends.process", str(theirs.fileno()),
                    stdin=asyncio.subprocess.PIPE, pass_fds=(theirs.fileno(),),
                )  # fmt: skip
        except BaseException:
            ours.close()
            raise
        running = Running(process, FrontEndLink(ours, self._server, copies=self._settings.in_process))
        try:
            await self._wait_started(running)
        except BaseException:
            with suppress(ProcessLookupError):
                process.kill()
            running.link.channel.close()
            await process.wait()
            raise
        self._running.append(running)
        watch = asyncio.ensure_future(self._watch(running))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)
        running.link.channel.send(Close() if self._is_closing else Serving(self._is_serving))

    async def _wait_started(self, running: Running) -> None:
        process, link = running.process, running.link
        assert process.stdin is not None, "it was asked for"
        process.stdin.write(encode_setup(Setup(self._settings, self._ports)) + b"\n")
        process.stdin.close()
        try:
            await asyncio.wait_for(link.has_started.wait(), START_SECONDS)
        except TimeoutError:
            raise OptionError(f"a front-end process was not ready in {START_SECONDS:.0f} s") from None
        if link.is_lost.is_set():
            raise OptionError(f"a front-end process ended with status {await process.wait()} as it started")

    async def _watch(self, running: Running) -> None:
        """Start another when it has ended, which is watched by itself."""
        await running.link.is_lost.wait()
        status = await running.process.wait()
        if self._is_closing:
            return
        _log.error("a front-end process ended with status %d", status)
        self._running.remove(running)
        while True:
            await asyncio.sleep(AGAIN_SECONDS)
            if self._is_closing:
                return
            try:
                await self._start_one()
            except (OptionError, OSError) as error:
                _log.error("%s", error)
            else:
                return

    def tell(self, order: Serving | Close | Stop) -> None:
        if isinstance(order, Serving):
            self._is_serving = order.is_serving
        for each in self._running:
            each.link.channel.send(order)

    async def close(self, seconds: float) -> None:
        self._is_closing = True
        self.tell(Close())
        waits = [asyncio.ensure_future(each.link.has_closed.wait()) for each in self._running]
        if waits:
            _, late = await asyncio.wait(waits, timeout=seconds + AGAIN_SECONDS)
            for each in late:
                each.cancel()

    async def stop(self) -> None:
        self._is_closing = True
        for watch in list(self._watches):
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        self.tell(Stop())
        for each in self._running:
            try:
                await asyncio.wait_for(each.process.wait(), START_SECONDS)
            except TimeoutError:
                each.process.kill()
                await each.process.wait()
            each.link.channel.close()
        for kept in self._kept:
            kept.close()
