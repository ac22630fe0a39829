"""What a server promises, measured: what batching gains and serving adds, what reloads and deaths cost.

`python -m bench.serving_checks gain latency cpu reloads drains kill soak` writes a file of results for each.
The server runs on core 0 and its clients on core 1. `--soak-minutes` says how long the soak lasts.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

import ridgeline
from ridgeline.serve.clients.client import Client, ServerError
from ridgeline.tactics.cache import cpu_name

RESULTS = Path(__file__).parent / "results"
SERVER_CORE, CLIENT_CORE = 0, 1
WIDE = 2048  # of the layers of the model whose weights are its cost: a batch of 8 reads them once
START_S = 180.0
PORT = re.compile(r"http +127\.0\.0\.1:(\d+)")
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

    def client(self) -> Client:
        return Client(f"127.0.0.1:{self.port}", timeout=60)

    def pids(self) -> dict[str, int]:
        with self.client() as client:
            workers = client.ask("GET", "/v2/ridgeline/status")["workers"]
        return {row["device"]: row["pid"] for row in workers if row["pid"]} | {"server": self.process.pid}


@contextmanager
def served(repository: Path, *words: str, core: int | None = SERVER_CORE) -> Iterator[Served]:
    """`ridge serve` as a process of its own."""
    log = Path(tempfile.mkdtemp()) / "log"
    with log.open("w") as told:
        process = subprocess.Popen(
            [sys.executable, "-m", "ridgeline", "serve", str(repository), "--http", "0", "--no-grpc",
             "--no-metrics", *words],
            stdout=told, stderr=told, text=True,
            preexec_fn=None if core is None else (lambda: os.sched_setaffinity(0, {core})),
        )  # fmt: skip
    end = time.monotonic() + START_S
    while not READY.search(log.read_text()):
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"the server did not start:\n{log.read_text()}")
        time.sleep(0.05)
    found = PORT.search(log.read_text())
    assert found is not None
    try:
        yield Served(process, int(found[1]), log)
    finally:
        process.terminate()
        process.wait(60)


def load_test(server: Served, model: str, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "ridgeline", "loadtest", f"127.0.0.1:{server.port}", model, *words,
         "--json", "-q"],
        capture_output=True, text=True, check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {CLIENT_CORE}),
    )  # fmt: skip
    return json.loads(done.stdout)


def gain(root: Path) -> dict[str, Any]:
    """32 clients of a model whose batch of 8 costs little more than one of 1, with and without batching."""
    path = root / "batched" / "1" / "model.ridge"
    perceptron(path, (WIDE, WIDE, WIDE, 16))
    engine = ridgeline.load(path)
    single, eight = (run_us(engine, rows, WIDE) for rows in (1, 8))
    alone = root / "alone"
    (alone / "1").mkdir(parents=True)
    (alone / "1" / "model.ridge").write_bytes(path.read_bytes())
    (alone / "config.pbtxt").write_text("max_batch_size: 1\n")
    rates = {}
    with served(root) as server:
        for model in ("alone", "batched"):
            report = load_test(server, model, "--concurrency", "32", "--duration", "8", "--warmup", "2")
            rates[model] = report["rows"][0]
    return {
        "engine_batch1_us": single, "engine_batch8_us": eight, "batch8_over_batch1": eight / single,
        "alone_rps": rates["alone"]["throughput_rps"], "batched_rps": rates["batched"]["throughput_rps"],
        "gain": rates["batched"]["throughput_rps"] / rates["alone"]["throughput_rps"],
        "rows_per_batch": rates["batched"]["server"]["rows_per_batch"], "rows": rates,
    }  # fmt: skip


def run_us(engine: ridgeline.Engine, rows: int, width: int, calls: int = 300) -> float:
    x = np.ones((rows, width), np.float32)
    run = engine.context().run
    times = []
    for _ in range(calls):
        began = time.perf_counter()
        run({"x": x})
        times.append(time.perf_counter() - began)
    return statistics.median(times[calls // 3 :]) * 1e6


def latency(root: Path) -> dict[str, Any]:
    """What serving adds for one client, from its body read to the answer written, over the engine alone."""
    path = root / "small" / "1" / "model.ridge"
    perceptron(path, (64, 256, 10))
    own = run_us(ridgeline.load(path), 1, 64, 3000)
    found: dict[str, Any] = {"engine_run_us": own}
    for name, words in {"worker": [], "in_process": ["--in-process"]}.items():
        # two cores: with one the client's turn would be in the figure
        with served(root, "--access-log", "--log-json", *words, core=None) as server:
            report = load_test(server, "small", "--concurrency", "1", "--duration", "6", "--warmup", "1")
            lines = server.log.read_text().splitlines()
        events = [json.loads(line) for line in lines if line.startswith("{") and "/infer" in line]
        times = sorted(1000 * event["duration_ms"] for event in events[len(events) // 3 :])
        found[name] = {
            "server_p50_us": times[len(times) // 2], "added_p50_us": times[len(times) // 2] - own,
            "client_p50_us": report["rows"][0]["percentiles_us"]["50"], "requests": len(events),
        }  # fmt: skip
    return found


def cpu_s(pid: int) -> float:
    """Time that all threads of a process have had a core."""
    told = [path.read_text().split()[0] for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(map(int, told)) / 1e9


def cpu(root: Path) -> dict[str, Any]:
    """What a request over HTTP, all of it binary, costs the server's process; the worker's beside it."""
    perceptron(root / "small" / "1" / "model.ridge", (64, 256, 10))
    rows = []
    with served(root) as server:
        load_test(server, "small", "--concurrency", "16", "--duration", "2", "--warmup", "0")
        pids = server.pids()
        for clients in (1, 4, 16, 64):
            before = {name: cpu_s(pid) for name, pid in pids.items()}
            with server.client() as client:
                had = client.statistics("small")["model_stats"][0]["inference_count"]
            words = ["--concurrency", str(clients), "--duration", "6", "--warmup", "0"]
            row = load_test(server, "small", *words)["rows"][0]
            with server.client() as client:
                requests = client.statistics("small")["model_stats"][0]["inference_count"] - had
            spent = {name: 1e6 * (cpu_s(pid) - before[name]) / requests for name, pid in pids.items()}
            rows.append({
                "clients": clients, "requests": requests, "throughput_rps": row["throughput_rps"],
                "cpu_us_per_request": spent, "p50_us": row["percentiles_us"]["50"],
            })  # fmt: skip
    path = http_path()
    return {
        "http_path_us_at_16": path[-1]["cpu_us_per_request"],
        "server_us_at_16": rows[2]["cpu_us_per_request"]["server"], "http_path": path, "rows": rows,
    }  # fmt: skip


def http_path() -> list[dict[str, Any]]:
    """Bytes of HTTP to a request and back, without a model behind them."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.serving_echo"], stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {SERVER_CORE}),
    )  # fmt: skip
    try:
        assert process.stdout is not None
        found = PORT.search(process.stdout.readline())
        assert found is not None
        server = Served(process, int(found[1]), Path())
        rows = []
        for clients in (1, 16):
            before = cpu_s(process.pid)
            words = ["--concurrency", str(clients), "--duration", "6", "--warmup", "0"]
            row = load_test(server, "echo", *words)["rows"][0]
            spent = 1e6 * (cpu_s(process.pid) - before) / row["requests"]
            rows.append({
                "clients": clients, "requests": row["requests"], "cpu_us_per_request": spent,
                "throughput_rps": row["throughput_rps"], "p50_us": row["percentiles_us"]["50"],
            })  # fmt: skip
    finally:
        process.kill()
        process.wait()
    return rows


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


