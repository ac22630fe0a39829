"""Servers for tests: a whole server on a thread of this process, with real engines and real sockets."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeVar

import numpy as np
import onnx

import ridgeline
from ridgeline.runtime.engine import Engine
from ridgeline.serve.clients.client import Client
from ridgeline.serve.front_ends.listeners import Listeners
from ridgeline.serve.hosts.hosts import Hosts
from ridgeline.serve.hosts.thread_host import ThreadHost
from ridgeline.serve.server import Server
from ridgeline.serve.settings import Settings

T = TypeVar("T")
START_S, ANSWER_S = 60.0, 30.0
MODELS = {
    # a version of a model says which it is: y = x · w + SHIFT
    "affine": """<ir_version: 8, opset_import: ["" : 18]>
affine (float[batch, 4] x) => (float[batch, 4] y) <float shift = {{{shift}}}> {{
  h = Relu (x)
  y = Add (h, shift)
}}""",
    "negate": """<ir_version: 8, opset_import: ["" : 18]>
negate (float[batch, 4] a) => (float[batch, 4] b) {{ b = Neg (a) }}""",
}


@cache
def engine_file(model: str, shift: float = 0.0) -> Path:
    """Built once for all tests of a process."""
    proto = onnx.parser.parse_model(MODELS[model].format(shift=shift))
    path = Path(mkdtemp(prefix="ridgeline-serve-")) / f"{model}.ridge"
    ridgeline.build(proto, profiles={"batch": "1..8..8"}, level=0, threads=1, verify="off").save(path)
    return path


def engine(model: str, shift: float = 0.0) -> Engine:
    return ridgeline.load(engine_file(model, shift))


def put_model(
    root: Path, name: str, *, model: str = "affine", shift: float = 0.0, version: int = 1, config: str = ""
) -> Path:
    """A version of a model, in place all at once."""
    folder = root / name / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    if config:
        (root / name / "config.pbtxt").write_text(config, encoding="utf-8")
    part = folder / ".model.ridge.part"
    shutil.copyfile(engine_file(model, shift), part)
    part.rename(folder / "model.ridge")
    return folder


class Running:
    """A server, and the thread whose loop it lives on."""

    def __init__(self, settings: Settings, hosts_of: Callable[[Settings], Hosts]) -> None:
        self._settings, self._hosts_of = settings, hosts_of
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.do(self._start())

    def do(self, work: Coroutine[Any, Any, T], seconds: float = START_S) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    def call(self, function: Callable[[], T]) -> T:
        async def called() -> T:
            return function()

        return self.do(called())

    async def _start(self) -> None:
        self.server = Server(self._settings, self._hosts_of(self._settings))
        self.listeners = Listeners(self.server, self._settings)
        await self.listeners.start()
        await self.server.start()
        await self.listeners.set_serving(is_serving=True)

    @property
    def ports(self) -> dict[str, int]:
        return self.listeners.ports

    def client(self, port: str = "http", **more: Any) -> Client:
        return Client(f"127.0.0.1:{self.ports[port]}", timeout=ANSWER_S, **more)

    def close(self) -> None:
        async def stop() -> None:
            await self.listeners.stop()
            await self.server.stop()

        self.do(stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


def thread_hosts(settings: Settings) -> Hosts:
    return Hosts(settings, ThreadHost)


@contextmanager
def serving(
    root: Path, *, hosts_of: Callable[[Settings], Hosts] = thread_hosts, **settings: Any
) -> Iterator[Running]:
    """A server on free ports of the loopback address; engines in threads of this process."""
    wanted = Settings((root,), http_port=0, grpc_port=None, metrics_port=None, build={"level": 0})
    running = Running(replace(wanted, **settings), hosts_of)
    try:
        yield running
    finally:
        running.close()


def rows(*values: float) -> np.ndarray:
    return np.repeat(np.array(values, np.float32)[:, None], 4, axis=1)


def until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.01)
