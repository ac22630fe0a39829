"""What a server promises, measured: what batching gains and serving adds, what reloads and deaths cost.

`python -m bench.serving_checks gain latency cpu reloads drains kill soak` writes a file of results for each.
The server runs on core 0 and its clients on core 1. `--soak-minutes` says how long the soak lasts.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

import ridgeline
from bench.serving_rig import PORT, SERVER_CORE, Asking, Served, cpu_s, load_test, perceptron, served
from ridgeline.tactics.cache import cpu_name

RESULTS = Path(__file__).parent / "results"
WIDE = 2048  # of the layers of the model whose weights are its cost: a batch of 8 reads them once


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


class Pauses(threading.Thread):
    """How long the machine lets nothing run: what a thread oversleeps that wakes every millisecond."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._ends = threading.Event()
        self._found_ms: list[float] = []

    def run(self) -> None:
        while not self._ends.is_set():
            began = time.perf_counter()
            time.sleep(1e-3)
            self._found_ms.append(1e3 * (time.perf_counter() - began) - 1.0)

    def end(self) -> dict[str, float]:
        self._ends.set()
        self.join()
        return {
            "longest_ms": round(max(self._found_ms), 1),
            "over_10_ms": sum(each > 10 for each in self._found_ms),
        }


def soak(root: Path, minutes: float = 30.0) -> dict[str, Any]:
    """At 70 % of the highest rate with p99 within 20 ms: memory, descriptors and latency, minute by minute.

    Users who do not wait for one another make smaller batches than clients in a closed loop, whose throughput
    is therefore no measure of what an open loop can take.
    """
    perceptron(root / "m" / "1" / "model.ridge", (64, 256, 10))
    with served(root) as server:
        report = load_test(server, "m", "--p99-below", "20ms", "--duration", "4", "--warmup", "1")
        rate = round(0.7 * report["best_rps"])
        log = []
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            pauses = Pauses()
            pauses.start()
            row = load_test(server, "m", "--rate", str(rate), "--duration", "25", "--warmup", "1")["rows"][0]
            paused = pauses.end()
            pids = server.pids()
            log.append({
                "minute": round((60 * minutes - (end - time.monotonic())) / 60, 1),
                "pss_kib": {name: resident_kib(pid) for name, pid in pids.items()},
                "fds": {name: len(os.listdir(f"/proc/{pid}/fd")) for name, pid in pids.items()},
                "p50_us": row["percentiles_us"]["50"], "p99_us": row["percentiles_us"]["99"],
                "requests": row["requests"], "errors": row["errors"], "pauses_of_the_machine": paused,
            })  # fmt: skip
            print(log[-1], flush=True)
    total = [sum(each["pss_kib"].values()) for each in log]
    settled = next((i for i, each in enumerate(log) if each["minute"] >= 5), 0)
    return {
        "highest_rate": report["best_rps"], "rate": rate, "requests": sum(each["requests"] for each in log),
        "growth_after_5_minutes": statistics.median(total[-3:])
        / statistics.median(total[settled : settled + 3])
        - 1,
        "p99_us_first_and_last": [log[0]["p99_us"], log[-1]["p99_us"]],
        "p99_us_quartiles": statistics.quantiles([each["p99_us"] for each in log], n=4), "log": log,
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