def reloads(root: Path, count: int = 200) -> dict[str, Any]:
    """Every answer is that of a generation that was served at that time."""
    folder = root / "m" / "1"
    others = [root.parent / f"generation{i}.ridge" for i in range(2)]
    for i, other in enumerate(others):
        perceptron(other, (64, 256, 10), bias=float(i + 1))
    folder.mkdir(parents=True)
    (folder / "model.ridge").write_bytes(others[0].read_bytes())
    with served(root, "--model-control", "explicit", "--load", "*", core=None) as server:
        asking = Asking(server, "m", 8, lambda value: value in (1.0, 2.0))
        began = time.monotonic()
        took = []
        with server.client() as client:
            for i in range(count):
                (folder / "new").write_bytes(others[(i + 1) % 2].read_bytes())
                (folder / "new").replace(folder / "model.ridge")
                at = time.monotonic()
                client.ask("POST", "/v2/repository/models/m/load")
                took.append(time.monotonic() - at)
        seconds = time.monotonic() - began
        asking.end()
    return {
        "reloads": count, "seconds": seconds, "median_reload_s": statistics.median(took),
        "answered": asking.answered, "lost": len(asking.failures), "wrong": asking.wrong,
        "failures": asking.failures[:5],
    }  # fmt: skip


def drains(root: Path, count: int = 50) -> dict[str, Any]:
    """SIGTERM under load: what was accepted is answered, and the status is 0."""
    perceptron(root / "m" / "1" / "model.ridge", (64, 256, 10))
    answered, statuses, cut = 0, [], []
    for _ in range(count):
        with served(root, "--grace", "0.1", core=None) as server:
            asking = Asking(server, "m", 8, lambda value: value == 0.0)
            time.sleep(0.3)
            server.process.send_signal(signal.SIGTERM)
            statuses.append(server.process.wait(60))
            asking.end()
        answered += asking.answered
        # a refused connection was never accepted; anything else was, and got no answer
        cut += [text for text in asking.failures if "refused" not in text]
        assert not asking.wrong
    return {"drains": count, "answered": answered, "lost": len(cut), "statuses": sorted(set(statuses)),
            "examples": cut[:5]}  # fmt: skip


