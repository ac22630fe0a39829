"""Traces of requests for OpenTelemetry: a span for each, a child of the one its client names. Optional."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ridgeline.errors import OptionError
from ridgeline.serve.messages import InferRequest

try:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    OTLPSpanExporter = None


class Tracing:
    """Nothing at all without an address to send to."""

    def __init__(self, endpoint: str) -> None:
        self.is_on = bool(endpoint)
        self._provider: Any = None
        if not endpoint:
            return
        if OTLPSpanExporter is None:
            raise OptionError(
                "traces need OpenTelemetry's packages",
                help="pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-grpc",
            )
        exporter = OTLPSpanExporter(endpoint=endpoint, insecure=True)
        self._provider = TracerProvider(resource=Resource.create({"service.name": "ridgeline"}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("ridgeline.serve")
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def span(self, request: InferRequest) -> Iterator[None]:
        """From admission to answer; an error of the request is one of its span."""
        parent = self._propagator.extract({"traceparent": request.trace}) if request.trace else None
        attributes = {"model": request.model, "version": request.version, "request.id": request.id}
        with self._tracer.start_as_current_span("infer", context=parent, attributes=attributes):
            yield

    def close(self) -> None:
        if self._provider is not None:
            self._provider.shutdown()
