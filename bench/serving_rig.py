"""What the checks of a server are made of: a model, `ridge serve` on a core of its own, and clients."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

import ridgeline
from ridgeline.serve.clients.client import Client, ServerError

SERVER_CORE, CLIENT_CORE = 0, 1
START_S = 180.0
LOAD_TEST_S = 600.0
PORT = re.compile(r"http +127\.0\.0\.1:(\d+)")
GRPC_PORT = re.compile(r"grpc +127\.0\.0\.1:(\d+)")
READY = re.compile(r'^ready|"event": "ready"', re.MULTILINE)


def perceptron(path: Path, sizes: tuple[int, ...], *, bias: float = 0.0, batch: int = 8) -> None:
    """A multi-layer perceptron as an engine; `bias` is added to its output, to tell generations apart."""
    layers = list(pairwise(sizes))
    weights = ", ".join(f"float[{a},{b}] w{i}" for i, (a, b) in enumerate(layers))
    lines, value = [], "x"
    for i in range(len(layers)):
        made = f"h{i}"
        lines.append(f"m{i} = MatMul ({value}, w{i})")
        lines.append(f"{made} = Relu (m{i})" if i < len(layers) - 1 else f"{made} = Identity (m{i})")
        value = made
    text = (
        f'<ir_version: 8, opset_import: ["" : 18]>\n'
        f"mlp (float[batch, {sizes[0]}] x, {weights}) => (float[batch, {sizes[-1]}] y)"
        f" <float c = {{{bias}}}> {{\n{chr(10).join(lines)}\ny = Add ({value}, c)\n}}"
    )
    model = ir.from_proto(onnx.parser.parse_model(text))
    random = np.random.default_rng(0)
    for value_of in list(model.graph.inputs)[1:]:
        shape = value_of.shape.numpy()
        value_of.const_value = ir.tensor(
            (random.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32), name=value_of.name
        )
        model.graph.inputs.remove(value_of)
        model.graph.register_initializer(value_of)
    profiles = [{"batch": "1"}, {"batch": f"2..{batch}..{batch}"}]
    engine = ridgeline.build(model, profiles=profiles, threads=1, level=1, verify="fast", progress=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".ridge.part")
    engine.save(part.with_name("new.ridge"))
    part.with_name("new.ridge").replace(path)


@dataclass
class Served:
    process: subprocess.Popen[str]
    port: int
    log: Path
    grpc_port: int = 0  # none

    def client(self) -> Client:
        return Client(f"127.0.0.1:{self.port}", timeout=60)

    def pids(self) -> dict[str, int]:
        with self.client() as client:
            workers = client.ask("GET", "/v2/ridgeline/status")["workers"]
        return {row["device"]: row["pid"] for row in workers if row["pid"]} | {"server": self.process.pid}


@contextmanager
def served(
    repository: Path, *words: str, core: int | None = SERVER_CORE, grpc: bool = False
) -> Iterator[Served]:
    """`ridge serve` as a process of its own."""
    log = Path(tempfile.mkdtemp()) / "log"
    protocols = ["--grpc", "0"] if grpc else ["--no-grpc"]
    with log.open("w") as told:
        process = subprocess.Popen(
            [sys.executable, "-m", "ridgeline", "serve", str(repository), "--http", "0", *protocols,
             "--no-metrics", *words],
            stdout=told, stderr=told, text=True,
            preexec_fn=None if core is None else (lambda: os.sched_setaffinity(0, {core})),
        )  # fmt: skip
    end = time.monotonic() + START_S
    while not READY.search(log.read_text()):
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            raise RuntimeError(f"the server did not start:\n{log.read_text()}")
        time.sleep(0.05)
    found = PORT.search(log.read_text())
    assert found is not None
    over_grpc = GRPC_PORT.search(log.read_text())
    try:
        yield Served(process, int(found[1]), log, int(over_grpc[1]) if over_grpc else 0)
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def load_test(server: Served, model: str, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "ridgeline", "loadtest", f"127.0.0.1:{server.port}", model, *words,
         "--json", "-q"],
        capture_output=True, text=True, check=False, timeout=LOAD_TEST_S,
        preexec_fn=lambda: os.sched_setaffinity(0, {CLIENT_CORE}),
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"the load test failed: {done.stderr[-1000:]}\n{server.log.read_text()[-1000:]}")
    return json.loads(done.stdout)


def descendants(pid: int) -> list[int]:
    """Of a process that is there: whoever it started, and whoever they did."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *descendants(child)]
    return found


def cpu_s(pid: int) -> float:
    """Time that all threads of a process have had a core."""
    told = [path.read_text().split()[0] for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(map(int, told)) / 1e9


class Asking:
    """Threads that ask without end, and check every answer."""

    def __init__(self, server: Served, model: str, clients: int, is_right: Callable[[float], bool]) -> None:
        self.answered, self.refused, self.wrong = 0, 0, 0
        self.failures: list[str] = []
        self._server, self._model, self._is_right = server, model, is_right
        self._ends = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        x = np.zeros((1, 64), np.float32)
        with self._server.client() as client:
            while not self._ends.is_set():
                try:
                    value = float(client.infer(self._model, {"x": x})["y"][0, 0])
                except ServerError as error:
                    with self._lock:
                        self.failures.append(f"{error.status}: {error.what} {error.got}"[:200])
                    if not error.status:  # the server takes no connections any more
                        return
                    continue
                with self._lock:
                    self.answered += 1
                    self.wrong += not self._is_right(value)

    def end(self) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()
