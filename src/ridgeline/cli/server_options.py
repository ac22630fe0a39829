"""The options of `ridge serve`, by name, and the settings that they come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.arguments import Target
from ridgeline.errors import OptionError

if TYPE_CHECKING:
    from ridgeline.serve.settings import Settings

MIB = 2**20
MODES = ("none", "poll", "explicit")

_network = partial(typer.Option, rich_help_panel="Network")
_models = partial(typer.Option, rich_help_panel="Models")
_safety = partial(typer.Option, rich_help_panel="Safety")
_ending = partial(typer.Option, rich_help_panel="Life cycle")
_port = partial(_network, min=0, max=65535, metavar="PORT")
_file = partial(_safety, metavar="FILE")

# each is None or False if not given
SERVING: Mapping[str, Any] = {
    "http": Annotated[int | None, _port(help="port of HTTP; 0 for a free one (default: 8000)")],
    "grpc": Annotated[int | None, _port(help="port of gRPC (default: 8001)")],
    "metrics": Annotated[int | None, _port(help="port of the metrics (default: 8002)")],
    "admin": Annotated[int | None, _port(help="answer load, unload and settings at this port alone")],
    "no_grpc": Annotated[bool, _network("--no-grpc", help="HTTP alone")],
    "no_metrics": Annotated[bool, _network("--no-metrics", help="no port for metrics")],
    "host": Annotated[str | None, _network(help="address to listen on (default: 127.0.0.1)")],
    "http_workers": Annotated[
        int | None, _network(min=1, max=64, help="front-end processes that share the ports (default: 1)")
    ],
    "model_control": Annotated[
        str | None,
        _models(
            metavar="|".join(MODES),
            help="none: all models, once (default); poll: changes of the folders; explicit: by load and"
            " unload calls",
        ),
    ],
    "load": Annotated[
        list[str] | None,
        _models(metavar="NAME", help="with explicit: what to load at the start; '*' for all"),
    ],
    "poll": Annotated[
        float | None,
        _models(min=0.1, max=86400.0, metavar="S", help="seconds between two polls (default: 15)"),
    ],
    "target": Target,
    "level": Annotated[
        int | None, _models(min=0, max=5, help="how much time builds of ONNX models take (default: 3)")
    ],
    "threads": Annotated[
        int | None, _models(min=1, help="threads that engines are planned for (default: all cores)")
    ],
    "precision": Annotated[str | None, _models(help="types to compute in, as `ridge build` has it")],
    "cache": Annotated[Path | None, _models(metavar="DIR", help="where built engines are kept")],
    "in_process": Annotated[
        bool, _models("--in-process", help="engines in threads of the server: quicker, but not isolated")
    ],
    "python_steps": Annotated[
        bool, _models("--python-steps", help="run the Python files that models have for before and after")
    ],
    "trust": Annotated[
        bool, _models("--trust", help="use compiled kernels of engine files that were made elsewhere")
    ],
    "api_keys": Annotated[Path | None, _file(help="keys that requests must bring, one a line")],
    "admin_keys": Annotated[Path | None, _file(help="keys for load, unload and settings")],
    "tls_cert": Annotated[Path | None, _file(help="certificate (PEM)")],
    "tls_key": Annotated[Path | None, _file(help="its key (PEM)")],
    "tls_client_ca": Annotated[Path | None, _file(help="clients need a certificate of this CA")],
    "max_body": Annotated[
        float | None, _safety(min=0.001, max=65536, metavar="MIB", help="largest request (default: 64)")
    ],
    "max_queue": Annotated[
        float | None,
        _safety(min=0.001, metavar="MIB", help="of all requests that wait or run (default: 1024)"),
    ],
    "batch_limit": Annotated[
        float | None,
        _safety(min=0, metavar="S", help="end a worker whose batch takes longer (default: 600; 0: never)"),
    ],
    "grace": Annotated[
        float | None,
        _ending(min=0, metavar="S", help="after SIGTERM: not ready any more, but still taking requests"),
    ],
    "drain": Annotated[
        float | None,
        _ending(min=0, metavar="S", help="then: the longest that accepted requests may take (default: 30)"),
    ],
    "log_json": Annotated[bool, _ending("--log-json", help="one line of JSON for each event")],
    "access_log": Annotated[bool, _ending("--access-log", help="a line for each request")],
    "otlp": Annotated[
        str | None, _ending(metavar="HOST:PORT", help="send traces to this collector (OTLP, HTTP)")
    ],
}


def serve_settings(repositories: Sequence[Path], given: Mapping[str, Any]) -> Settings:
    from ridgeline.serve.settings import HttpLimits, Keys, Settings, Tls

    check_options(given)
    for repository in repositories:
        if not repository.is_dir():
            got = "a file" if repository.exists() else "nothing of that name"
            raise OptionError(
                f"{str(repository)!r} is no folder of models", got=got,
                help="a repository holds NAME/1/model.onnx",
            )  # fmt: skip
    own = {
        "host": given["host"], "http_port": given["http"], "grpc_port": given["grpc"],
        "metrics_port": given["metrics"], "http_workers": given["http_workers"],
        "mode": given["model_control"], "poll_seconds": given["poll"], "target": given["target"],
        "grace_seconds": given["grace"], "drain_seconds": given["drain"], "otlp": given["otlp"],
        "batch_seconds": given["batch_limit"],
        "queue_bytes": None if given["max_queue"] is None else int(given["max_queue"] * MIB),
        "limits": None if given["max_body"] is None else HttpLimits(body_bytes=int(given["max_body"] * MIB)),
        "tls": None if given["tls_cert"] is None
        else Tls(given["tls_cert"], given["tls_key"], given["tls_client_ca"]),
    }  # fmt: skip
    own = {name: value for name, value in own.items() if value is not None}
    own |= {"grpc_port": None} if given["no_grpc"] else {}
    own |= {"metrics_port": None} if given["no_metrics"] else {}
    same = ("cache", "in_process", "python_steps", "trust", "log_json", "access_log")
    return Settings(
        tuple(repositories),
        admin_port=given["admin"],
        load=tuple(given["load"] or ()),
        build={name: given[name] for name in ("level", "threads", "precision") if given[name] is not None},
        keys=Keys(api=given["api_keys"], admin=given["admin_keys"]),
        **{name: given[name] for name in same},
        **own,
    )


def check_options(given: Mapping[str, Any]) -> None:
    """What does not go together is refused before anything starts."""
    mode = given["model_control"] or MODES[0]
    if mode not in MODES:
        raise OptionError(f"--model-control {mode!r} is not known", want=", ".join(MODES))
    if given["poll"] is not None and mode != "poll":
        raise OptionError("--poll is for --model-control poll")
    if given["load"] and mode != "explicit":
        raise OptionError("--load is for --model-control explicit")
    if given["admin"] is not None and mode != "explicit":
        raise OptionError("--admin is for --model-control explicit: nothing is loaded by calls otherwise")
    for off, port in (("no_grpc", "grpc"), ("no_metrics", "metrics")):
        if given[off] and given[port] is not None:
            raise OptionError(f"--{port} and --no-{port} contradict each other")
    if (given["tls_cert"] is None) != (given["tls_key"] is None):
        raise OptionError("--tls-cert and --tls-key go together")
    if given["tls_client_ca"] is not None and given["tls_cert"] is None:
        raise OptionError("--tls-client-ca needs --tls-cert and --tls-key")
