"""A worker process that dies, hangs or speaks nonsense: what is lost, what is not, and what comes back."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from hosted import OnLoop, begin, engine, engine_model, has_threads, joined, rows, run, step_model, worker

from ridgeline.serve.hosts.hosting import BatchError, Hosted, Joined, LoadError
from ridgeline.serve.hosts.spawning import Spawner
from ridgeline.serve.hosts.worker_host import WorkerHost

SLEEP = """
import time
def run(inputs):
    time.sleep(float(inputs["x"][0, 0]))
    return {"y": inputs["x"]}
"""
LATE = "import time; time.sleep(0.3)\n" + SLEEP
DIES = """
def run(inputs):
    if inputs["x"][0, 0] < 0:
        DEATH
    return {"y": inputs["x"]}
"""
TILE = """
import numpy as np
def run(inputs):
    return {"y": np.tile(inputs["x"], (int(inputs["x"][0, 0]), 1))}
"""


class Watched:
    """A host, and what it tells."""

    def __init__(self, host: WorkerHost) -> None:
        self.host = host
        self.lost: list[str] = []
        self.back: list[Sequence[Hosted]] = []
        host.watch(self.lost.append, self.back.append)

    async def came_back(self, times: int = 1, seconds: float = 20.0) -> dict[str, Hosted]:
        async with asyncio.timeout(seconds):
            while len(self.back) < times:
                await asyncio.sleep(0.002)
        assert self.host.is_healthy
        return {hosted.key: hosted for hosted in self.back[-1]}

    async def load(self, *models: Any) -> list[Hosted]:
        return list(await asyncio.gather(*map(self.host.load, models)))

    async def has_threads(self, count: int) -> None:
        """The main thread, one for each instance, and for a while one for each load."""
        await has_threads(self.host.pid or 0, count)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        assert self.host.pid is not None
        os.kill(self.host.pid, number)


@asynccontextmanager
async def watched(spawner: Spawner, **options: Any) -> AsyncIterator[Watched]:
    async with worker(spawner, **options) as host:
        yield Watched(host)


def x(value: float = 1) -> list[Joined]:
    return [joined("x", "FP32", rows(value))]


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "ridgeline")


def test_a_killed_worker_loses_what_it_ran_and_nothing_else(do: OnLoop, spawner: Spawner) -> None:
    async def body() -> None:
        async with watched(spawner) as w:
            quick, slow = await w.load(engine_model("float32"), step_model(SLEEP, "slow", instances=2))
            running = [await begin(each, x(60)) for each in slow.instances]
            assert (await run(quick.instances[0], x()))["y"].shape == (1, 8)
            kept = await (await begin(quick.instances[0], x(2)))
            began = time.monotonic()
            w.kill()
            for future in running:
                with pytest.raises(BatchError, match="the worker ended while this ran") as failed:
                    await future
                assert failed.value.is_lost
            assert not w.host.is_healthy
            assert len(w.lost) == 1
            with pytest.raises(BatchError, match="gone") as failed:
                await run(quick.instances[0], x())
            assert failed.value.is_lost
            assert np.frombuffer(kept.outputs[0].data, np.float32).shape == (8,)  # it was ours already
            kept.release()
            back = await w.came_back()
            assert time.monotonic() - began < 5
            assert sorted(back) == ["float32", "slow"]
            got = await run(back["float32"].instances[0], x(3))
            np.testing.assert_array_equal(got["y"], engine("float32").run({"x": rows(3)})["y"])
            assert len(back["slow"].instances) == 2
            assert w.host.restarts == 1

    do(body())


DEATHS = {
    "a segmentation fault": "import ctypes; ctypes.string_at(0)",
    "an exit": "import os; os._exit(3)",
    "abort": "import os; os.abort()",
}


@pytest.mark.parametrize("death", DEATHS)
def test_a_step_may_take_its_worker_down(
    do: OnLoop, spawner: Spawner, death: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "ridgeline")
    code = DIES.replace("DEATH", DEATHS[death])

    async def body() -> None:
        async with watched(spawner) as w:
            (step,) = await w.load(step_model(code, "step"))
            await run(step.instances[0], x())
            with pytest.raises(BatchError) as failed:
                await run(step.instances[0], x(-1))
            assert failed.value.is_lost
            back = await w.came_back()
            assert (await run(back["step"].instances[0], x(4)))["y"][0, 0] == 4

    do(body())
    reason = {"an exit": "exited with status 3", "abort": "signal 6"}.get(death, "signal 11")
    assert any(reason in record.getMessage() for record in caplog.records)


def test_a_worker_that_dies_again_and_again_comes_back_later_and_later(do: OnLoop, spawner: Spawner) -> None:
    async def body() -> None:
        async with watched(spawner) as w:
            times = []
            for i in (1, 2):
                began = time.monotonic()
                w.kill()
                await w.came_back(i)
                times.append(time.monotonic() - began)
            assert times[0] < 1 < times[1] < 5

    do(body())


def test_a_worker_that_holds_its_lock_for_ever_is_ended(do: OnLoop, spawner: Spawner) -> None:
    code = "import ctypes\ndef run(inputs):\n    ctypes.PyDLL(None).sleep(100)"

    async def body() -> None:
        async with watched(spawner, ping_seconds=0.1, unanswered=3) as w:
            (step,) = await w.load(step_model(code, "wedged"))
            with pytest.raises(BatchError, match="no answer for") as failed:
                await run(step.instances[0], x())
            assert failed.value.is_lost
            await w.came_back()

    do(body())


def test_a_worker_that_is_stopped_is_ended_and_a_busy_one_is_not(do: OnLoop, spawner: Spawner) -> None:
    async def body() -> None:
        async with watched(spawner, ping_seconds=0.1, unanswered=4) as w:
            (slow,) = await w.load(step_model(SLEEP, "slow"))
            await run(slow.instances[0], x(0.8))
            assert not w.lost
            w.kill(signal.SIGSTOP)
            await w.came_back()
            assert "no answer" in w.lost[0]

    do(body())


def test_signals_to_the_whole_group_leave_the_worker_to_the_server(do: OnLoop, spawner: Spawner) -> None:
    async def body() -> None:
        async with watched(spawner) as w:
            (model,) = await w.load(engine_model("float32"))
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                w.kill(number)
            assert (await run(model.instances[0], x()))["y"].shape == (1, 8)
            assert not w.lost

    do(body())


FATAL = """
from ridgeline.errors import DeviceError
def run(inputs):
    error = DeviceError("a CUDA error ended all work of this process on the GPU")
    error.is_fatal = True
    raise error
