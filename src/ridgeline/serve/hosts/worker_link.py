"""One life of a worker process, as the server's event loop sees it: loads, instances, and its end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from time import monotonic
from typing import Any

from ridgeline.serve.hosts.hosting import Hosted, HostedModel, LoadError, WorkerLostError
from ridgeline.serve.hosts.spawning import Child, Spawner
from ridgeline.serve.hosts.worker_instance import WorkerInstance
from ridgeline.serve.hosts.worker_messages import (
    TO_SERVER,
    Failed,
    InstanceSocket,
    Load,
    Loaded,
    Ping,
    Pong,
    Stop,
    Unload,
    Unloaded,
)
from ridgeline.serve.link.channel import socket_pair
from ridgeline.serve.link.frames import ChannelError
from ridgeline.serve.link.loop_channel import LoopChannel


class Loading:
    """A model that the worker loads: the server's ends of the channels of its instances."""

    def __init__(self, future: asyncio.Future[Hosted], sockets: list[socket.socket]) -> None:
        self.future, self.sockets = future, sockets

    def fail(self, error: LoadError) -> None:
        for sock in self.sockets:
            sock.close()
        if not self.future.done():
            self.future.set_exception(error)


class WorkerLink:
    """A worker and the server's end of its channel."""

    def __init__(
        self, child: Child, sock: socket.socket, on_lost: Callable[[str], None], limit_bytes: int
    ) -> None:
        """`on_lost(why)` is called once, after every batch that ran has failed."""
        self.child = child
        self._on_lost, self._limit_bytes = on_lost, limit_bytes
        self._loop = asyncio.get_running_loop()
        self._loading: dict[str, Loading] = {}
        self._instances: dict[str, tuple[WorkerInstance, ...]] = {}
        self._unloading: dict[str, asyncio.Future[None]] = {}
        self.heard = True  # since somebody last set it to False
        self._channel = LoopChannel(sock, TO_SERVER, on_message=self._take, on_closed=self._lost)
        child.exited.add_done_callback(lambda exited: self.end(f"it {exited.result()}"))

    @staticmethod
    async def fork(
        spawner: Spawner, device: str, on_lost: Callable[[str], None], limit_bytes: int
    ) -> WorkerLink:
        ours, theirs = socket_pair()
        try:
            with theirs:
                child = await spawner.fork(device, theirs, limit_bytes)
        except BaseException:
            ours.close()
            raise
        return WorkerLink(child, ours, on_lost, limit_bytes)

    @property
    def is_open(self) -> bool:
        return self._channel.is_open

    async def load(self, model: HostedModel) -> Hosted:
        """`LoadError` also where the worker dies of it."""
        if not self.is_open:
            raise WorkerLostError("the worker is gone")
        loading = self._loading[model.key] = Loading(self._loop.create_future(), [])
        for _ in range(model.instances):
            ours, theirs = socket_pair()
            loading.sockets.append(ours)
            with theirs:
                self._channel.send(InstanceSocket(model.key), theirs.fileno())
        self._channel.send(Load.of(model))
        return await loading.future

    async def unload(self, key: str) -> None:
        """What was never loaded, or died with the worker, is unloaded already."""
        if self.is_open and key in self._instances:
            await self._unload(key)

    def longest_batch(self) -> float:
        """For how many seconds the oldest batch has been running."""
        began = [each.began for instances in self._instances.values() for each in instances if each.began]
        return monotonic() - min(began) if began else 0.0

    def ping(self) -> None:
        self._channel.send(Ping())

    async def stop(self, seconds: float) -> None:
        """The worker ends by itself, or is ended. Batches that run are lost."""
        self._channel.send(Stop())
        try:
            await asyncio.wait_for(asyncio.shield(self.child.exited), seconds)
        except TimeoutError:
            self.child.kill()
            await self.child.exited

    def end(self, why: str) -> None:
        """At once: what runs is lost."""
        if self.is_open:
            self._channel.close()
            self._lost(why)

    def _unload(self, key: str) -> asyncio.Future[None]:
        for instance in self._instances.pop(key):
            instance.lose("its model was unloaded")
        future = self._unloading[key] = self._loop.create_future()
        self._channel.send(Unload(key))
        return future

    def _take(self, message: Loaded | Failed | Unloaded | Pong) -> None:
        self.heard = True
        match message:
            case Loaded():
                self._loaded(message)
            case Failed():
                self._take_loading(message.key).fail(LoadError(message.text))
            case Unloaded():
                _finish(self._unloading.pop(message.key, None))

    def _loaded(self, message: Loaded) -> None:
        loading = self._take_loading(message.key)
        instances = tuple(WorkerInstance(sock, self.end, self._limit_bytes) for sock in loading.sockets)
        self._instances[message.key] = instances
        if loading.future.cancelled():
            self._unload(message.key)
            return
        hosted = Hosted(message.key, message.inputs, message.outputs, instances, message.notes)
        loading.future.set_result(hosted)

    def _take_loading(self, key: str) -> Loading:
        if key not in self._loading:
            raise ChannelError(f"the worker told of {key!r}, which nobody asked for")
        return self._loading.pop(key)

    def _lost(self, why: str) -> None:
        self.child.kill()
        for unloading in self._unloading.values():
            _finish(unloading)  # its memory is free in any case
        for loading in self._loading.values():
            loading.fail(WorkerLostError(f"the worker ended while it loaded this: {why}"))
        lost = [instance for instances in self._instances.values() for instance in instances]
        for table in (self._unloading, self._loading, self._instances):
            table.clear()
        for instance in lost:
            try:
                instance.lose(why)
            except Exception as error:
                context: dict[str, Any] = {"message": "whoever asked for a batch failed", "exception": error}
                self._loop.call_exception_handler(context)
        self._on_lost(why)


def _finish(future: asyncio.Future[None] | None) -> None:
    """Unless nobody waits any more."""
    if future is not None and not future.done():
        future.set_result(None)
