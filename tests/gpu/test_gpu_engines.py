"""Whole engines on the GPU: verified, the same bits whichever way they run, nothing allocated on the way."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from networks import Net, waits_in_the_middle

import ridgeline
from ridgeline.base.spec import TensorSpec
from ridgeline.runtime.context import CudaContext
from ridgeline.runtime.cuda_instance import CudaInstance
from ridgeline.runtime.instance import Instance

RUNS = 1000


def bits(outputs: dict[str, Any]) -> dict[str, np.ndarray]:
    return {n: t.cpu().numpy() if isinstance(t, torch.Tensor) else np.asarray(t) for n, t in outputs.items()}


def require_same(got: dict[str, Any], want: dict[str, Any]) -> None:
    got, want = bits(got), bits(want)
    assert got.keys() == want.keys()
    for name, array in want.items():
        assert got[name].dtype == array.dtype
        assert np.array_equal(got[name], array, equal_nan=True), name


def on_device(feeds: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array).cuda() for name, array in feeds.items()}


def cuda_context(engine: ridgeline.Engine) -> CudaContext:
    context = engine.context()
    assert isinstance(context, CudaContext)
    return context


def test_it_is_verified_and_captured(engine: ridgeline.Engine) -> None:
    assert engine.report.verified
    instance = engine.context().instance(engine.example_inputs())
    assert isinstance(instance, CudaInstance)
    with torch.inference_mode():
        instance.execute()
    assert instance.graph is not None, instance.why_eager
    assert not any("captured" in note for note in engine.notes)


def test_what_can_be_captured_between_steps_that_wait_is() -> None:
    engine = ridgeline.build(waits_in_the_middle(), target="cuda", level=1)
    assert engine.report.verified
    context = cuda_context(engine)
    for seed in (3, 4, 3):
        feeds = engine.example_inputs(seed=seed)
        instance = context.instance(feeds)
        assert isinstance(instance, CudaInstance)
        with torch.inference_mode():
            Instance.execute(instance)
            by_steps = {name: instance.result(name).clone() for name in instance.program.outputs}
            instance.result(instance.program.outputs[0]).fill_(torch.nan)
            instance.execute()
        assert instance.graph is None
        assert instance.segments is not None, instance.why_eager
        assert len(instance.segments.captured) >= 2
        assert len(instance.segments.reasons) < len(instance.calls) / 2
        require_same(instance.results(), by_steps)
        require_same(context.run(feeds), by_steps)
        require_same(context.run(on_device(feeds)), by_steps)
    assert any("CUDA graphs" in note for note in engine.notes)


def test_the_graph_equals_its_steps(engine: ridgeline.Engine) -> None:
    instance = engine.context().instance(engine.example_inputs(seed=3))
    names = instance.program.outputs
    with torch.inference_mode():
        instance.execute()
        instance.execute()
        replayed = {name: instance.result(name).clone() for name in names}
        instance.arena.fill_(0xFF)
        Instance.execute(instance)
        stepped = {name: instance.result(name).clone() for name in names}
    require_same(replayed, stepped)


def test_every_way_in_gives_the_same_bits(engine: ridgeline.Engine) -> None:
    feeds = engine.example_inputs(seed=4)
    want = engine.run(feeds)
    assert all(isinstance(array, np.ndarray) for array in want.values())
    there = engine.run(on_device(feeds))
    assert all(tensor.is_cuda for tensor in there.values())
    require_same(there, want)
    here = engine.run({name: torch.from_numpy(array) for name, array in feeds.items()})
    assert all(tensor.device.type == "cpu" for tensor in here.values())
    require_same(here, want)
    bound = cuda_context(engine).bind(on_device(feeds))
    require_same(bound.run(), want)


def test_bound_inputs_are_read_where_they_lie(mlp: ridgeline.Engine) -> None:
    first, second = (mlp.example_inputs(seed=seed) for seed in (5, 6))
    tensors = on_device(first)
    bound = cuda_context(mlp).bind(tensors)
    require_same(bound.run(), mlp.run(first))
    tensors["x"].copy_(torch.from_numpy(second["x"]))
    require_same(bound.run(), mlp.run(second))


def test_a_thousand_bound_runs_allocate_nothing(engine: ridgeline.Engine) -> None:
    bound = cuda_context(engine).bind(on_device(engine.example_inputs()))
    bound.run()
    torch.cuda.synchronize()
    before, free = torch.cuda.memory_stats(), torch.cuda.mem_get_info()[0]
    for _ in range(RUNS):
        bound.run()
    torch.cuda.synchronize()
    after = torch.cuda.memory_stats()
    assert after["allocation.all.allocated"] == before["allocation.all.allocated"]
    assert torch.cuda.mem_get_info()[0] == free


def test_a_thousand_runs_take_no_new_memory(engine: ridgeline.Engine) -> None:
    """Results are the caller's own, so those are made anew: out of memory that is there already."""
    feeds = on_device(engine.example_inputs())
    context = engine.context()
    for _ in range(3):
        context.run(feeds)
    torch.cuda.synchronize()
    before, free = torch.cuda.memory_stats(), torch.cuda.mem_get_info()[0]
    for _ in range(RUNS):
        made = context.run(feeds)
    torch.cuda.synchronize()
    after = torch.cuda.memory_stats()
    allocated = after["allocation.all.allocated"] - before["allocation.all.allocated"]
    assert allocated == RUNS * len(made)
    assert after["segment.all.allocated"] == before["segment.all.allocated"]
    assert torch.cuda.mem_get_info()[0] == free


