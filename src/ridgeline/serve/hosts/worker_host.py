"""A device's worker process, kept alive: when it dies or hangs, another takes its place and its models."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import monotonic

from ridgeline.serve.hosts.hosting import Hosted, HostedModel, LoadError, WorkerLostError
from ridgeline.serve.hosts.spawning import Spawner, SpawnError
from ridgeline.serve.hosts.worker_link import WorkerLink
from ridgeline.serve.link.channel import LIMIT_BYTES

# before each restart in a row, but for the first; a worker that has lived so long begins a new row: what
# kills one now and then is a request, and whoever waits behind it should not wait for more than a fork
FIRST_PAUSE, LONGEST_PAUSE, STEADY_SECONDS = 1.0, 30.0, 2.0
STOP_SECONDS = 5.0
_log = logging.getLogger(__name__)


class WorkerHost:
    """Engines of one device in a process of their own."""

    def __init__(
        self,
        device: str,
        spawner: Spawner,
        *,
        limit_bytes: int = LIMIT_BYTES,
        ping_seconds: float = 5.0,
        unanswered: int = 6,
        batch_seconds: float = 0.0,
    ) -> None:
        """`limit_bytes` of inputs, and of outputs, may be under way. A worker that lets so many pings in a
        row go `unanswered` is ended, and so is one whose batch takes longer than `batch_seconds`."""
        self.device = device
        self.restarts = 0
        self._spawner, self._limit_bytes = spawner, limit_bytes
        self._ping_seconds, self._unanswered = ping_seconds, unanswered
        self._batch_seconds = batch_seconds
        self._link: WorkerLink | None = None
        self._up: asyncio.Future[WorkerLink] | None = None  # set while there is a worker with its models
        self._models: dict[str, HostedModel] = {}
        self._watchers: list[tuple[Callable[[str], None], Callable[[Sequence[Hosted]], None]]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._lost = asyncio.Event()

    @property
    def is_healthy(self) -> bool:
        return self._up is not None and self._up.done()

    @property
    def pid(self) -> int | None:
        """Of the worker; None while there is none."""
        return None if self._link is None or not self._link.is_open else self._link.child.pid.result()

    def watch(self, on_lost: Callable[[str], None], on_back: Callable[[Sequence[Hosted]], None]) -> None:
        self._watchers.append((on_lost, on_back))

    async def start(self) -> None:
        """`SpawnError` if there can be no worker."""
        loop = asyncio.get_running_loop()
        self._up = loop.create_future()
        self._up.set_result(await self._fork())
        self._tasks = [loop.create_task(self._keep_alive()), loop.create_task(self._keep_asking())]

    async def load(self, model: HostedModel) -> Hosted:
        if model.key in self._models:
            raise LoadError(f"{model.key!r} is loaded already")
        link = await self._wait_up()
        hosted = await link.load(model)
        if link is not self._link or not link.is_open:
            raise WorkerLostError("the worker ended just after it had loaded this")
        self._models[model.key] = model
        return hosted

    async def unload(self, key: str) -> None:
        if self._models.pop(key, None) is not None and self._link is not None:
            await self._link.unload(key)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        link, up = self._link, self._up
        self._link = self._up = None
        if up is not None and not up.done():
            up.set_exception(LoadError("the server stops"))
            up.exception()  # nobody need wait for it
        if link is not None:
            await link.stop(STOP_SECONDS)

    async def _wait_up(self) -> WorkerLink:
        if self._up is None:
            raise LoadError("the server stops, or has not started")
        return await asyncio.shield(self._up)

    async def _fork(self) -> WorkerLink:
        link: WorkerLink = await WorkerLink.fork(
            self._spawner, self.device, lambda why: self._on_lost(link, why), self._limit_bytes
        )
        self._link = link
        return link

    def _on_lost(self, link: WorkerLink, why: str) -> None:
        if link is not self._link:
            return
        self._lost.set()
        if self._up is not None and self._up.done():
            self._up = asyncio.get_running_loop().create_future()
            for on_lost, _ in self._watchers:
                on_lost(why)

    async def _keep_alive(self) -> None:
        pause = 0.0
        while True:
            began = monotonic()
            await self._lost.wait()
            link = self._link
            assert link is not None, "it was lost"
            _log.error("the worker for %s %s", self.device, await link.child.exited)
            pause = 0.0 if monotonic() - began > STEADY_SECONDS else pause
            while True:
                await asyncio.sleep(pause)
                pause = min(max(2 * pause, FIRST_PAUSE), LONGEST_PAUSE)
                if await self._come_back():
                    break

    async def _come_back(self) -> bool:
        """Whether there is a worker again, with every model that could be loaded."""
        self._lost.clear()
        self.restarts += 1
        try:
            link = await self._fork()
        except (SpawnError, OSError) as error:
            _log.error("no new worker for %s: %s", self.device, error)
            return False
        found = await asyncio.gather(*(self._load_again(link, model) for model in self._models.values()))
        for hosted in found:
            if hosted is not None and hosted.key not in self._models:  # unloaded meanwhile
                await link.unload(hosted.key)
        if not link.is_open:
            _log.error("the worker for %s %s while it loaded", self.device, await link.child.exited)
            return False
        assert self._up is not None, "the host has not been stopped"
        self._up.set_result(link)
        back = [hosted for hosted in found if hosted is not None and hosted.key in self._models]
        for _, on_back in self._watchers:
            on_back(back)
        _log.warning("the worker for %s is back with %d models", self.device, len(back))
        return True

    async def _load_again(self, link: WorkerLink, model: HostedModel) -> Hosted | None:
        try:
            return await link.load(model)
        except LoadError as error:
            if link.is_open:
                _log.error("%s could not be loaded again: %s", model.key, error)
                self._models.pop(model.key, None)
            return None

    async def _keep_asking(self) -> None:
        """A worker that says nothing for long is ended. Counted in turns: this process may sleep too."""
        silent = 0
        while True:
            await asyncio.sleep(self._ping_seconds)
            link = self._link
            if link is None or not link.is_open:
                continue
            silent = 0 if link.heard else silent + 1
            if 0 < self._batch_seconds < link.longest_batch():
                link.end(f"a batch did not end in {self._batch_seconds:g} s")
            elif silent >= self._unanswered:
                silent = 0
                link.end(f"no answer for {self._unanswered * self._ping_seconds:.0f} s")
            else:
                link.heard = False
                link.ping()
