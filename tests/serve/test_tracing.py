"""Traces as a collector gets them: a real one over HTTP, on the loopback address."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from serving import put_model, rows, serving

from ridgeline.errors import OptionError
from ridgeline.serve.clients.client import ServerError
from ridgeline.serve.clients.over_grpc import GrpcClient
from ridgeline.serve.telemetry.tracing import Tracing, known_traceparent

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@contextmanager
def collector(status: int = 200) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Its address, and the spans that came."""
    spans: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            spans.extend(sent["resourceSpans"][0]["scopeSpans"][0]["spans"])
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Tests are quiet."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}", spans
        finally:
            server.shutdown()
            thread.join()


def test_a_request_is_a_span_with_its_wait_and_its_run_inside(tmp_path: Path) -> None:
    put_model(tmp_path, "m")
    with collector() as (address, spans):
        with serving(tmp_path, otlp=address) as running:
            with running.client(headers={"traceparent": f"00-{TRACE}-{PARENT}-01"}) as client:
                client.infer("m", {"x": rows(1)})
            with running.client() as client, pytest.raises(ServerError):
                client.infer("m", {"x": rows(*range(9))})
        good, failed = [span for span in spans if span["name"] == "infer"]
        assert (good["traceId"], good["parentSpanId"], good["status"]["code"]) == (TRACE, PARENT, 1)
        inside = {span["name"]: span for span in spans if span["parentSpanId"] == good["spanId"]}
        assert set(inside) == {"queue", "run"}
        assert all(span["traceId"] == TRACE for span in inside.values())
        began, ended = int(good["startTimeUnixNano"]), int(good["endTimeUnixNano"])
        assert (
            began <= int(inside["run"]["startTimeUnixNano"]) <= int(inside["run"]["endTimeUnixNano"]) <= ended
        )
        assert failed["traceId"] != TRACE
        assert "takes 1 to 8" in failed["status"]["message"]


def test_a_parent_that_is_none_begins_a_trace(tmp_path: Path) -> None:
    put_model(tmp_path, "m")
    with collector() as (address, spans):
        with serving(tmp_path, otlp=address, grpc_port=0) as running:
            grpc = f"127.0.0.1:{running.ports['grpc']}"
            for trace in ("x", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE}-{PARENT}-01"):
                headers = {"traceparent": trace}
                with GrpcClient(grpc, headers=headers) as client, running.client(headers=headers) as http:
                    for each in (client, http):
                        assert each.infer("m", {"x": rows(1)})["y"][0, 0] == 1
        parents = [span["parentSpanId"] for span in spans if span["name"] == "infer"]
        assert parents == ["", "", "", "", PARENT, PARENT]
        assert len({span["traceId"] for span in spans}) == 5


@pytest.mark.parametrize("version", ["00", "01", "fe"])
def test_a_parent_has_ids(version: str) -> None:
    good = f"{version}-{TRACE}-{PARENT}-01"
    assert known_traceparent(good) == good
    for wrong in (
        good + "-",
        good[:-1],
        good + "\n",
        "ff" + good[2:],
        good.upper(),
        f"00-{TRACE}-{'0' * 16}-01",
    ):
        assert known_traceparent(wrong) == ""


def test_a_collector_that_refuses_costs_no_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put_model(tmp_path, "m")
    with (
        collector(status=500) as (address, _),
        serving(tmp_path, otlp=address) as running,
        running.client() as client,
    ):
        assert client.infer("m", {"x": rows(1)})["y"][0, 0] == 1
    assert "the collector answers 500" in caplog.text


def test_an_address_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(OptionError, match="no address to send traces to"):
        Tracing("localhost:port")