def test_results_are_the_callers_own(mlp: ridgeline.Engine) -> None:
    feeds = on_device(mlp.example_inputs(seed=1))
    kept = mlp.run(feeds)
    copies = {name: tensor.clone() for name, tensor in kept.items()}
    mlp.run(on_device(mlp.example_inputs(seed=2)))
    require_same(kept, copies)
    next(iter(kept.values())).zero_()
    require_same(mlp.run(feeds), copies)


def test_shapes_switch_back_and_forth(mlp: ridgeline.Engine) -> None:
    feeds = {n: mlp.example_inputs(seed=n, shapes={"x": TensorSpec("float32", (n, 64))}) for n in (1, 3, 8)}
    first = {n: mlp.run(given) for n, given in feeds.items()}
    for n in (8, 1, 3, 1, 8):
        require_same(mlp.run(feeds[n]), first[n])
    rows = [mlp.run({"x": feeds[8]["x"][i : i + 1]}) for i in range(8)]
    joined = np.concatenate([next(iter(row.values())) for row in rows])
    np.testing.assert_allclose(joined, next(iter(first[8].values())), rtol=1e-5, atol=1e-6)


def test_encoder_takes_other_batches(encoder: ridgeline.Engine) -> None:
    for n in (4, 1, 4):
        feeds = encoder.example_inputs(shapes={"ids": TensorSpec("int64", (n, 16))})
        assert next(iter(encoder.run(feeds).values())).shape == (n, 16, 64)


def test_two_threads_on_streams_of_their_own(engine: ridgeline.Engine) -> None:
    all_feeds = [engine.example_inputs(seed=seed) for seed in (7, 8)]
    want = [engine.run(feeds) for feeds in all_feeds]
    failures: list[BaseException] = []

    def work(which: int) -> None:
        try:
            feeds, context = on_device(all_feeds[which]), engine.context()
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(50):
                    got = context.run(feeds)
                torch.cuda.current_stream().synchronize()
            require_same(got, want[which])
            for _ in range(20):
                require_same(engine.run(all_feeds[which]), want[which])
        except BaseException as error:  # told to the main thread, where pytest sees it
            failures.append(error)

    threads = [threading.Thread(target=work, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_one_context_on_several_streams(mlp: ridgeline.Engine) -> None:
    """Runs that share memory come one after the other, though their streams do not know of each other."""
    context, streams = mlp.context(), [torch.cuda.Stream() for _ in range(2)]
    all_feeds = [mlp.example_inputs(seed=seed) for seed in range(6)]
    want = [mlp.run(feeds) for feeds in all_feeds]
    tensors = [on_device(feeds) for feeds in all_feeds]
    torch.cuda.synchronize()
    got = []
    for i, given in enumerate(tensors):
        with torch.cuda.stream(streams[i % 2]):
            torch.cuda._sleep(100_000)
            got.append(context.run(given))
    torch.cuda.synchronize()
    for made, wanted in zip(got, want, strict=True):
        require_same(made, wanted)
    require_same(context.run(all_feeds[0]), want[0])


def test_saved_and_loaded(engine: ridgeline.Engine, tmp_path: Path) -> None:
    path = engine.save(tmp_path / "saved.ridge")
    feeds = engine.example_inputs(seed=9)
    loaded = ridgeline.load(path)
    require_same(loaded.run(feeds), engine.run(feeds))
    assert loaded.plan == engine.plan


def test_profile_is_of_the_gpu(engine: ridgeline.Engine) -> None:
    steps = engine.profile(engine.example_inputs(), rounds=5).steps
    assert len(steps) <= len(engine.plan.steps)
    assert all(0.2 < step.median_us < 1000 for step in steps), steps


@pytest.mark.parametrize("kind", ["numpy", "cuda", "cpu"])
def test_odd_memory_is_read_right(mlp: ridgeline.Engine, kind: str) -> None:
    """Strides that are not plain, and memory that begins one element late."""
    feeds = mlp.example_inputs(seed=10)
    want = mlp.run(feeds)
    wide = np.zeros((4, 66), np.float32)
    wide[:, 1:65] = feeds["x"]
    late = np.zeros(4 * 64 + 1, np.float32)
    late[1:] = feeds["x"].ravel()
    for array in (wide[:, 1:65], late[1:].reshape(4, 64)):
        given: Any = array
        if kind != "numpy":
            base = torch.from_numpy(wide if array.base is wide else late).to(kind)
            given = base[:, 1:65] if base.dim() == 2 else base[1:].view(4, 64)
        require_same(mlp.run({"x": given}), want)


def test_arrays_and_tensors_mixed(encoder: ridgeline.Engine) -> None:
    """One input here; what comes in decides where results lie."""
    feeds = encoder.example_inputs(seed=2)
    want = encoder.run(feeds)
    pinned = {name: torch.from_numpy(array).pin_memory() for name, array in feeds.items()}
    require_same(encoder.run(pinned), want)


def test_mixed_inputs_of_two_kinds() -> None:
    net = Net()
    net("Add", net("MatMul", "a", net.weight(16, 16)), "b")
    engine = ridgeline.build(
        net.model("float[4,16] a, float[4,16] b", "float[4,16]"), target="cuda", level=0, verify="fast"
    )
    feeds = engine.example_inputs()
    want = engine.run(feeds)
    a, b = (torch.from_numpy(feeds[name]) for name in "ab")
    for given, device in (
        ({"a": a.cuda(), "b": feeds["b"]}, "cuda"),
        ({"a": a.cuda(), "b": b}, "cuda"),
        ({"a": a, "b": feeds["b"]}, "cpu"),
    ):
        for _ in range(3):  # the array is written over as soon as `run` is back
            array = feeds["b"].copy()
            got = engine.run({**given, "b": array if isinstance(given["b"], np.ndarray) else given["b"]})
            array[:] = np.nan
            assert all(tensor.device.type == device for tensor in got.values())
            require_same(got, want)
