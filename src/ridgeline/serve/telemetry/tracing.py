"""Traces of requests for OpenTelemetry: a span for each, with its wait and its run inside.

They go to a collector as OTLP over HTTP in JSON, in batches, from a thread of their own: a collector that is
slow or gone costs spans, never requests.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import Any

from ridgeline.errors import OptionError
from ridgeline.serve.errors import RequestError
from ridgeline.serve.messages import InferRequest, InferResponse

SEND_EVERY_S = 1.0
SENT_AT_ONCE = 512
KEPT = 8192  # spans that wait for a collector; the oldest go first
TIMEOUT_S = 5.0
INTERNAL, SERVER = 1, 2  # kinds of spans
OK, ERROR = 1, 2
PATH = "/v1/traces"
DEFAULT_PORT = 4318
# neither id may be all zeros, nor the version ff
TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}\Z")
_log = logging.getLogger(__name__)


def known_traceparent(text: str) -> str:
    """`text` if it is a traceparent of W3C, else nothing: then a trace begins here."""
    return text if TRACEPARENT.match(text) else ""


@dataclass
class Traced:
    """A request that is traced. `response` tells how long it waited and ran."""

    response: InferResponse | None = None


class Tracing:
    """Nothing at all without an address to send to."""

    def __init__(self, endpoint: str) -> None:
        self.is_on = bool(endpoint)
        self._spans: deque[dict[str, Any]] = deque(maxlen=KEPT)
        if self.is_on:
            self._sender = _Sender(*_address(endpoint), self._spans)

    @contextmanager
    def span(self, request: InferRequest) -> Iterator[Traced]:
        """From admission to answer, as a child of the span that the client names."""
        parts = TRACEPARENT.match(request.trace)
        trace, parent = parts.groups() if parts else (secrets.token_hex(16), "")
        traced, began = Traced(), time.time_ns()
        attributes = {"model": request.model, "version": request.version, "request.id": request.id}
        status: dict[str, Any] = {"code": OK}
        try:
            yield traced
        except BaseException as error:
            text = error.message if isinstance(error, RequestError) else type(error).__name__
            status = {"code": ERROR, "message": text}
            raise
        finally:
            own = secrets.token_hex(8)
            self._spans.append(
                _span("infer", trace, own, parent, began, time.time_ns(), attributes, SERVER, status)
            )
            if traced.response is not None:
                ran = began + traced.response.queue_ns
                self._spans.append(_span("queue", trace, secrets.token_hex(8), own, began, ran))
                ended = ran + traced.response.run_ns
                self._spans.append(_span("run", trace, secrets.token_hex(8), own, ran, ended))

    def close(self) -> None:
        if self.is_on:
            self._sender.close()


def _address(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    if not port.isdecimal() and ":" not in endpoint:
        host, port = endpoint, str(DEFAULT_PORT)
    if not host or not port.isdecimal():
        raise OptionError(
            f"{endpoint!r} is no address to send traces to", want="HOST:PORT, such as localhost:4318"
        )
    return host.strip("[]"), int(port)


def _span(
    name: str, trace: str, own: str, parent: str, began_ns: int, ended_ns: int,
    attributes: Mapping[str, str] | None = None, kind: int = INTERNAL,
    status: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """A span in OTLP's JSON.

    Parameters: the fields of a span, which has that many.
    """
    return {
        "traceId": trace, "spanId": own, "parentSpanId": parent, "name": name, "kind": kind,
        "startTimeUnixNano": str(began_ns), "endTimeUnixNano": str(ended_ns), "status": status or {},
        "attributes": [_attribute(key, value) for key, value in (attributes or {}).items() if value],
    }  # fmt: skip


def _attribute(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value}}


class _Sender:
    def __init__(self, host: str, port: int, spans: deque[dict[str, Any]]) -> None:
        self._host, self._port, self._spans = host, port, spans
        self._ends = threading.Event()
        self._is_failing = False
        self._thread = threading.Thread(target=self._keep_sending, name="traces", daemon=True)
        self._thread.start()

    def _keep_sending(self) -> None:
        while not self._ends.wait(SEND_EVERY_S):
            self._send_all()
        self._send_all()

    def _send_all(self) -> None:
        while self._spans:
            batch = [self._spans.popleft() for _ in range(min(SENT_AT_ONCE, len(self._spans)))]
            try:
                self._send(batch)
                self._is_failing = False
            except (OSError, HTTPException) as error:
                if not self._is_failing:
                    _log.warning("traces cannot be sent to %s:%d: %s", self._host, self._port, error)
                self._is_failing = True
                return

    def _send(self, spans: list[dict[str, Any]]) -> None:
        resource = {"attributes": [_attribute("service.name", "ridgeline")]}
        scope = {"scope": {"name": "ridgeline.serve"}, "spans": spans}
        body = json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]})
        connection = HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        try:
            connection.request("POST", PATH, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            if answer.status >= 300:
                raise HTTPException(f"the collector answers {answer.status}")
        finally:
            connection.close()

    def close(self) -> None:
        self._ends.set()
        self._thread.join(2 * TIMEOUT_S)
