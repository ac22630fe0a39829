"""What a call does around the graph of a GPU, on the CPU: its memory, streams and copies are stand-ins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from models import model_of, quick, rand
from test_call_cost import python_calls
from torch import Tensor

import ridgeline
from ridgeline.errors import InputError
from ridgeline.runtime import context, cuda_instance, turns
from ridgeline.runtime.context import KEPT_INSTANCES, KEPT_ON_GPU, KEPT_SHARE, CudaContext
from ridgeline.runtime.cuda_instance import CudaInstance

GRAPH = """g (float[N,8] x, float[N,8] z, int64[N,8] i) => (float[N,8] y, float[N,8] w, int64[N,8] k) {
    y = Add(x, z) w = Tanh(y) k = Neg(i) }"""


class Stream:
    """A stream that writes down what is asked of it."""

    def __init__(self, handle: int, log: list[str]) -> None:
        self.cuda_stream, self._log = handle, log

    def wait_stream(self, other: Stream) -> None:
        self._log.append(f"{self.cuda_stream} waits for {other.cuda_stream}")

    def synchronize(self) -> None:
        self._log.append(f"host waits for {self.cuda_stream}")


class Graph:
    """A graph whose replay calls the steps."""

    def __init__(self, call: Callable[[], object], log: list[str]) -> None:
        self._call, self._log = call, log

    def replay(self) -> None:
        self._log.append("replay")
        self._call()


class HostInstance(CudaInstance):
    """An instance of a CPU, run as one of a GPU is."""

    device = "cpu"


class Rig:
    """Streams, the log of what happened, and contexts over instances that are taken for those of a GPU."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.streams = [Stream(handle, self.log) for handle in range(3)]
        self.current = self.streams[0]

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def context(self, engine: ridgeline.Engine) -> CudaContext:
        def make(specs: Any, given: Any) -> CudaInstance:
            instance: Any = engine.variants[0].executable.instance(specs)
            instance.__class__ = HostInstance
            return instance  # type: ignore[no-any-return]

        return CudaContext(engine.signature, make)

    def taken(self) -> list[str]:
        found = list(self.log)
        self.log.clear()
        return found


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    made, foreach = Rig(), torch._foreach_copy_

    def together(targets: list[Tensor], sources: list[Tensor]) -> None:
        made.log.append(f"{len(targets)} together")
        foreach(targets, sources)

    monkeypatch.setattr(torch, "_foreach_copy_", together)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: made.current)
    monkeypatch.setattr(torch.cuda, "stream", made.on)
    monkeypatch.setattr(turns, "raw_stream", lambda device: made.current.cuda_stream)
    monkeypatch.setattr(cuda_instance, "own_stream", lambda owner: made.streams[2])
    monkeypatch.setattr(cuda_instance, "warm", lambda call, stream: call())
    monkeypatch.setattr(cuda_instance, "record", lambda call, stream: Graph(call, made.log))
    monkeypatch.setattr(cuda_instance, "new_pinned", torch.empty_like)
    return made


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors are taken for the device's."""
    monkeypatch.setattr(Tensor, "is_cuda", True)


@pytest.fixture(scope="module")
def engine() -> ridgeline.Engine:
    return quick(model_of(GRAPH))


def draw(rows: int = 2, seed: int = 0) -> dict[str, np.ndarray]:
    x, z = rand(rows, 8, seed=seed), rand(rows, 8, seed=seed + 100)
    return {"x": x, "z": z, "i": (x * 99).astype(np.int64)}


def tensors(feeds: dict[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array.copy()) for name, array in feeds.items()}


def require_right(made: dict[str, Any], feeds: dict[str, np.ndarray]) -> None:
    assert list(made) == ["y", "w", "k"]
    np.testing.assert_array_equal(np.asarray(made["y"]), feeds["x"] + feeds["z"])
    np.testing.assert_allclose(np.asarray(made["w"]), np.tanh(feeds["x"] + feeds["z"]), rtol=1e-5)
    np.testing.assert_array_equal(np.asarray(made["k"]), -feeds["i"])


@pytest.mark.usefixtures("there")
def test_tensors_of_the_device(rig: Rig, engine: ridgeline.Engine) -> None:
    context, all_feeds = rig.context(engine), [draw(seed=seed) for seed in range(4)]
    results = [context.run(tensors(feeds)) for feeds in all_feeds]
    for made, feeds in zip(results, all_feeds, strict=True):
        require_right(made, feeds)
        assert not any(tensor.is_inference() for tensor in made.values())
    # x and z by one launch, y and w by one; nobody waits
    assert rig.taken() == ["2 together", "replay", "2 together"] * 4
    places = [tensor.untyped_storage().data_ptr() for made in results for tensor in made.values()]
    assert len(set(places)) == len(places)


