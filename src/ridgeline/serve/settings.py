"""How a server is set up: the options of `ridge serve`, and what `ridgeline.serve` takes in Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

MIB = 2**20


@dataclass(frozen=True)
class HttpLimits:
    """What one client may cost. Bodies are counted after they are decompressed."""

    body_bytes: int = 64 * MIB
    json_depth: int = 100
    tensors: int = 256  # inputs, and outputs, of a request
    connections: int = 4096
    body_seconds: float = 30.0  # until the whole body is there
    keep_alive_seconds: float = 75.0


@dataclass(frozen=True)
class Keys:
    """Files with one key a line; '#' begins a comment. Read again when they change."""

    api: Path | None = None  # for everything but probes
    admin: Path | None = None  # for load, unload and settings


@dataclass(frozen=True)
class Tls:
    certificate: Path
    key: Path
    client_ca: Path | None = None  # clients need a certificate that this signed


@dataclass(frozen=True)
class Settings:
    repositories: tuple[Path, ...]
    host: str = "127.0.0.1"
    http_port: int | None = 8000  # 0: a free one; None: no HTTP
    grpc_port: int | None = 8001
    metrics_port: int | None = 8002
    admin_port: int | None = None  # then admin calls are answered there alone
    http_workers: int = 1
    in_process: bool = False  # engines in threads of the server instead of a worker process
    mode: Literal["none", "poll", "explicit"] = "none"
    poll_seconds: float = 15.0
    load: tuple[str, ...] = ()  # with explicit: what to load at the start; "*" for all
    python_steps: bool = False
    target: str = "cpu"
    build: dict[str, Any] = field(default_factory=dict)  # keywords of `ridgeline.build` for .onnx models
    cache: Path | None = None  # built engines; None: the user's cache folder
    trust: bool = False
    queue_bytes: int = 1024 * MIB  # of all requests that wait or run
    batch_seconds: float = 600.0  # a worker whose batch takes longer is replaced; 0: never
    limits: HttpLimits = HttpLimits()
    keys: Keys = Keys()
    tls: Tls | None = None
    grace_seconds: float = 0.0  # after SIGTERM: not ready, but still taking requests
    drain_seconds: float = 30.0  # then: until what was accepted must be answered
    log_json: bool = False
    access_log: bool = False
    otlp: str = ""  # where traces go
