"""`ridge loadtest`: a model of a server at levels of load in turn, or the highest rate under a bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.serve.clients.client import Client, ServerError
from ridgeline.serve.clients.tensors import ANY, to_tensor
from ridgeline.serve.clients.wire import HEADER_LENGTH, infer_body, model_path, request_bytes
from ridgeline.serve.loadtest.connections import Connector, require_connections
from ridgeline.serve.loadtest.rows import LoadReport
from ridgeline.serve.loadtest.run import LoadSettings, LoadTest
from ridgeline.serve.loadtest.search import OnLevel, search

BOUNDS = 10  # a level takes so many times the bound at least: a queue needs time to grow


@dataclass(frozen=True)
class Target:
    """A model of a server, and the arrays to send it."""

    model: str
    version: str
    arrays: Mapping[str, np.ndarray]
    headers: Mapping[str, str]
    ca: Path | None = None


def run_levels(
    client: Client,
    target: Target,
    levels: Sequence[int],
    settings: LoadSettings,
    *,
    is_open: bool,
    on_level: OnLevel = lambda *_: None,
) -> LoadReport:
    """Each level in turn: so many clients, or so many requests per second."""
    if is_open:
        require_connections(settings.connections, option="--connections")
    else:
        require_connections(max(levels), option="--concurrency")
    report, test = _prepare(client, target, settings, is_open=is_open)
    rows = []
    with closing(test):
        for done, level in enumerate(levels):
            on_level(done, len(levels), str(level))
            rows.append(test.open(level) if is_open else test.closed(level))
        on_level(len(levels), len(levels), "")
    return replace(report, rows=tuple(rows))


def highest_rate(
    client: Client,
    target: Target,
    bound_us: float,
    settings: LoadSettings,
    *,
    on_level: OnLevel = lambda *_: None,
) -> LoadReport:
    """The highest rate of an open loop whose p99 keeps the bound, with all rates that were tried.

    Each is measured for ten times the bound at least: a queue that grows needs time to break it.
    """
    settings = replace(settings, duration_s=max(settings.duration_s, BOUNDS * bound_us / 1e6))
    require_connections(settings.connections, option="--connections")
    report, test = _prepare(client, target, settings, is_open=True)
    with closing(test):
        rows, best = search(test, bound_us, on_level=on_level)
    return replace(report, rows=tuple(rows), p99_bound_us=bound_us, best_rps=best)


def _prepare(
    client: Client, target: Target, settings: LoadSettings, *, is_open: bool
) -> tuple[LoadReport, LoadTest]:
    """The request is answered once before anything is timed: a refusal is an error, not a fast answer."""
    model, version = target.model, target.version
    client.infer(model, target.arrays, version=version)
    ports = [port for port in client.metadata(model, version).inputs if port.name in target.arrays]
    tensors = [to_tensor(port, target.arrays[port.name]) for port in ports]
    length, body = infer_body(tensors)
    headers = {HEADER_LENGTH: str(length), "Content-Type": "application/octet-stream", **target.headers}
    request = request_bytes(client.address, model_path(model, version, "infer"), body=body, headers=headers)
    rows = tensors[0].shape[0] if ports and ports[0].shape[:1] == (ANY,) else 1

    def statistics() -> Mapping[str, Any] | None:
        with suppress(ServerError):
            return client.statistics(model, version)
        return None

    connector = Connector(client.address, target.ca)
    test = LoadTest(connector, [request], settings, rows_per_request=rows, statistics=statistics)
    report = LoadReport(
        url=str(client.address),
        model=model,
        version=version,
        loop="open" if is_open else "closed",
        arrivals=settings.arrivals if is_open else "",
        duration_s=settings.duration_s,
        warmup_s=settings.warmup_s,
        shapes={tensor.name: tensor.shape for tensor in tensors},
        types={tensor.name: tensor.datatype for tensor in tensors},
        rows_per_request=rows,
        request_bytes=len(request),
        rows=(),
        p99_bound_us=None,
        best_rps=None,
    )
    return report, test
