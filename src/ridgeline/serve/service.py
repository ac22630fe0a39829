"""What front ends call: the server itself, or the process that owns the models, over a channel."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from ridgeline.serve.messages import InferRequest, InferResponse

# Questions besides inference, with their arguments. Answers are JSON values in the protocol's own form.
Verb = Literal[
    "live",  # → bool
    "ready",  # → bool: every model that should be is ready, workers answer, not draining
    "server_metadata",  # → {name, version, extensions}
    "model_ready",  # name, version → bool
    "model_metadata",  # name, version → {name, versions, platform, inputs, outputs}
    "model_config",  # name, version → ModelConfig as JSON, names as in the .proto
    "statistics",  # name ("" for all), version → {model_stats: [...]}
    "index",  # ready (bool) → [{name, version, state, reason}]
    "load",  # name, config (JSON text or "") → None
    "unload",  # name, dependents (bool) → None
    "status",  # → what the status page shows
    "metrics",  # → text in Prometheus' format
    "log_settings",  # settings (may be empty) → settings
]
ADMIN: frozenset[Verb] = frozenset({"load", "unload", "log_settings"})  # change the server
OPEN: frozenset[Verb] = frozenset({"live", "ready"})  # answered without a key: probes have none


class Service(Protocol):
    """Safe to call from one event loop. Errors are `RequestError`."""

    async def infer(self, request: InferRequest) -> InferResponse:
        """Cancelling the task cancels the request: its place in the queue is free at once."""
        ...

    async def ask(self, verb: Verb, **arguments: Any) -> Any:
        """The answer to a question about the server or its models."""
        ...