def kill(root: Path, count: int = 10) -> dict[str, Any]:
    """kill -9 of the worker under load: how many requests failed, and how soon it is ready again."""
    perceptron(root / "m" / "1" / "model.ridge", (64, 256, 10))
    rows = []
    with served(root, core=None) as server:
        for _ in range(count):
            asking = Asking(server, "m", 16, lambda value: value == 0.0)
            time.sleep(0.5)
            os.kill(server.pids()["cpu"], signal.SIGKILL)
            began = time.monotonic()
            with server.client() as client:
                while client.is_ready() and time.monotonic() - began < 1:
                    pass
                while not client.is_ready():
                    time.sleep(0.01)
            seconds = time.monotonic() - began
            time.sleep(0.5)
            asking.end()
            rows.append(
                {"failed": len(asking.failures), "ready_again_s": seconds, "answered": asking.answered}
            )
            time.sleep(2.0)
    return {
        "kills": rows, "most_failed": max(row["failed"] for row in rows), "largest_batch": 8,
        "slowest_s": max(row["ready_again_s"] for row in rows),
    }  # fmt: skip


def resident_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    return 0


def soak(root: Path, minutes: float = 30.0) -> dict[str, Any]:
    """At 70 % of the rate that it can take: memory, descriptors and latency, minute by minute."""
    perceptron(root / "m" / "1" / "model.ridge", (64, 256, 10))
    with served(root) as server:
        report = load_test(server, "m", "--concurrency", "16", "--duration", "5", "--warmup", "2")
        rate = round(0.7 * report["rows"][0]["throughput_rps"])
        log = []
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            row = load_test(server, "m", "--rate", str(rate), "--duration", "25", "--warmup", "0")["rows"][0]
            pids = server.pids()
            log.append({
                "minute": round((60 * minutes - (end - time.monotonic())) / 60, 1),
                "pss_kib": {name: resident_kib(pid) for name, pid in pids.items()},
                "fds": {name: len(os.listdir(f"/proc/{pid}/fd")) for name, pid in pids.items()},
                "p50_us": row["percentiles_us"]["50"], "p99_us": row["percentiles_us"]["99"],
                "requests": row["requests"], "errors": row["errors"],
            })  # fmt: skip
            print(log[-1], flush=True)
    total = [sum(each["pss_kib"].values()) for each in log]
    settled = next((i for i, each in enumerate(log) if each["minute"] >= 5), 0)
    return {
        "rate": rate, "requests": sum(each["requests"] for each in log),
        "growth_after_5_minutes": statistics.median(total[-3:])
        / statistics.median(total[settled : settled + 3])
        - 1,
        "p99_us_first_and_last": [log[0]["p99_us"], log[-1]["p99_us"]], "log": log,
    }  # fmt: skip


CHECKS: dict[str, Callable[..., dict[str, Any]]] = {
    "gain": gain, "latency": latency, "cpu": cpu, "reloads": reloads, "drains": drains, "kill": kill,
    "soak": soak,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checks", nargs="*", choices=[*CHECKS, []], default=list(CHECKS))
    parser.add_argument("--soak-minutes", type=float, default=30.0)
    parser.add_argument("--note", default="", help="what else the machine was doing")
    given = parser.parse_args()
    for name in given.checks:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder) / "repository"
            root.mkdir()
            found = CHECKS[name](root, given.soak_minutes) if name == "soak" else CHECKS[name](root)
        about = {
            "check": name, "date": str(date.today()), "cpu": cpu_name(), "cores": os.cpu_count(),
            "python": sys.version.split()[0], "load": os.getloadavg(), "note": given.note,
        }  # fmt: skip
        path = RESULTS / f"serving-{name}-{date.today()}.json"
        path.write_text(json.dumps({**about, **found}, indent=1) + "\n")
        print(
            name, json.dumps({k: v for k, v in found.items() if not isinstance(v, (list, dict))}), flush=True
        )


if __name__ == "__main__":
    main()
