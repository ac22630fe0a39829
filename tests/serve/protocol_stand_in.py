"""A server of the protocol in a few lines, for tests of clients: it adds one, as late or as badly as asked.

It runs in a thread with an event loop of its own. The real server is tested with the same clients elsewhere;
this one misbehaves in ways that the real one must not.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MODEL = {
    "name": "add_one", "versions": ["1"], "platform": "ridgeline",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}],
}  # fmt: skip
Reply = tuple[int, dict[str, str], bytes]


@dataclass
class StandIn:
    """What it answers can be replaced by path; `seen` are the requests so far."""

    port: int = 0
    replies: dict[str, Reply | bytes] = field(default_factory=dict)
    delay_s: float = 0.0
    seen: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    keep_seen: bool = True
    answered: int = 0
    connections: int = 0
    chunked: bool = False
    close_after: int = 0  # answers, on each connection; 0: never
    closes_unsaid: bool = False  # without a header that says so
    fails_after: int = 0  # inferences; 0: never
    silent: bool = False  # no inference is answered
    gate: asyncio.Semaphore | None = None

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            count = 0
            while not self.close_after or count < self.close_after:
                count += 1
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                first, *lines = head.strip().split("\r\n")
                method, path, _ = first.split(" ")
                headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                if self.keep_seen:
                    self.seen.append((method, path, headers, body))
                await self._answer(writer, path, headers, body, is_last=count == self.close_after)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            return
        finally:
            writer.close()

    async def _answer(
        self, writer: asyncio.StreamWriter, path: str, headers: dict[str, str], body: bytes, *, is_last: bool
    ) -> None:
        reply = self.replies.get(path)
        if isinstance(reply, bytes):  # raw, and then the end
            writer.write(reply)
            raise ConnectionError
        if reply is None and path.endswith("/infer"):
            if self.silent:
                await asyncio.sleep(3600)
            await self._work()
            self.answered += 1
            is_bad = self.fails_after and self.answered > self.fails_after
            reply = (503, {}, b'{"error":"busy"}') if is_bad else infer(headers, body)
        status, more, content = reply or self._told(path)
        lines = [f"HTTP/1.1 {status} Any", *(f"{name}: {value}" for name, value in more.items())]
        lines.append("Transfer-Encoding: chunked" if self.chunked else f"Content-Length: {len(content)}")
        if is_last and not self.closes_unsaid:
            lines.append("Connection: close")
        if self.chunked:
            half = len(content) // 2
            content = (
                b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (content[:half], content[half:]) if p)
                + b"0\r\n\r\n"
            )
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + content)
        await writer.drain()

    async def _work(self) -> None:
        if self.gate is not None:
            async with self.gate:
                await asyncio.sleep(self.delay_s)
        elif self.delay_s:
            await asyncio.sleep(self.delay_s)

    def _told(self, path: str) -> Reply:
        if path == "/v2/models/add_one/stats":
            return 200, {}, json.dumps(self._statistics()).encode()
        if path == "/v2/models/add_one":
            return 200, {}, json.dumps(MODEL).encode()
        if path.startswith("/v2/health") or path.endswith("/ready"):
            return 200, {}, b""
        return 404, {}, b'{"error":"Not Found"}'

    def _statistics(self) -> dict[str, Any]:
        """Two rows to a batch, 100 µs in the queue and 50 µs of compute for each request."""
        count = self.answered
        times = {"success": 200, "queue": 100, "compute_input": 1, "compute_infer": 50, "compute_output": 2}
        told = {name: {"count": count, "ns": us * 1000 * count} for name, us in times.items()}
        row = {
            "name": "add_one",
            "version": "1",
            "inference_count": count,
            "execution_count": (count + 1) // 2,
        }
        return {"model_stats": [row | {"inference_stats": told}]}


def infer(headers: dict[str, str], body: bytes) -> Reply:
    length = int(headers["inference-header-content-length"])
    asked = json.loads(body[:length])
    (given,) = asked["inputs"]
    array = np.frombuffer(body[length:], np.float32).reshape(given["shape"]) + 1
    output = {"name": "y", "datatype": "FP32", "shape": given["shape"]}
    output["parameters"] = {"binary_data_size": array.nbytes}
    text = json.dumps({"model_name": "add_one", "model_version": "1", "outputs": [output]}).encode()
    return 200, {"Inference-Header-Content-Length": str(len(text))}, text + array.tobytes()


@contextmanager
def stand_in(**options: Any) -> Iterator[StandIn]:
    server, ready, loop = StandIn(**options), threading.Event(), asyncio.new_event_loop()

    async def run() -> None:
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        server.port = listening.sockets[0].getsockname()[1]
        ready.set()
        async with listening:
            await ended.wait()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    ended = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    ready.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)
        loop.close()
