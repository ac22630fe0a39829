"""Memory on the GPU: what an engine states, what PyTorch and the driver say, and too little of it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import networks
import numpy as np
import pytest
import torch

import ridgeline
from ridgeline.runtime.device import DeviceError

WITHIN = 0.05
ENGINE, CONTEXT = (
    ("weights", "packed", "kernels", "rounding"),
    ("arena", "inputs", "scratch", "graph", "libraries"),
)


@pytest.fixture(scope="module")
def heavy_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An engine of 320 MiB of weights, on disk and nowhere else."""
    path = tmp_path_factory.mktemp("heavy") / "heavy.ridge"
    ridgeline.build(networks.heavy(), target="cuda", level=0, verify="off").save(path)
    gc.collect()
    torch.cuda.empty_cache()
    yield path
    gc.collect()
    torch.cuda.empty_cache()


def test_the_driver_agrees(heavy_file: Path, clean_memory: Callable[[], int]) -> None:
    torch._C._cuda_clearCublasWorkspaces()  # of streams that ran before
    free, allocated = clean_memory(), torch.cuda.memory_allocated()
    engine = ridgeline.load(heavy_file)
    context = engine.context()
    feeds = {"x": torch.ones(64, 2048, dtype=torch.float16, device="cuda")}
    for _ in range(2):
        context.run(feeds)
    del feeds
    taken = free - clean_memory()
    stated = engine.memory()
    assert set(stated) == {*ENGINE, *CONTEXT, "total"}
    assert stated["total"] == sum(size for part, size in stated.items() if part != "total")
    weights = sum(tensor.nbytes for tensor in engine.weights.values())
    assert weights <= stated["weights"] + stated["packed"] <= 1.01 * weights, stated
    assert abs(stated["total"] - taken) <= WITHIN * taken, f"stated {stated}, the driver gave {taken:,}"
    ours = stated["total"] - stated["kernels"] - stated["graph"] - stated["rounding"]
    assert abs(torch.cuda.memory_allocated() - allocated - ours) <= 0.01 * ours, stated


def test_a_second_context_shares_the_weights(heavy_file: Path, clean_memory: Callable[[], int]) -> None:
    engine = ridgeline.load(heavy_file)
    array = np.ones((64, 2048), np.float16)
    first = engine.context()
    first.run({"x": array})
    free = clean_memory()
    second = engine.context()
    second.run({"x": array})
    stated = engine.memory()
    # segments of the allocator and of the driver are 2 MiB or 20 MiB each
    assert free - clean_memory() <= sum(stated[part] for part in CONTEXT) + (64 << 20)


def test_memory_comes_back(heavy_file: Path, clean_memory: Callable[[], int]) -> None:
    free = clean_memory()
    engine = ridgeline.load(heavy_file)
    engine.run({"x": np.ones((64, 2048), np.float16)})
    assert free - clean_memory() > 300 << 20
    del engine
    assert free - clean_memory() < 40 << 20


def test_too_little_memory_is_said_before_anything_is_allocated(
    heavy_file: Path, clean_memory: Callable[[], int]
) -> None:
    engine = ridgeline.load(heavy_file)
    clean_memory()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (32 << 20)) / total)
    try:
        with pytest.raises(DeviceError, match="too little GPU memory") as found:
            engine.run({"x": np.ones((64, 2048), np.float16)})
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert any(row.startswith("weights: ") for row in found.value.rows)
    assert any(row.startswith("arena: ") for row in found.value.rows)
    assert engine.run({"x": np.ones((64, 2048), np.float16)}), "it runs once there is room"


def test_parts_are_stated_before_the_first_run(mlp: ridgeline.Engine) -> None:
    stated = mlp.memory()
    assert stated["arena"] == mlp.plan.memory.arena_bytes
    assert stated["inputs"] == mlp.plan.memory.io_bytes
    assert stated["kernels"] > 0
