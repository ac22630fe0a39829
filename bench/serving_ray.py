"""Ray Serve's replicas: two against one on a model that sleeps, and one of two killed under load.

RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 RAY_USAGE_STATS_ENABLED=0 python -m bench.serving_ray
"""

from __future__ import annotations

import json
import os
import platform
import signal
import socket
import sys
import tempfile
import threading
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import ray
from ray import serve

from ridgeline.serve.clients.client import Client
from ridgeline.serve.ray import application
from ridgeline.serve.ray_cluster import APPLICATION, deploy, start_cluster
from ridgeline.serve.settings import Settings

RESULTS = Path(__file__).parent / "results"
CONFIG = """max_batch_size: 1
input { name: "x" data_type: TYPE_FP32 dims: 4 }
output { name: "y" data_type: TYPE_FP32 dims: 4 }
"""
MODEL = """import time
def run(inputs):
    time.sleep(0.02)
    return {"y": inputs["x"] + 1}
"""
CLIENTS, SECONDS, DEPLOY_S, BACK_S = 8, 5.0, 90.0, 60.0


class Load:
    """Clients that ask one request after another, until they are told to end."""

    def __init__(self, port: int) -> None:
        self.counts: Counter[str] = Counter()
        self._port, self._ends = port, threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        x = np.ones((1, 4), np.float32)
        while not self._ends.is_set():
            with Client(f"127.0.0.1:{self._port}", timeout=10.0) as client:
                try:
                    while not self._ends.is_set():
                        self.counts["sent"] += 1
                        right = np.array_equal(client.infer("sleeps", {"x": x})["y"], x + 1)
                        self.counts["answered" if right else "wrong"] += 1
                except Exception as error:
                    self.counts["failed"] += 1
                    self.counts[f"{type(error).__name__}: {error}"[:100]] += 1

    def end(self) -> Counter[str]:
        self._ends.set()
        for thread in self._threads:
            thread.join()
        return self.counts


def throughput(port: int) -> float:
    load, began = Load(port), monotonic()
    sleep(SECONDS)
    return round(load.end()["answered"] / (monotonic() - began), 1)


def replica_pids() -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command = (folder / "cmdline").read_bytes()
                # of this cluster alone: its processes share our session
                if b"ServeReplica" in command and os.getsid(int(folder.name)) == os.getsid(0):
                    found.append(int(folder.name))
            except (OSError, ProcessLookupError):
                continue
    return found


def running_replicas() -> int:
    deployment = serve.status().applications[APPLICATION].deployments["server"]
    return int(deployment.replica_states.get("RUNNING", 0))


def kill_one(port: int) -> dict[str, Any]:
    load = Load(port)
    sleep(2.0)
    pids = replica_pids()
    assert len(pids) == 2, pids
    os.kill(pids[0], signal.SIGKILL)
    killed = monotonic()
    while running_replicas() == 2 and monotonic() < killed + BACK_S:
        sleep(0.05)
    noticed = monotonic() - killed
    while running_replicas() < 2 and monotonic() < killed + BACK_S:
        sleep(0.1)
    back = monotonic() - killed
    counts = load.end()
    lost = counts["sent"] - counts["answered"] - counts["failed"] - counts["wrong"]
    return {"noticed_s": round(noticed, 2), "two_again_s": round(back, 2), "lost": lost, **counts}


def main() -> int:
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "sleeps" / "1"
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(MODEL)
        (folder.parent / "config.pbtxt").write_text(CONFIG)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        settings = Settings((Path(root),), http_port=port, python_steps=True)
        rates = {}
        start_cluster(settings, num_cpus=3, log_to_driver=False, object_store_memory=100 * 2**20)
        try:
            for replicas in (1, 2):
                app = application(settings, replicas=replicas, num_cpus=0.5)
                assert deploy(app, settings, seconds=DEPLOY_S), "nobody ends it"
                while running_replicas() != replicas:
                    sleep(0.1)
                rates[replicas] = throughput(port)
            killed = kill_one(port)
        finally:
            ray.shutdown()
    now = datetime.now(UTC)
    told = {
        "date": now.isoformat(timespec="seconds"),
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "system": platform.platform()},
        "versions": {"ray": ray.__version__, "python": platform.python_version(), "numpy": np.__version__},
        "model": "sleeps 20 ms, batches of 1",
        "clients": CLIENTS,
        "requests_per_s": rates,
        "ratio": round(rates[2] / rates[1], 2),
        "killed": killed,
    }
    (RESULTS / f"serving-ray-{now:%Y-%m-%d}.json").write_text(json.dumps(told, indent=1) + "\n")
    print(json.dumps(told, indent=1))
    return 0 if told["ratio"] >= 1.7 and not killed["lost"] else 3


if __name__ == "__main__":
    sys.exit(main())
