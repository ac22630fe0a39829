"""Engines in threads of the server: nothing is copied that need not be, and a lost device stays lost."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
from hosted import OnLoop, array_from, begin, engine_model, joined, rows, run, step_model

from ridgeline.errors import DeviceError, InputError
from ridgeline.serve.hosts.engine_runner import batch_error
from ridgeline.serve.hosts.hosting import BatchError, HostedModel, LoadError, PortInfo
from ridgeline.serve.hosts.thread_host import ThreadHost

WHERE = """
import numpy as np
def run(inputs):
    return {"y": np.array([inputs["x"].ctypes.data], np.int64)}
"""


def test_a_single_request_is_read_where_it_lies(do: OnLoop, thread_host: ThreadHost) -> None:
    async def body() -> None:
        port = PortInfo("y", "INT64", ("N",))
        hosted = await thread_host.load(step_model(WHERE, "where", outputs=[port]))
        memory = rows(1, 2)
        one = joined("x", "FP32", memory)
        one.parts = [memoryview(memory).cast("B")]
        assert (await run(hosted.instances[0], [one]))["y"].tolist() == [memory.ctypes.data]
        both = joined("x", "FP32", memory, memory)
        assert (await run(hosted.instances[0], [both]))["y"].tolist() != [memory.ctypes.data]
        await thread_host.unload("where")

    do(body())


def test_results_outlive_their_model(do: OnLoop, thread_host: ThreadHost) -> None:
    async def body() -> None:
        hosted = await thread_host.load(engine_model("float32"))
        result = await (await begin(hosted.instances[0], [joined("x", "FP32", rows(1))]))
        before = array_from(result.outputs[0])
        await thread_host.unload("float32")
        await thread_host.unload("float32")  # it is gone: nothing happens
        np.testing.assert_array_equal(array_from(result.outputs[0]), before)

    do(body())


def test_threads_end_with_their_model(do: OnLoop) -> None:
    async def body() -> None:
        host = ThreadHost("cpu")
        assert not host.is_healthy
        await host.start()
        assert host.is_healthy
        assert host.pid is None
        before = threading.active_count()
        await host.load(engine_model("float32", instances=3))
        assert threading.active_count() >= before + 3
        await host.stop()
        assert not host.is_healthy
        assert sum(thread.name == "instance" for thread in threading.enumerate()) == 0

    do(body())


def test_a_device_that_is_lost_stays_lost(do: OnLoop, thread_host: ThreadHost) -> None:
    code = "def run(inputs):\n    raise RuntimeError('CUDA error: an illegal memory access was encountered')"

    async def body() -> None:
        hosted = await thread_host.load(step_model(code, "fatal"))
        lost: list[str] = []
        thread_host.watch(lost.append, lambda _: None)
        for _ in range(2):
            with pytest.raises(BatchError) as failed:
                await run(hosted.instances[0], [joined("x", "FP32", rows(1))])
            assert failed.value.is_fatal
        await asyncio.sleep(0)
        assert len(lost) == 1
        assert not thread_host.is_healthy

    do(body())


def caused_by(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


ERRORS = {
    "too little": (DeviceError("too little GPU memory", got="1 GiB"), "memory"),
    "an allocator of PyTorch": (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "memory"),
    "one of ONNX Runtime, inside": (
        caused_by(ValueError("the engine cannot run"), RuntimeError("Failed to allocate memory for 1 bytes")),
        "memory",
    ),
    "no GPU": (DeviceError("there is no GPU to run on"), ""),
    "a value": (ValueError("of no use"), "input"),
    "an illegal access, inside": (
        caused_by(ValueError("no"), RuntimeError("CUDA error: unspecified launch failure")),
        "fatal",
    ),
    "a batch's own": (BatchError("no", is_input=True), "input"),
    "pinned memory": (caused_by(InputError("no"), RuntimeError("CUDA error: out of memory")), "memory"),
    "a launch": (caused_by(InputError("no"), RuntimeError("Triton Error [CUDA]: out of memory")), "memory"),
    "a library": (
        caused_by(InputError("no"), RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED")),
        "memory",
    ),
    "a driver": (caused_by(InputError("no"), RuntimeError("CUDA error: unknown error")), "fatal"),
    "some error of a GPU": (caused_by(InputError("no"), RuntimeError("CUDA error: no such symbol")), ""),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_are_told_apart(case: str) -> None:
    error, kind = ERRORS[case]
    found = batch_error(error)
    assert found.is_memory == (kind == "memory")
    assert found.is_input == (kind == "input")
    assert found.is_fatal == (kind == "fatal")
    assert str(error).splitlines()[0] in str(found)


def test_a_host_for_another_device_refuses_an_engine_for_the_cpu(do: OnLoop) -> None:
    async def body() -> None:
        host = ThreadHost("python")
        await host.start()
        with pytest.raises(LoadError, match=r"built for cpu.*, and is asked to run on python"):
            await host.load(HostedModel("m", "engine", engine_model("float32").path))
        await host.stop()

    do(body())
