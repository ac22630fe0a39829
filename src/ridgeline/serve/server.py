"""The server: models behind front ends, from the start to the end of a drain. Answers what front ends ask."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from time import monotonic
from typing import Any

from ridgeline.base.version import VERSION
from ridgeline.serve.errors import unavailable, unsupported
from ridgeline.serve.hosts.hosts import Hosts
from ridgeline.serve.log import LogSettings
from ridgeline.serve.messages import InferRequest, InferResponse, Tensor
from ridgeline.serve.models.models import Models
from ridgeline.serve.models.views import ModelViews
from ridgeline.serve.service import Verb
from ridgeline.serve.settings import Settings
from ridgeline.serve.telemetry.metrics import MetricsText
from ridgeline.serve.telemetry.tracing import Tracing

NAME = "ridgeline"
# of the protocol's extensions, those that are served
EXTENSIONS = (
    "classification", "model_repository", "model_repository(unload_dependents)", "schedule_policy",
    "model_configuration", "binary_tensor_data", "parameters", "statistics", "logging",
)  # fmt: skip
_log = logging.getLogger(__name__)


class State(Enum):
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"  # not ready, but alive: what is accepted is answered
    STOPPED = "stopped"


class Server:
    """A `Service` over models of this process's event loop."""

    def __init__(self, settings: Settings, hosts: Hosts) -> None:
        self.settings, self.hosts = settings, hosts
        self.state = State.STARTING
        self.models = Models(settings, hosts)
        self.views = ModelViews(self.models)
        self._began = monotonic()
        self._metrics = MetricsText()
        self._log_settings = LogSettings()
        self._tracing = Tracing(settings.otlp)
        self._bytes = 0  # of all requests that wait or run
        self._running = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._verbs: Mapping[Verb, Callable[..., Awaitable[Any]]] = {
            "live": self._live, "ready": self._ready, "server_metadata": self._metadata,
            "model_ready": self.views.is_ready, "model_metadata": self.views.metadata,
            "model_config": self.views.config, "statistics": self.views.statistics,
            "index": self.views.index, "load": self._load, "unload": self._unload,
            "status": self._status, "metrics": self._metrics_text, "log_settings": self._set_log,
        }  # fmt: skip

    async def start(self) -> None:
        """Everything that the settings ask for is loaded, or has told why not."""
        await self.hosts.start()
        await self.models.start()
        if self.state is State.STARTING:
            self.state = State.SERVING

    async def infer(self, request: InferRequest) -> InferResponse:
        if self.state is State.STOPPED:
            raise unavailable("the server is stopping")
        nbytes = sum(map(_nbytes, request.inputs))
        if self._bytes + nbytes > self.settings.queue_bytes:
            raise unavailable("the server holds as many bytes of requests as it may; try again later")
        self._bytes += nbytes
        self._running += 1
        self._is_idle.clear()
        try:
            model = self.models.find(request.model, request.version)
            if not self._tracing.is_on:
                return await model.infer(request)
            with self._tracing.span(request) as traced:
                traced.response = await model.infer(request)
                return traced.response
        finally:
            self._bytes -= nbytes
            self._running -= 1
            if not self._running:
                self._is_idle.set()

    async def ask(self, verb: Verb, **arguments: Any) -> Any:
        return await self._verbs[verb](**arguments)

    def begin_drain(self) -> None:
        """Not ready from now on, but still alive, and taking requests until the listeners are closed."""
        self.state = State.DRAINING

    async def drain(self) -> bool:
        """True when all that was accepted has been answered in time."""
        try:
            await asyncio.wait_for(self._is_idle.wait(), self.settings.drain_seconds)
        except TimeoutError:
            _log.warning("%d requests were not answered in %g s", self._running, self.settings.drain_seconds)
            return False
        return True

    async def stop(self) -> None:
        """What still waits is refused; then models, workers and builds end."""
        self.state = State.STOPPED
        await self.models.stop()
        await self.hosts.stop()
        self._metrics.close()
        self._tracing.close()

    @property
    def requests(self) -> int:
        return self._running

    async def _live(self) -> bool:
        return self.state is not State.STOPPED

    async def _ready(self) -> bool:
        return self.state is State.SERVING and self.hosts.are_healthy and self.views.are_ready

    async def _metadata(self) -> dict[str, Any]:
        return {"name": NAME, "version": VERSION, "extensions": list(EXTENSIONS)}

    async def _load(self, name: str, config: str = "") -> None:
        self._require_control()
        await self.models.load(name, config)

    async def _unload(self, name: str, dependents: bool = False) -> None:
        self._require_control()
        await self.models.unload(name, dependents=dependents)

    def _require_control(self) -> None:
        if self.settings.mode != "explicit":
            raise unsupported("models are loaded and unloaded by calls with --model-control explicit only")
        if self.state is not State.SERVING:
            raise unavailable(f"the server is {self.state.value}")

    async def _status(self) -> dict[str, Any]:
        now = monotonic()
        about = {
            "name": NAME, "version": VERSION, "uptime_s": round(now - self._began, 1),
            "state": self.state.value, "ready": await self._ready(), "requests": self._running,
        }  # fmt: skip
        return {
            "server": about,
            "models": self.views.status(now),
            "workers": self.hosts.status(),
            "gpus": self._metrics.gpu_status(),
        }

    async def _metrics_text(self) -> str:
        text: str = self._metrics.text(
            self.views.counted(), restarts=self.hosts.restarts(), uptime_s=monotonic() - self._began
        )
        return text

    async def _set_log(self, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return self._log_settings.change(settings or {})


def _nbytes(tensor: Tensor) -> int:
    return len(tensor.data) if isinstance(tensor.data, bytes) else memoryview(tensor.data).nbytes
