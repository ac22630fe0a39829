"""Runs a server until a signal ends it: listeners up, models loaded, ready; then drained, in that order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import Callable

from ridgeline.serve.front_ends.listeners import Listeners
from ridgeline.serve.hosts.hosts import Hosts, MakeHost
from ridgeline.serve.hosts.spawning import Spawner
from ridgeline.serve.hosts.worker_host import WorkerHost
from ridgeline.serve.log import log_to_stderr
from ridgeline.serve.loops import run_loop
from ridgeline.serve.server import Server
from ridgeline.serve.settings import Settings

SIGNALS = (signal.SIGTERM, signal.SIGINT)
DONE, LOST = 0, 1
_log = logging.getLogger(__name__)

Say = Callable[[str], None]


def run_server(settings: Settings, *, say: Say, make_host: MakeHost | None = None, notify: str = "") -> int:
    """The exit status: 0 if every request that was accepted got its answer.

    `make_host` gives the host of a device; without it engines live in worker processes.
    """
    log_to_stderr(as_json=settings.log_json)
    return run_loop(_serve(settings, make_host, say, notify))


def worker_hosts(settings: Settings) -> Hosts:
    """A worker process for each device, forked from a process that has imported everything."""
    spawner = Spawner(log_json=settings.log_json)
    return Hosts(
        settings,
        lambda device: WorkerHost(device, spawner, batch_seconds=settings.batch_seconds),
        start=spawner.start,
        stop=spawner.stop,
    )


async def _serve(settings: Settings, make_host: MakeHost | None, say: Say, notify: str) -> int:
    loop, ends = asyncio.get_running_loop(), asyncio.Queue[signal.Signals]()
    for each in SIGNALS:
        loop.add_signal_handler(each, ends.put_nowait, each)
    server = Server(settings, worker_hosts(settings) if make_host is None else Hosts(settings, make_host))
    listeners = Listeners(server, settings)
    try:
        await listeners.start()
        for line in listeners.addresses():
            say(line)
        loading = asyncio.ensure_future(_load(server, listeners, say, notify))
        end = asyncio.ensure_future(ends.get())
        await asyncio.wait((loading, end), return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()  # an error of the start ends the server
        await end
        tell(notify, "STOPPING=1")
        say(f"{end.result().name}: draining ({server.requests} requests under way)")
        return await _drain(server, listeners, loading, ends)
    finally:
        await listeners.stop()
        await server.stop()


async def _load(server: Server, listeners: Listeners, say: Say, notify: str) -> None:
    await server.start()
    # what is here now stays: a collection that went through it would be felt by whoever asks meanwhile
    gc.collect()
    gc.freeze()
    await listeners.set_serving(is_serving=True)
    for line in server.views.summary():
        say(line)
    status = "ready" if await server.ask("ready") else "not ready: see the models above"
    say(status)
    # a model that cannot be loaded keeps none of the others back, and no unit that needs those
    tell(notify, f"READY=1\nSTATUS={status}")


async def _drain(
    server: Server, listeners: Listeners, loading: asyncio.Future[None], ends: asyncio.Queue[signal.Signals]
) -> int:
    """Not ready first, then no new connections, then no requests; a second signal ends it at once."""
    loading.cancel()  # it would say that the server serves, and that it is ready

    async def orderly() -> bool:
        await listeners.set_serving(is_serving=False)
        server.begin_drain()
        await asyncio.sleep(server.settings.grace_seconds)
        closing = asyncio.ensure_future(listeners.close())
        await asyncio.wait((closing,), timeout=server.settings.drain_seconds)
        if late := server.requests:  # their time is over: they are told that the server stops
            _log.warning("%d requests were not answered in %g s", late, server.settings.drain_seconds)
        await closing
        return not late and await server.drain()

    drained = asyncio.ensure_future(orderly())
    again = asyncio.ensure_future(ends.get())
    await asyncio.wait((drained, again), return_when=asyncio.FIRST_COMPLETED)
    for task in (loading, again, drained):
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
    return DONE if not drained.cancelled() and drained.result() else LOST


def tell(notify: str, state: str) -> None:
    """The service manager, as sd_notify does: one datagram to the socket it named."""
    if not notify:
        return
    address = "\0" + notify[1:] if notify.startswith("@") else notify
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        try:
            told.sendto(state.encode(), address)
        except OSError as error:
            _log.warning("the service manager cannot be told %s: %s", state, error)
