"""A front-end process: `python -m ridgeline.serve.front_ends.process DESCRIPTOR`, started by the server.

It reads the settings as one line of JSON, listens at ports that others listen at too, and ends when the
server does.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec

from ridgeline.serve.access import Access
from ridgeline.serve.front_ends.front_end import FrontEnd, Ports
from ridgeline.serve.front_ends.remote_service import RemoteService
from ridgeline.serve.front_ends.wire import Close, Closed, Serving, Started, Stop
from ridgeline.serve.log import log_to_stderr
from ridgeline.serve.loops import run_loop
from ridgeline.serve.settings import Settings


class Setup(msgspec.Struct):
    settings: Settings
    ports: Ports


def encode_setup(setup: Setup) -> bytes:
    return msgspec.json.encode(setup, enc_hook=str)


def decode_setup(line: bytes) -> Setup:
    return msgspec.json.decode(line, type=Setup, dec_hook=_read_path)


def _read_path(kind: type, value: Any) -> Any:
    assert kind is Path, f"settings hold a {kind}"
    return Path(value)


async def serve(sock: socket.socket, setup: Setup) -> int:
    """Until the server says stop, or is gone."""
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, lambda: None)  # the server decides when this ends
    settings, orders = setup.settings, asyncio.Queue[Any]()
    service = RemoteService(sock, on_order=orders.put_nowait, on_closed=lambda _: orders.put_nowait(Stop()))
    front_end = FrontEnd(service, settings, Access(settings.keys), ports=setup.ports, shares_ports=True)
    await front_end.start()
    service.channel.send(Started())
    closing: asyncio.Task[None] | None = None
    while not isinstance(order := await orders.get(), Stop):
        if isinstance(order, Serving):
            front_end.set_serving(is_serving=order.is_serving)
        elif isinstance(order, Close) and closing is None:
            closing = asyncio.ensure_future(_close(front_end, service, settings.drain_seconds))
    if closing is not None:
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
    await front_end.close(0.0)
    service.channel.close()
    return 0


async def _close(front_end: FrontEnd, service: RemoteService, seconds: float) -> None:
    await front_end.close(seconds)
    service.channel.send(Closed())


if __name__ == "__main__":
    given = decode_setup(sys.stdin.buffer.readline())
    log_to_stderr(as_json=given.settings.log_json)
    sys.exit(run_loop(serve(socket.socket(fileno=int(sys.argv[1])), given)))
