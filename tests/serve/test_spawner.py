"""The process that workers are forked from: it has no thread to lose, and nobody outlives its server."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
import torch
from hosted import (
    HEAD,
    OnLoop,
    engine_file,
    folder,
    has_threads,
    joined,
    parent_of,
    rows,
    run,
    step_model,
    wait_for_end,
    worker,
)

import ridgeline
from ridgeline.serve.hosts.hosting import HostedModel, PortInfo
from ridgeline.serve.hosts.spawning import Spawner, SpawnError
from ridgeline.serve.hosts.worker_host import WorkerHost

TELL = """
import os, sys
import numpy as np
def run(inputs):
    open_files = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            open_files.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:
            pass  # of the listing itself
    sockets = sum("socket" in name for name in open_files)
    has_driver = "libcuda.so" in open("/proc/self/maps").read()
    told = [os.getppid(), sockets, sys.modules["torch"].cuda.is_initialized(), has_driver]
    return {"y": np.array([str(each) for each in told], object)}
"""


def threads_of(pid: int) -> list[str]:
    return sorted((task / "comm").read_text().strip() for task in Path(f"/proc/{pid}/task").iterdir())


def test_a_worker_is_forked_from_one_thread_and_without_a_gpu(do: OnLoop, spawner: Spawner) -> None:
    async def body() -> None:
        began = time.monotonic()
        async with worker(spawner) as host:
            assert time.monotonic() - began < 1  # 10 to 50 ms, on a machine that is not busy
            text = PortInfo("y", "BYTES", ("N",))
            hosted = await host.load(step_model(TELL, "tell", outputs=[text], instances=2))
            told = (await run(hosted.instances[0], [joined("x", "FP32", rows(1))]))["y"].tolist()
            pid = host.pid or 0
            assert told == [str(parent_of(pid)), "3", "False", "False"]  # of sockets, one for each instance
            assert len(threads_of(parent_of(pid))) == 1
            await has_threads(pid, 3)  # the main thread, and one for each instance
            assert "ridge cpu" in threads_of(pid)

    do(body())


def test_an_engine_of_several_threads_computes_in_a_forked_worker(do: OnLoop, spawner: Spawner) -> None:
    """Pools of OpenMP and of ONNX Runtime start there: nothing had started one before the fork."""
    graph = "g (float[N,512] x, float[512,512] w) => (float[N,512] y) { a = MatMul(x, w) y = Tanh(a) }"
    proto = onnx.parser.parse_model(f"{HEAD} {graph}")
    x, w = np.random.default_rng(1).standard_normal((2, 512, 512)).astype(np.float32)

    async def body() -> None:
        async with worker(spawner) as host:
            for without in ((), ("ort",)):
                path = folder() / f"threads-{len(without)}.ridge"
                model = ridgeline.build(
                    proto, threads=2, level=0, verify="off", without=without, new_shapes="wait"
                )
                model.save(path)
                hosted = await host.load(HostedModel(path.stem, "engine", path))
                assert hosted.notes["threads"] == "2"
                got = await run(hosted.instances[0], [joined("x", "FP32", x), joined("w", "FP32", w)])
                torch.set_num_threads(2)
                np.testing.assert_array_equal(got["y"], model.run({"x": x, "w": w})["y"], strict=True)
                assert len(threads_of(host.pid or 0)) >= 3  # a second one computed
                await host.unload(path.stem)

    do(body())


def test_a_spawner_that_cannot_start_says_so(do: OnLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.serve.hosts.spawning.COMMAND", ("false",))

    async def body() -> None:
        spawner = Spawner()
        with pytest.raises(SpawnError, match="ended while it started"):
            await WorkerHost("cpu", spawner).start()
        await spawner.stop()
        with pytest.raises(SpawnError, match="stops"):
            await spawner.start()

    do(body())


def test_a_spawner_that_died_is_started_again_and_nobody_outlives_it(do: OnLoop, spawner: Spawner) -> None:
    async def body() -> None:
        host = WorkerHost("cpu", spawner)
        back: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        lost: list[str] = []
        host.watch(lost.append, lambda hosts: back.set_result([each.key for each in hosts]))
        await host.start()
        await host.load(HostedModel("m", "engine", engine_file("float32")))
        first = host.pid or 0
        parent = parent_of(first)
        os.kill(parent, signal.SIGKILL)
        assert await asyncio.wait_for(back, 60) == ["m"]
        wait_for_end(first, parent)
        assert len(lost) == 1
        assert parent_of(host.pid or 0) not in (1, parent)
        await host.stop()

    do(body(), 90)


def test_the_server_s_side_imports_no_framework() -> None:
    modules = ("hosts.worker_host", "link.loop_channel", "link.channel", "hosts.hosting")
    imports = "; ".join(f"import ridgeline.serve.{module}" for module in modules)
    heavy = "{'torch', 'onnxruntime', 'onnx', 'ridgeline.runtime', 'ridgeline.builder'}"
    code = f"import sys; {imports}; assert not {heavy} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
