"""Profiles on a GPU: kernels of replays matched to steps, gaps and overlap from time-stamps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ridgeline
from ridgeline.analyze.profile import run_with_ranges
from ridgeline.analyze.torch_profiler import cross_check
from ridgeline.plan.trace import CUPTI, EVENTS, Trace
from ridgeline.runtime import gpu_profiling
from ridgeline.runtime.gpu_profiling import DeviceWork, kernels_by_step, record_work


def test_the_profiler_sees_each_kernel_of_each_call() -> None:
    x = torch.randn(256, 256, device="cuda")
    found = kernels_by_step([lambda: x.relu(), lambda: None, lambda: (x @ x).tanh()])
    assert [len(step) for step in found[:2]] == [1, 0]
    assert len(found[2]) >= 2
    assert "relu" in found[0][0].name.lower() or "clamp" in found[0][0].name.lower()


def test_a_replayed_graph_shows_its_kernels() -> None:
    x = torch.randn(1024, 1024, device="cuda")
    graph = torch.cuda.CUDAGraph()
    x.relu()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        x.relu()
        x.tanh()
    record_work(graph.replay)
    found = record_work(lambda: [graph.replay() for _ in range(5)])
    assert len([each for each in found if each.kind == "kernel"]) == 10


def test_steps_come_from_the_replays_and_explain_the_run(engine: ridgeline.Engine) -> None:
    trace = engine.profile(rounds=10)
    assert trace.how == CUPTI, trace.notes
    assert all(step.gap_us is not None and step.overlap_us is not None for step in trace.steps)
    assert all(step.kernels for step in trace.steps if step.median_us)
    assert all(step.eager_us for step in trace.steps)
    starts = [kernel.start_us for step in trace.steps for kernel in step.kernels]
    assert starts == sorted(starts)
    # tiny nets: what the profiler adds to a launch shows most; bench/profile_gpu.py has the real ones
    assert 0.5 < trace.coverage < 2.0, (trace.covered_us, trace.total_us, trace.notes)
    assert trace.host.enqueue_us
    assert trace.host.run_us
    assert trace.host.run_us > trace.total_us * 0.5
    assert Trace.from_json(trace.to_json()) == trace


def test_kernels_that_do_not_match_are_not_guessed(
    mlp: ridgeline.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One kernel more in the replays than the steps launch: events time the steps, and the trace says why."""
    recorded = gpu_profiling.record_work

    def one_more(work: object) -> list[DeviceWork]:
        found = recorded(work)  # type: ignore[arg-type]
        return [*found, DeviceWork("kernel", "a stranger", found[-1].end_us + 1, 1.0)]

    monkeypatch.setattr(gpu_profiling, "record_work", one_more)
    trace = mlp.profile(rounds=3)
    assert trace.how == EVENTS
    assert any("CUDA events" in note for note in trace.notes)
    assert trace.gaps_us is None
    assert all(step.median_us > 0 for step in trace.steps)


def test_ranges_and_the_cross_check(mlp: ridgeline.Engine) -> None:
    feeds = mlp.example_inputs(seed=3)
    run_with_ranges(mlp, feeds)
    trace = mlp.profile(feeds, rounds=5)
    rows = cross_check(mlp, feeds, trace, rounds=3)
    assert [row.index for row in rows] == [step.index for step in trace.steps]
    for row, step in zip(rows, trace.steps, strict=True):
        assert bool(row.seen) == bool(step.kernels), (row, step)
        # the same kernels, alone and in a replay: the caches differ
        assert row.seen_us is None or 0.2 < row.seen_us / step.median_us < 5


def test_results_are_the_same_after_a_profile(mlp: ridgeline.Engine) -> None:
    feeds = mlp.example_inputs(seed=3)
    before = mlp.run(feeds)
    mlp.profile(feeds, rounds=2)
    after = mlp.run(feeds)
    for name, array in before.items():
        np.testing.assert_array_equal(array, after[name])