"""


def test_an_error_that_a_device_does_not_recover_from_restarts_the_worker(
    do: OnLoop, spawner: Spawner
) -> None:
    async def body() -> None:
        async with watched(spawner) as w:
            fatal, slow = await w.load(step_model(FATAL, "fatal"), step_model(SLEEP, "slow"))
            running = await begin(slow.instances[0], x(60))
            with pytest.raises(BatchError, match="CUDA") as failed:
                await run(fatal.instances[0], x())
            assert failed.value.is_fatal
            assert not failed.value.is_lost  # it is known what became of it
            assert not w.host.is_healthy
            assert len(w.lost) == 1
            with pytest.raises(BatchError) as failed:
                await running
            assert failed.value.is_lost
            await w.came_back()

    do(body())


def test_a_load_that_kills_the_worker_is_an_error_and_the_others_come_back(
    do: OnLoop, spawner: Spawner
) -> None:
    async def body() -> None:
        async with watched(spawner) as w:
            await w.load(engine_model("float32"))
            with pytest.raises(LoadError, match="the worker ended while it loaded this"):
                await w.host.load(step_model("import os; os._exit(1)", "deadly"))
            assert sorted(await w.came_back()) == ["float32"]

    do(body())


def test_what_cannot_be_loaded_again_is_left_out(do: OnLoop, spawner: Spawner) -> None:
    async def body() -> None:
        async with watched(spawner) as w:
            step = step_model(SLEEP, "gone")
            await w.load(step, engine_model("float32"))
            step.path.unlink()
            w.kill()
            assert sorted(await w.came_back()) == ["float32"]
            step.path.write_text(SLEEP)
            await w.load(step)  # its key is free again

    do(body())


def test_loads_and_unloads_while_the_worker_is_away(do: OnLoop, spawner: Spawner) -> None:
    async def body() -> None:
        async with watched(spawner) as w:
            await w.load(engine_model("float32"), engine_model("int64"))
            w.kill()
            while w.host.is_healthy:
                await asyncio.sleep(0.001)
            unloaded = asyncio.ensure_future(w.host.unload("int64"))
            loaded = await w.host.load(engine_model("gather"))
            await unloaded
            assert sorted(await w.came_back()) == ["float32"]
            inputs = [joined("x", "FP32", rows(1, 2)), joined("i", "INT64", np.array([1]))]
            assert (await run(loaded.instances[0], inputs))["y"][0, 0] == 2

    do(body())


def test_what_is_unloaded_while_it_comes_back_does_not_come_back(do: OnLoop, spawner: Spawner) -> None:
    async def body() -> None:
        async with watched(spawner) as w:
            await w.load(engine_model("float32"), step_model(LATE, "late"))
            await w.has_threads(3)
            w.kill()
            while w.host.pid is None or w.host.is_healthy:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.1)
            assert not w.back
            await w.host.unload("late")
            assert sorted(await w.came_back()) == ["float32"]
            await w.has_threads(2)

    do(body())


def test_a_load_that_nobody_waits_for_any_more_is_undone(do: OnLoop, spawner: Spawner) -> None:
    async def body() -> None:
        async with watched(spawner) as w:
            task = asyncio.ensure_future(w.host.load(step_model(LATE, "late")))
            await asyncio.sleep(0.05)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await w.has_threads(2)
            await w.has_threads(1)
            (late,) = await w.load(step_model(LATE, "late"))
            assert (await run(late.instances[0], x(0)))["y"][0, 0] == 0
            await w.has_threads(2)

    do(body())


def test_batches_that_run_when_the_host_stops_are_lost(do: OnLoop, spawner: Spawner) -> None:
    async def body() -> None:
        async with watched(spawner) as w:
            (slow,) = await w.load(step_model(SLEEP, "slow"))
            running = await begin(slow.instances[0], x(60))
            began = time.monotonic()
            await w.host.stop()
            assert time.monotonic() - began < 2
            with pytest.raises(BatchError) as failed:
                await running
            assert failed.value.is_lost
            assert not w.lost
            with pytest.raises(LoadError, match="stops"):
                await w.host.load(engine_model("float32"))

    do(body())


def test_inputs_and_outputs_beyond_the_limit_cost_one_batch(do: OnLoop, spawner: Spawner) -> None:
    async def body() -> None:
        async with watched(spawner, limit_bytes=1 << 20) as w:
            (step,) = await w.load(step_model(TILE, "tile"))
            for inputs in ([joined("x", "FP32", np.ones((40_000, 8), np.float32))], x(40_000)):
                with pytest.raises(BatchError, match=r"no room for the (in|out)puts") as failed:
                    await run(step.instances[0], inputs)
                assert failed.value.is_memory
            held = [await (await begin(step.instances[0], x(15_000))) for _ in range(2)]
            waits = await begin(step.instances[0], x(15_000))
            await asyncio.sleep(0.1)
            assert not waits.done()  # until somebody gives memory back
            held[0].release()
            (await waits).release()
            held[1].release()

    do(body())
