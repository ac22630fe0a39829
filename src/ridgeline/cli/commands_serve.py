"""`ridge serve`: a repository of models behind the Open Inference Protocol, over HTTP and gRPC."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.render import talk
from ridgeline.cli.server_options import SERVING, serve_settings
from ridgeline.cli.shared_options import with_options

if TYPE_CHECKING:
    from ridgeline.serve.settings import Settings


def serve(
    repository: Annotated[
        list[Path], typer.Argument(metavar="REPOSITORY", help="folders of models", show_default=False)
    ],
    *,
    ray: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="run N replicas under Ray Serve, on a cluster of this machine"),
    ] = 0,
    options: dict[str, Any],
) -> None:
    """Serve models over HTTP and gRPC, batching requests as they come. Ctrl-C or SIGTERM drains and ends.

    A repository holds NAME/1/model.onnx or model.ridge, and NAME/config.pbtxt where the model needs one.

    Examples:

      ridge serve models

      ridge serve models --model-control poll --http-workers 2
    """
    settings = serve_settings(repository, options)
    raise typer.Exit(_on_ray(settings, ray) if ray else _here(settings))


def _here(settings: Settings) -> int:
    from ridgeline.serve.run import run_server

    make_host = None
    if settings.in_process:
        from ridgeline.serve.hosts.thread_host import ThreadHost

        make_host = ThreadHost
    say = logging.getLogger("ridgeline.serve").info if settings.log_json else talk.print
    notify = os.environ.get("NOTIFY_SOCKET", "")
    return run_server(settings, say=say, make_host=make_host, notify=notify)


def _on_ray(settings: Settings, replicas: int) -> int:
    from ridgeline.serve.ray_settings import ENVIRONMENT

    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from ridgeline.serve.ray_cluster import run_on_ray

    return run_on_ray(settings, replicas=replicas, say=talk.print)


serve = with_options(serve, SERVING, lambda given: {"options": given})
