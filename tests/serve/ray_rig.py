"""Run by `test_ray` in a process of its own: Ray leaves threads and changed handlers behind."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import ray

import ridgeline
from ridgeline.serve.clients.client import Client
from ridgeline.serve.ray import application
from ridgeline.serve.ray_cluster import deploy, start_cluster
from ridgeline.serve.ray_data import map_engine
from ridgeline.serve.settings import Settings

DEPLOY_S, ROWS, BATCH = 60.0, 11, 4


def main(root: str, port: str) -> None:
    engine = Path(root) / "shift" / "1" / "model.ridge"
    settings = Settings((Path(root),), http_port=int(port), grpc_port=None, metrics_port=None)
    start_cluster(settings, num_cpus=3, object_store_memory=100 * 2**20)
    try:
        assert deploy(application(settings, replicas=2, num_cpus=0.5), settings, seconds=DEPLOY_S)
        told = {"served": served(port, engine), "mapped": mapped(engine)}
    finally:
        ray.shutdown()
    sys.stdout.write(json.dumps(told))


def served(port: str, engine: Path) -> dict[str, object]:
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    x[0] = np.nan, np.inf, -np.inf, -0.0
    with Client(f"127.0.0.1:{port}") as client:
        got = client.infer("shift", {"x": x})["y"]
        return {
            "ready": client.is_ready() and client.is_ready("shift"),
            "inputs": [each.name for each in client.metadata("shift").inputs],
            "equal": got.tobytes() == ridgeline.load(engine).run({"x": x})["y"].tobytes(),
        }


def mapped(engine: Path) -> dict[str, object]:
    """Three batches of which the last is an odd one; `id` is no input."""
    data = np.random.default_rng(1).normal(size=(ROWS, 4)).astype(np.float32)
    rows: Iterable[dict[str, object]] = ({"id": at, "image": row} for at, row in enumerate(data))
    answers = map_engine(
        ray.data.from_items(list(rows), override_num_blocks=1), engine, inputs={"x": "image"},
        outputs={"y": "scores"}, batch_size=BATCH, num_cpus=0.5,
    ).take_all()  # fmt: skip
    answers.sort(key=lambda row: row["id"])
    own = ridgeline.load(engine)
    want = np.concatenate([own.run({"x": data[at : at + BATCH]})["y"] for at in range(0, ROWS, BATCH)])
    return {
        "ids": [int(row["id"]) for row in answers],
        "columns": sorted(answers[0]),
        "equal": np.stack([row["scores"] for row in answers]).tobytes() == want.tobytes(),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
