"""Memory of workers and of the areas between: it is there while it is needed, and flat over time."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from statistics import median

import numpy as np
import onnx.parser
from hosted import HEAD, OnLoop, begin, engine_model, folder, has_threads, joined, run, step_model, worker

import ridgeline
from ridgeline.serve.hosts.hosting import HostedModel
from ridgeline.serve.hosts.spawning import Spawner
from ridgeline.serve.link.arena import KEPT_BYTES

MIB = 1 << 20
ECHO = "def run(inputs):\n    return {'y': inputs['x']}"


def rss(pid: int) -> int:
    """Resident bytes that are no mapped file: private memory, and what it has touched of shared memory."""
    fields = dict(line.split(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return sum(int(fields[name].split()[0]) << 10 for name in ("RssAnon", "RssShmem"))


def weighty_model() -> HostedModel:
    """4 MiB of weights, in a layout that they are packed into when they are loaded."""
    path = folder() / "weighty.ridge"
    model = onnx.parser.parse_model(f"{HEAD} g (float[N,1024] x) => (float[N,1024] y) {{ y = MatMul(x, w) }}")
    weight = np.random.default_rng(2).standard_normal((1024, 1024)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    ridgeline.build(model, threads=1, level=0, verify="off", new_shapes="wait").save(path)
    return HostedModel("weighty", "engine", path, instances=2)


def test_unloading_gives_memory_back(do: OnLoop, spawner: Spawner) -> None:
    model = weighty_model()
    inputs = [joined("x", "FP32", np.ones((256, 1024), np.float32))]

    async def body() -> None:
        async with worker(spawner) as host:
            pid, sizes, held = host.pid or 0, [], 0
            for _ in range(30):
                hosted = await host.load(model)
                for instance in hosted.instances:
                    await run(instance, inputs)
                held = max(held, rss(pid))
                await host.unload("weighty")
                sizes.append(rss(pid))
            shown = [round(size / MIB, 1) for size in sizes]
            assert held > min(sizes[5:]) + 4 * MIB, (held / MIB, shown)  # the model was in memory
            # libraries keep buffers for a while; a model that stayed would be 40 MiB in ten rounds
            assert median(sizes[20:]) < median(sizes[5:15]) + 12 * MIB, shown
            await has_threads(pid, 1)

    do(body())


def test_areas_grow_and_are_given_back(do: OnLoop, spawner: Spawner) -> None:
    whole = np.ones((1 << 20, 8), np.float32)  # 32 MiB

    async def body() -> None:
        async with worker(spawner) as host:
            pid, ours = host.pid or 0, os.getpid()
            (step,) = (await host.load(step_model(ECHO, "echo"))).instances
            await run(step, [joined("x", "FP32", whole[:1])])
            gc.collect()
            before = rss(pid), rss(ours)
            for _ in range(2):
                held = [await (await begin(step, [joined("x", "FP32", whole)])) for _ in range(6)]
                assert rss(pid) > before[0] + 6 * 32 * MIB
                for i in (4, 0, 5, 2, 1, 3):
                    held[i].release()
                del held
                await run(step, [joined("x", "FP32", whole[:1])])  # what was given back travels with it
                # of each area so much is kept
                assert rss(pid) < before[0] + 2 * KEPT_BYTES + 8 * MIB
                assert rss(ours) < before[1] + 2 * KEPT_BYTES + 40 * MIB

    do(body())


def test_descriptors_are_as_many_as_before(do: OnLoop, spawner: Spawner) -> None:
    def descriptors(pid: int) -> int:
        gc.collect()
        return len(os.listdir(f"/proc/{pid}/fd"))

    async def body() -> None:
        before = descriptors(os.getpid())
        async with worker(spawner) as host:
            pid, counts = host.pid or 0, []
            x, w = np.ones((64, 4096), np.float32), np.ones((4096, 64), np.float32)
            for _ in range(4):
                hosted = await host.load(engine_model("large", instances=3))
                for instance in hosted.instances:
                    await run(instance, [joined("x", "FP32", x), joined("w", "FP32", w)])
                del hosted, instance
                await host.unload("large")
                counts.append((descriptors(os.getpid()), descriptors(pid)))
            assert counts[0] == counts[-1], counts
        assert descriptors(os.getpid()) == before

    do(body())
