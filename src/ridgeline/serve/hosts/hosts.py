"""The hosts of a server: one for each device that its models ask for, and one for Python code."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ridgeline.serve.hosts.hosting import Host, Hosted, LoadError
from ridgeline.serve.settings import Settings
from ridgeline.serve.spec import InstanceGroup

PYTHON_STEPS = "python"
_log = logging.getLogger(__name__)

MakeHost = Callable[[str], Host]


@dataclass
class Watched:
    host: Host
    why: str = ""  # it was lost the last time


class Hosts:
    def __init__(
        self,
        settings: Settings,
        make: MakeHost,
        *,
        start: Callable[[], Any] | None = None,
        stop: Callable[[], Any] | None = None,
    ) -> None:
        """`make` gives the host of a device; `start` and `stop` are for what hosts share."""
        self._settings = settings
        self._make = make
        self._start_shared, self._stop_shared = start, stop
        self._watched: dict[str, Watched] = {}
        self._turn = asyncio.Lock()  # several models that load may ask for a device at once
        # set by whoever keeps models on these hosts
        self.on_lost: Callable[[str], None] = lambda _: None
        self.on_back: Callable[[str, Sequence[Hosted]], None] = lambda device, hosted: None

    async def start(self) -> None:
        if self._start_shared is not None:
            await self._start_shared()

    def devices_of(self, group: InstanceGroup) -> list[str]:
        """Where a group's instances go: `count` of them on each of these."""
        target = self._settings.target.partition(":")[0]
        if group.kind == "KIND_CPU" and target != "cpu":
            raise LoadError("an instance group asks for KIND_CPU: this server's engines are for a GPU")
        if group.kind == "KIND_GPU" and target == "cpu":
            raise LoadError("an instance group asks for KIND_GPU: start the server with --target cuda")
        if target == "cpu":
            return ["cpu"]
        return [f"cuda:{gpu}" for gpu in group.gpus or (0,)]

    async def host_of(self, device: str) -> Host:
        """Started if it has not been; one that does not start is not kept."""
        async with self._turn:
            watched = self._watched.get(device)
            if watched is None:
                watched = Watched(self._make(device))
                watched.host.watch(partial(self._lost, device), partial(self._back, device))
                try:
                    await watched.host.start()
                except BaseException:
                    await watched.host.stop()
                    raise
                self._watched[device] = watched
            return watched.host

    def _lost(self, device: str, why: str) -> None:
        # a host may be lost as it starts
        if device in self._watched:
            self._watched[device].why = why
        _log.error("the worker for %s was lost: %s", device, why)
        self.on_lost(device)

    def _back(self, device: str, hosted: Sequence[Hosted]) -> None:
        self.on_back(device, hosted)

    @property
    def are_healthy(self) -> bool:
        return all(watched.host.is_healthy for watched in self._watched.values())

    def restarts(self) -> dict[str, int]:
        return {device: watched.host.restarts for device, watched in self._watched.items()}

    def status(self) -> list[dict[str, Any]]:
        return [
            {
                "device": device,
                "state": "ready" if watched.host.is_healthy else "restarting",
                "restarts": watched.host.restarts,
                "pid": getattr(watched.host, "pid", None),
                "lost": watched.why,
            }
            for device, watched in self._watched.items()
        ]

    async def stop(self) -> None:
        for watched in self._watched.values():
            await watched.host.stop()
        if self._stop_shared is not None:
            await self._stop_shared()
