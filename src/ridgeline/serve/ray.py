"""The same server in replicas of Ray Serve: Ray spreads requests and scales, our batcher joins them.

A replica is a whole `Server`, with its engines in threads: Ray keeps replicas apart already. What Ray Serve
does itself (batching by a timer, request parsing) is not used. The cluster of `ridge serve --ray` is in
`ray_cluster`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig

from ridgeline.serve.access import Access
from ridgeline.serve.hosts.hosts import Hosts
from ridgeline.serve.hosts.thread_host import ThreadHost
from ridgeline.serve.http.app import HttpApp
from ridgeline.serve.log import log_to_stderr
from ridgeline.serve.ray_settings import refuse_what_ray_lacks
from ridgeline.serve.server import Server
from ridgeline.serve.settings import Keys, Settings

# requests that a replica may hold: what waits in our queue is what batches are made of
ONGOING = 256
DRAIN_MARGIN_S = 5.0  # that Ray waits longer than the server itself
HEALTH_EVERY_S = 2.0
FAULT = "cannot serve this repository: "  # what Ray hands on of an error is a text


@dataclass(frozen=True)
class Scaling:
    """Replicas, by how many requests each of them has under way or waiting."""

    least: int = 1
    most: int = 1
    target_ongoing: float = 32.0


class Replica:
    """A server without listeners: Ray's proxy calls its ASGI application."""

    async def __init__(self, settings: Settings) -> None:  # type: ignore[misc]  # Ray awaits it
        log_to_stderr(as_json=False)
        self._server = Server(settings, Hosts(settings, ThreadHost))
        await self._server.start()
        if not await self._server.ask("ready"):
            raise RuntimeError(FAULT + "; ".join(self._server.views.summary()))
        self._app = HttpApp(self._server, settings, Access(settings.keys))

    def __serve_build_asgi_app__(self) -> Callable[[Any, Any, Any], Awaitable[None]]:
        """Ray asks for it when models are loaded and warm; until it has it, no request comes here."""
        return self._app

    async def check_health(self) -> None:
        """Ray replaces a replica whose check fails three times."""
        if not self._server.hosts.are_healthy:
            raise RuntimeError("an engine's device does not answer")

    async def __del__(self) -> None:
        """Ray awaits it when the replica has answered what it had taken and takes no more."""
        self._server.begin_drain()
        await self._server.drain()
        await self._server.stop()


def application(
    settings: Settings,
    *,
    replicas: int = 1,
    scaling: Scaling | None = None,
    num_cpus: float = 1.0,
    num_gpus: float = 0.0,
) -> serve.Application:
    """For `ray.serve.run`. With `scaling` Ray chooses the number of replicas; GPUs may be parts of one."""
    refuse_what_ray_lacks(settings)
    auto = None
    if scaling is not None:
        auto = AutoscalingConfig(
            min_replicas=scaling.least,
            max_replicas=scaling.most,
            target_ongoing_requests=scaling.target_ongoing,
        )
    deployment = serve.deployment(
        serve.ingress()(Replica),
        name="server",
        num_replicas=None if auto is not None else replicas,
        autoscaling_config=auto,
        max_ongoing_requests=ONGOING,
        ray_actor_options={"num_cpus": num_cpus, "num_gpus": num_gpus},
        graceful_shutdown_timeout_s=settings.drain_seconds + DRAIN_MARGIN_S,
        graceful_shutdown_wait_loop_s=0.1,
        health_check_period_s=HEALTH_EVERY_S,
        # what a repository lacks it lacks the second time too
        max_constructor_retry_count=1,
    )
    bound: serve.Application = deployment.bind(_with_whole_paths(settings))
    return bound


def _with_whole_paths(settings: Settings) -> Settings:
    """Replicas have folders of their own to run in."""
    return replace(
        settings,
        repositories=tuple(path.resolve() for path in settings.repositories),
        cache=None if settings.cache is None else settings.cache.resolve(),
        keys=Keys(api=None if settings.keys.api is None else settings.keys.api.resolve()),
    )
