"""Serves a text at /metrics. It is made in a thread of its own, so a scrape never waits for a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ridgeline.base.exposition import CONTENT_TYPE
from ridgeline.errors import OptionError, RidgelineError

PATH = "/metrics"
UNAVAILABLE = 503


class MetricsServer:
    """Listens from the start; `make` is called every `interval_s` until it is closed."""

    def __init__(self, make: Callable[[], str], *, host: str, port: int, interval_s: float) -> None:
        self._make, self._interval_s = make, interval_s
        self._text, self._problem = "", ""
        self._ended = threading.Event()
        try:
            self._server = ThreadingHTTPServer((host, port), self._handler())
        except OSError as error:
            raise OptionError(
                f"cannot listen on {host}:{port}",
                got=str(error),
                help="give another --port, or 0 for a free one",
            ) from error
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._refresh, self._server.serve_forever)
        ]

    @property
    def port(self) -> int:
        """The one it listens on, which is another than was asked for if that was 0."""
        return int(self._server.server_address[1])

    def __enter__(self) -> MetricsServer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            thread.join()

    def wait(self) -> None:
        """Until it is closed; a signal interrupts it."""
        while not self._ended.wait(1.0):
            pass

    def _refresh(self) -> None:
        while True:
            try:
                self._text, self._problem = self._make(), ""
            except RidgelineError as error:  # a GPU that is lost: old figures would pass for new ones
                self._problem = error.what
            if self._ended.wait(self._interval_s):
                return

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.split("?")[0] != PATH:
                    self._answer(404, f"see {PATH}\n")
                elif server._problem or not server._text:
                    self._answer(UNAVAILABLE, f"{server._problem or 'no sample yet'}\n")
                else:
                    self._answer(200, server._text)

            def _answer(self, status: int, text: str) -> None:
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Scrapes are not news."""

        return Handler