@pytest.mark.usefixtures("there")
def test_a_run_on_another_stream_comes_after_the_last(rig: Rig, engine: ridgeline.Engine) -> None:
    context, feeds = rig.context(engine), draw()
    for handle, wanted in ((0, []), (0, []), (1, ["1 waits for 0"]), (1, []), (0, ["0 waits for 1"])):
        with rig.on(rig.streams[handle]):
            require_right(context.run(tensors(feeds)), feeds)
        assert [line for line in rig.taken() if "waits" in line] == wanted
    require_right(context.run(feeds), feeds)
    assert [line for line in rig.taken() if "waits" in line] == ["2 waits for 0", "host waits for 2"]
    with rig.on(rig.streams[1]):
        context.run(tensors(feeds))
    assert not [line for line in rig.taken() if "waits" in line]


def test_arrays_and_tensors_of_the_host(rig: Rig, engine: ridgeline.Engine) -> None:
    context, all_feeds = rig.context(engine), [draw(seed=seed) for seed in range(3)]
    made = [context.run(feeds) for feeds in all_feeds]
    assert rig.taken() == ["replay", "host waits for 2"] * 3
    for feeds, arrays in zip(all_feeds, made, strict=True):
        require_right(arrays, feeds)
        assert all(isinstance(array, np.ndarray) for array in arrays.values())
        require_right(context.run(tensors(feeds)), feeds)
        assert rig.taken() == ["replay"]


@pytest.mark.usefixtures("there")
def test_arrays_beside_tensors_are_waited_for(rig: Rig, engine: ridgeline.Engine) -> None:
    context, feeds = rig.context(engine), draw()
    for _ in range(3):
        mixed: dict[str, Any] = tensors(feeds)
        mixed["z"] = array = feeds["z"].copy()
        made = context.run(mixed)
        array.fill(np.nan)
        require_right(made, feeds)
        assert rig.taken()[-1] == "host waits for 0"


@pytest.mark.usefixtures("there")
def test_gradients_stay_outside(rig: Rig, engine: ridgeline.Engine) -> None:
    context, feeds = rig.context(engine), draw()
    for _ in range(2):
        given = tensors(feeds)
        given["x"].requires_grad_()
        made = context.run(given)
        require_right({name: tensor.detach() for name, tensor in made.items()}, feeds)
        (binding,) = context._bindings.values()
        own = binding.instance.inputs.values()
        assert not any(tensor.requires_grad for tensor in (*made.values(), *own))
    context.run(tensors(feeds))
    with pytest.raises(InputError, match="does not fit this plan"):
        context.run({**tensors(feeds), "x": torch.zeros(2, 8, dtype=torch.float64)})


@pytest.mark.usefixtures("there")
def test_a_call_goes_through_few_functions(rig: Rig, engine: ridgeline.Engine) -> None:
    context, given = rig.context(engine), tensors(draw())
    names = python_calls(lambda: context.run(given))
    outside = ("Instance.execute", "Rig", "Graph")  # the steps, and this file
    ours = [name for name in names if not name.startswith(outside)]
    # run, run, _run_tensors, _order, fill (a comprehension for the group of two), execute with
    # require_usable, make (one for the group, one for the results)
    assert len(ours) <= 12, ours


@pytest.mark.usefixtures("there")
def test_shapes_are_kept_while_they_are_small(
    rig: Rig, engine: ridgeline.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server's batches have more sizes than a CPU keeps; what is let go of has run to its end."""
    nbytes = rig.context(engine).instance(draw(rows=1)).nbytes
    device = SimpleNamespace(memory_bytes=12 * nbytes / KEPT_SHARE)
    monkeypatch.setattr(context, "LIBRARY_BYTES", 0)
    monkeypatch.setattr(context, "current_device", lambda: device)
    own = rig.context(engine)
    captured = 0
    for rows in [*range(1, KEPT_INSTANCES + 3)] * 2:
        own.run(tensors(draw(rows=rows)))
        captured = max(captured, len(own.memory()))
    assert captured == len(own.memory()) < KEPT_INSTANCES + 2
    assert rig.taken().count("host waits for 0") > 0
    device.memory_bytes *= 1000
    for _ in range(2):
        for rows in range(1, KEPT_ON_GPU + 1):
            require_right(own.run(tensors(draw(rows=rows))), draw(rows=rows))
    assert len(own.memory()) == KEPT_ON_GPU
    assert "host waits for 0" not in rig.taken()
    own.run(tensors(draw(rows=KEPT_ON_GPU + 1)))
    assert len(own.memory()) == KEPT_ON_GPU
    assert rig.taken().count("host waits for 0") == 1
