"""The same server in replicas of Ray Serve: Ray spreads requests and scales, our batcher joins them.

A replica is a whole `Server`, with its engines in threads: Ray keeps replicas apart already. What Ray Serve
does itself (batching by a timer, request parsing) is not used.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray import serve
from ray.serve.config import AutoscalingConfig, HTTPOptions

from ridgeline.errors import OptionError
from ridgeline.serve.access import Access
from ridgeline.serve.hosts import Hosts
from ridgeline.serve.http_app import HttpApp
from ridgeline.serve.log import log_to_stderr
from ridgeline.serve.server import Server
from ridgeline.serve.settings import Settings
from ridgeline.serve.thread_host import ThreadHost

APPLICATION = "ridgeline"
# requests that a replica may hold: what waits in our queue is what batches are made of
ONGOING = 256
DRAIN_MARGIN_S = 5.0  # that Ray waits longer than the server itself
HEALTH_EVERY_S = 2.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Scaling:
    """Replicas, by how many requests each of them has under way or waiting."""

    least: int = 1
    most: int = 1
    target_ongoing: float = 32.0


class Replica:
    """A server without listeners: Ray's proxy calls its ASGI application."""

    async def __init__(self, settings: Settings) -> None:
        log_to_stderr(as_json=settings.log_json)
        self._server = Server(settings, Hosts(settings, ThreadHost))
        await self._server.start()
        if not await self._server.ask("ready"):
            # Ray tells the message of a replica that could not start
            raise RuntimeError("; ".join(self._server.views.summary()) or "the repository holds no model")
        self._app = HttpApp(self._server, settings, Access(settings.keys))

    def __serve_build_asgi_app__(self) -> Callable[[Any, Any, Any], Awaitable[None]]:
        return self._app

    async def check_health(self) -> None:
        if not self._server.hosts.are_healthy:
            raise RuntimeError("an engine's device does not answer")

    async def __del__(self) -> None:
        """Ray calls it when the replica takes no more requests."""
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
    refuse_listeners(settings)
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
    )
    bound: serve.Application = deployment.bind(settings)
    return bound


def refuse_listeners(settings: Settings) -> None:
    """Replicas listen at nothing of their own, and differ if each is told something else."""
    given = {
        "--admin": settings.admin_port is not None,
        "--http-workers": settings.http_workers != 1,
        "--model-control explicit": settings.mode == "explicit",
        "--tls-cert": settings.tls is not None,
    }
    wrong = [name for name, is_given in given.items() if is_given]
    if wrong:
        raise OptionError(
            f"{' and '.join(wrong)} cannot be had under Ray",
            want="HTTP without TLS, models as the repository has them",
            help="replicas follow changes of the repository with --model-control poll",
        )


def run_on_ray(settings: Settings, *, replicas: int, say: Say) -> int:
    """A cluster of this machine alone, until a signal ends it. Its dashboard and job API stay off."""
    refuse_listeners(settings)
    if settings.http_port is None:
        raise OptionError("under Ray models are served over HTTP")
    start_cluster(settings, num_cpus=max(replicas, 1) + 1)
    try:
        serve.run(application(settings, replicas=replicas), name=APPLICATION, route_prefix="/")
        say(f"http     {settings.host}:{settings.http_port}")
        say(f"ready: {replicas} replicas under Ray {ray.__version__}; gRPC and metrics are off")
        asyncio.run(_signalled())
        say("draining")
        return 0
    finally:
        serve.shutdown()
        ray.shutdown()


def start_cluster(settings: Settings, *, num_cpus: int, **options: Any) -> None:
    """Processes on the loopback address; Ray Serve's proxy listens where the settings say."""
    ray.init(
        num_cpus=num_cpus, include_dashboard=False, logging_level=logging.WARNING, log_to_driver=False,
        _node_ip_address="127.0.0.1", **options,
    )  # fmt: skip
    assert settings.http_port is not None, "the caller asked"
    serve.start(http_options=HTTPOptions(host=settings.host, port=settings.http_port))


async def _signalled() -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, ended.set)
    await ended.wait()
