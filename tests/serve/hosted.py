"""Models for tests of hosts: engines and Python steps as files, and batches that run on them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeVar

import numpy as np
import onnx.parser

import ridgeline
from ridgeline.runtime.engine import Engine
from ridgeline.serve.datatypes import BY_ENGINE, DATATYPES, join_bytes, split_bytes
from ridgeline.serve.hosts.hosting import BatchError, BatchResult, HostedModel, Instance, Joined, PortInfo
from ridgeline.serve.hosts.spawning import Spawner
from ridgeline.serve.hosts.tensor_arrays import element_type
from ridgeline.serve.hosts.worker_host import WorkerHost
from ridgeline.serve.messages import Tensor

T = TypeVar("T")
HEAD = '<ir_version: 10, opset_import: ["": 20]>'
GRAPHS = {
    "float32": """g (float[N,8] x) => (float[N,8] y, float[N] s) { a = Softmax(x) y = Add(a, x)
        k = Constant <value_ints = [1]> () s = ReduceSum <keepdims = 0> (y, k) }""",
    "float64": "g (double[N,8] x) => (double[N,8] y) { y = Mul(x, x) }",
    "float16": "g (float16[N,8] x) => (float16[N,8] y) { y = Mul(x, x) }",
    "bfloat16": "g (bfloat16[N,8] x) => (bfloat16[N,8] y) { y = Mul(x, x) }",
    "int64": "g (int64[N,8] x, int64[N,8] z) => (int64[N,8] y) { y = Add(x, z) }",
    "uint8": "g (uint8[N,8] x) => (uint8[N,8] y) { y = Identity(x) }",
    "bool": "g (bool[N,8] x, bool[N,8] z) => (bool[N,8] y) { y = And(x, z) }",
    "string": "g (string[N] x, string[N] z) => (string[N] y) { y = StringConcat(x, z) }",
    "scalar": "g (float x, float[N] z) => (float[N] y) { y = Mul(x, z) }",
    "sequence": "g (seq(float[N]) x) => (float[M] y) { y = ConcatFromSequence <axis = 0> (x) }",
    "gather": "g (float[N,8] x, int64[K] i) => (float[K,8] y) { y = Gather(x, i) }",
    "large": """g (float[N,4096] x, float[4096,64] w) => (float[N,4096] y, float[N,64] z)
        { y = Tanh(x) z = MatMul(x, w) }""",
}
X = PortInfo("x", "FP32", ("N", 8))
Y = PortInfo("y", "FP32", ("N", 8))


@cache
def folder() -> Path:
    return Path(mkdtemp(prefix="ridgeline-hosted-"))


@cache
def engine_file(name: str, threads: int = 1, without: tuple[str, ...] = ("ort",)) -> Path:
    """Built once for all tests of a process."""
    model = onnx.parser.parse_model(f"{HEAD} {GRAPHS[name]}")
    path = folder() / f"{name}-{threads}-{'-'.join(without)}.ridge"
    ridgeline.build(model, level=0, verify="off", threads=threads, without=without, new_shapes="wait").save(
        path
    )
    return path


@cache
def engine(name: str) -> Engine:
    return ridgeline.load(engine_file(name))


def engine_model(name: str, key: str | None = None, **more: Any) -> HostedModel:
    return HostedModel(key or name, "engine", engine_file(name), **more)


def step_model(
    code: str,
    key: str,
    *,
    inputs: Sequence[PortInfo] = (X,),
    outputs: Sequence[PortInfo] = (Y,),
    instances: int = 1,
) -> HostedModel:
    path = folder() / f"{key}.py"
    path.write_text(code, encoding="utf-8")
    return HostedModel(key, "python", path, instances, inputs=tuple(inputs), outputs=tuple(outputs))


def joined(name: str, datatype: str, *arrays: np.ndarray) -> Joined:
    """Requests' parts, one behind the other."""
    shape = (sum(a.shape[0] for a in arrays), *arrays[0].shape[1:]) if arrays[0].shape else ()
    return Joined(name, datatype, shape, [packed(array) for array in arrays])


def packed(array: np.ndarray) -> bytes:
    if array.dtype.kind == "O":
        return join_bytes([text.encode() for text in array.reshape(-1)])
    return array.tobytes()


def inputs_of(made: Engine, feeds: Mapping[str, np.ndarray]) -> list[Joined]:
    return [joined(port.name, BY_ENGINE[port.dtype].name, feeds[port.name]) for port in made.inputs]


def array_from(tensor: Tensor) -> np.ndarray:
    """A copy: the tensor's memory may be given back."""
    datatype = DATATYPES[tensor.datatype]
    if datatype.numpy is None:
        texts = [text.decode() for text in split_bytes(memoryview(tensor.data), int(np.prod(tensor.shape)))]
        return np.array(texts, object).reshape(tensor.shape)
    return np.frombuffer(bytes(tensor.data), element_type(datatype)).reshape(tensor.shape)


async def begin(
    instance: Instance, inputs: Sequence[Joined], outputs: Sequence[str] = ("y",)
) -> asyncio.Future[BatchResult]:
    """A batch that runs: its result, or the error that it ended with."""
    future: asyncio.Future[BatchResult] = asyncio.get_running_loop().create_future()

    def done(result: BatchResult | BatchError) -> None:
        assert has_returned, "done came before run returned"
        if isinstance(result, BatchError):
            future.set_exception(result)
        else:
            future.set_result(result)

    has_returned = False
    instance.run(inputs, outputs, done)
    has_returned = True
    return future


async def run(
    instance: Instance, inputs: Sequence[Joined], outputs: Sequence[str] = ("y",)
) -> dict[str, np.ndarray]:
    """Outputs by name; their memory is given back."""
    result = await (await begin(instance, inputs, outputs))
    assert [tensor.name for tensor in result.outputs] == list(outputs)
    arrays = {tensor.name: array_from(tensor) for tensor in result.outputs}
    result.release()
    return arrays


def rows(*values: float) -> np.ndarray:
    return np.repeat(np.array(values, np.float32)[:, None], 8, axis=1)


@asynccontextmanager
async def worker(spawner: Spawner, **options: Any) -> AsyncIterator[WorkerHost]:
    """A host with a worker of its own."""
    host = WorkerHost("cpu", spawner, **options)
    assert not host.is_healthy
    await host.start()
    try:
        yield host
    finally:
        await host.stop()
        assert host.pid is None
        assert not host.is_healthy


def is_alive(pid: int) -> bool:
    """And no zombie either."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for_end(*pids: int) -> None:
    end = time.monotonic() + 10
    while any(map(is_alive, pids)):
        assert time.monotonic() < end, f"{pids} live on"
        time.sleep(0.005)


async def has_threads(pid: int, count: int) -> None:
    """Wait for it: threads that load and unload end a little after they have told so."""
    async with asyncio.timeout(10):
        while len(list(Path(f"/proc/{pid}/task").iterdir())) != count:
            await asyncio.sleep(0.005)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class OnLoop:
    """A loop that lives as long as the hosts on it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()

    def __call__(self, work: Coroutine[Any, Any, T], seconds: float = 60.0) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, seconds))

    def close(self) -> None:
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
