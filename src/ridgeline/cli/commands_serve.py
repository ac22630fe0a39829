"""`ridge serve`: a repository of models behind the Open Inference Protocol, over HTTP and gRPC."""

from __future__ import annotations

import logging
import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.cli.arguments import Target
from ridgeline.cli.render import talk
from ridgeline.errors import OptionError

MIB = 2**20
MODES = ("none", "poll", "explicit")

_network = partial(typer.Option, rich_help_panel="Network")
_models = partial(typer.Option, rich_help_panel="Models")
_safety = partial(typer.Option, rich_help_panel="Safety")
_ending = partial(typer.Option, rich_help_panel="Life cycle")

Port = partial(_network, min=0, max=65535, metavar="PORT")


def serve(
    repository: Annotated[
        list[Path], typer.Argument(metavar="REPOSITORY…", help="folders of models", show_default=False)
    ],
    http: Annotated[int, Port("--http", help="port of HTTP; 0 for a free one")] = 8000,
    grpc: Annotated[int, Port("--grpc", help="port of gRPC")] = 8001,
    metrics: Annotated[int, Port("--metrics", help="port of the metrics")] = 8002,
    admin: Annotated[
        int | None, Port("--admin", help="answer load, unload and settings at this port alone")
    ] = None,
    no_grpc: Annotated[bool, _network("--no-grpc", help="HTTP alone")] = False,
    no_metrics: Annotated[bool, _network("--no-metrics", help="no port for metrics")] = False,
    host: Annotated[str, _network(help="address to listen on")] = "127.0.0.1",
    http_workers: Annotated[
        int, _network("--http-workers", min=1, max=64, help="front-end processes that share the ports")
    ] = 1,
    model_control: Annotated[
        str,
        _models(
            "--model-control",
            metavar="|".join(MODES),
            help="none: all models, once; poll: changes of the folders; explicit: by load and unload calls",
        ),
    ] = "none",
    load: Annotated[
        list[str] | None,
        _models("--load", metavar="NAME", help="with explicit: what to load at the start; '*' for all"),
    ] = None,
    poll: Annotated[float, _models(min=0.1, max=86400.0, metavar="S", help="seconds between two polls")] = 15,
    target: Target = None,
    level: Annotated[
        int | None, _models(min=0, max=5, help="how much time builds of ONNX models take (default: 3)")
    ] = None,
    threads: Annotated[
        int | None, _models(min=1, help="threads that engines are planned for (default: all cores)")
    ] = None,
    precision: Annotated[str | None, _models(help="types to compute in, as `ridge build` has it")] = None,
    cache: Annotated[Path | None, _models(metavar="DIR", help="where built engines are kept")] = None,
    in_process: Annotated[
        bool, _models("--in-process", help="engines in threads of the server: quicker, but not isolated")
    ] = False,
    python_steps: Annotated[
        bool, _models("--python-steps", help="run the Python files that models have for before and after")
    ] = False,
    trust: Annotated[
        bool, _models("--trust", help="use compiled kernels of engine files that were made elsewhere")
    ] = False,
    api_keys: Annotated[
        Path | None, _safety("--api-keys", metavar="FILE", help="keys that requests must bring, one a line")
    ] = None,
    admin_keys: Annotated[
        Path | None, _safety("--admin-keys", metavar="FILE", help="keys for load, unload and settings")
    ] = None,
    tls_cert: Annotated[Path | None, _safety("--tls-cert", metavar="FILE", help="certificate (PEM)")] = None,
    tls_key: Annotated[Path | None, _safety("--tls-key", metavar="FILE", help="its key (PEM)")] = None,
    tls_client_ca: Annotated[
        Path | None, _safety("--tls-client-ca", metavar="FILE", help="clients need a certificate of this CA")
    ] = None,
    max_body: Annotated[
        float, _safety("--max-body", min=0.001, max=65536, metavar="MIB", help="largest request")
    ] = 64,
    max_queue: Annotated[
        float, _safety("--max-queue", min=0.001, metavar="MIB", help="bytes of all requests that wait or run")
    ] = 1024,
    grace: Annotated[
        float,
        _ending(min=0, metavar="S", help="after SIGTERM: not ready any more, but still taking requests"),
    ] = 0,
    drain: Annotated[
        float, _ending(min=0, metavar="S", help="then: the longest that accepted requests may take")
    ] = 30,
    log_json: Annotated[bool, _ending("--log-json", help="one line of JSON for each event")] = False,
    access_log: Annotated[bool, _ending("--access-log", help="a line for each request")] = False,
    otlp: Annotated[
        str, _ending("--otlp", metavar="HOST:PORT", help="send traces to this collector (OTLP, HTTP)")
    ] = "",
    ray: Annotated[
        int,
        _ending("--ray", min=0, metavar="N", help="run N replicas under Ray Serve on this machine's cluster"),
    ] = 0,
) -> None:
    """Serve models over HTTP and gRPC, batching requests as they come. Ctrl-C or SIGTERM drains and ends.

    A repository holds NAME/1/model.onnx or model.ridge, and NAME/config.pbtxt where the model needs one.

    Examples:

      ridge serve models

      ridge serve models --model-control poll --http-workers 2
    """
    from ridgeline.serve.run import run_server
    from ridgeline.serve.settings import HttpLimits, Keys, Settings, Tls

    if model_control not in MODES:
        raise OptionError(f"--model-control {model_control!r} is not known", want=", ".join(MODES))
    if load and model_control != "explicit":
        raise OptionError("--load is for --model-control explicit")
    if (tls_cert is None) != (tls_key is None):
        raise OptionError("--tls-cert and --tls-key go together")
    if tls_client_ca is not None and tls_cert is None:
        raise OptionError("--tls-client-ca needs --tls-cert and --tls-key")
    build: dict[str, Any] = {"level": level, "threads": threads, "precision": precision}
    settings = Settings(
        repositories=tuple(repository),
        host=host,
        http_port=http,
        grpc_port=None if no_grpc else grpc,
        metrics_port=None if no_metrics else metrics,
        admin_port=admin,
        http_workers=http_workers,
        in_process=in_process,
        mode=model_control,  # type: ignore[arg-type]  # one of MODES
        poll_seconds=poll,
        load=tuple(load or ()),
        python_steps=python_steps,
        target=target or "cpu",
        build={name: value for name, value in build.items() if value is not None},
        cache=cache,
        trust=trust,
        queue_bytes=int(max_queue * MIB),
        limits=HttpLimits(body_bytes=int(max_body * MIB)),
        keys=Keys(api=api_keys, admin=admin_keys),
        tls=None if tls_cert is None or tls_key is None else Tls(tls_cert, tls_key, tls_client_ca),
        grace_seconds=grace,
        drain_seconds=drain,
        log_json=log_json,
        access_log=access_log,
        otlp=otlp,
    )
    if ray:
        from ridgeline.serve.ray_settings import ENVIRONMENT

        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from ridgeline.serve.ray_cluster import run_on_ray

        raise typer.Exit(run_on_ray(settings, replicas=ray, say=talk.print))
    make_host = None
    if in_process:
        from ridgeline.serve.thread_host import ThreadHost

        make_host = ThreadHost
    notify = os.environ.get("NOTIFY_SOCKET", "")
    say = logging.getLogger("ridgeline.serve").info if log_json else talk.print
    raise typer.Exit(run_server(settings, say=say, make_host=make_host, notify=notify))
