"""Benchmarks on a GPU: transfers, enqueue and compute apart, contexts on streams of their own, no graph."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

import ridgeline
from ridgeline.analyze.bench import bench_alone
from ridgeline.analyze.bench_settings import BenchSettings
from ridgeline.analyze.bench_transfers import GpuRunner, ResidentRunner, make_runners
from ridgeline.base.nvml import open_nvml

SHORT = BenchSettings(duration_s=0.1, warmup_ms=20.0, iterations=50)


def test_the_parts_of_a_query_are_measured_and_fit_into_it(engine: ridgeline.Engine) -> None:
    feeds = engine.example_inputs(seed=3)
    made = bench_alone(engine, feeds, SHORT)
    assert [part.part for part in made.report.parts] == ["enqueue", "h2d", "compute", "d2h"]
    for query in made.queries:
        assert None not in (query.enqueue_us, query.h2d_us, query.compute_us, query.d2h_us)
        # the events lie inside the query; both clocks read to better than a microsecond
        assert query.h2d_us + query.compute_us + query.d2h_us <= query.latency_us + 5
        assert min(query.enqueue_us, query.h2d_us, query.compute_us, query.d2h_us) > 0
    for name, array in engine.run(feeds).items():
        np.testing.assert_array_equal(made.outputs[name], array)


def test_without_transfers_only_the_steps_run(mlp: ridgeline.Engine) -> None:
    feeds = mlp.example_inputs(seed=3)
    made = bench_alone(mlp, feeds, replace(SHORT, transfers=False))
    assert [part.part for part in made.report.parts] == ["enqueue", "compute"]
    whole = bench_alone(mlp, feeds, SHORT)
    assert made.report.rows[0].median_us < whole.report.rows[0].median_us
    for name, array in mlp.run(feeds).items():
        np.testing.assert_array_equal(made.outputs[name], array)


def test_without_a_graph_the_steps_are_queued_one_by_one(mlp: ridgeline.Engine) -> None:
    feeds = mlp.example_inputs(seed=3)
    for transfers, kind in ((True, GpuRunner), (False, ResidentRunner)):
        with ExitStack() as stack:
            for has_graph in (True, False):
                settings = replace(SHORT, transfers=transfers, graph=has_graph)
                (runner,) = make_runners(mlp, feeds, settings, stack)
                assert isinstance(runner, kind)
                assert (runner._instance.graph is not None) == has_graph
                runner.run()
                for name, array in mlp.run(feeds).items():
                    np.testing.assert_array_equal(runner.outputs()[name], array)


def test_contexts_have_streams_of_their_own_and_agree(mlp: ridgeline.Engine) -> None:
    feeds = mlp.example_inputs(seed=3)
    with ExitStack() as stack:
        runners = make_runners(mlp, feeds, replace(SHORT, concurrency=3), stack)
        assert len({runner._instance.stream.cuda_stream for runner in runners}) == 3
    report = bench_alone(mlp, feeds, replace(SHORT, concurrency=3)).report
    assert {check.context for check in report.contexts} == {1, 2}
    assert report.passed
    assert all(check.max_difference == 0 for check in report.contexts)


def test_the_engine_runs_as_before_afterwards(mlp: ridgeline.Engine) -> None:
    feeds = mlp.example_inputs(seed=3)
    before = mlp.run(feeds)
    for settings in (SHORT, replace(SHORT, graph=False), replace(SHORT, transfers=False)):
        bench_alone(mlp, feeds, settings)
    for name, array in mlp.run(feeds).items():
        np.testing.assert_array_equal(array, before[name])


def test_the_command_measures_what_it_was_asked_for(
    ridge: Callable[..., tuple[int, str, str]], here: Path, mlp: ridgeline.Engine
) -> None:
    mlp.save(here / "m.ridge")
    quick = ("--duration", "0.05", "--warmup", "5")
    code, stdout, stderr = ridge("bench", "m.ridge", *quick, "--no-transfers", "--streams", "2", "--json")
    assert code == 0, stderr
    made = json.loads(stdout)
    assert [part["part"] for part in made["parts"]] == ["enqueue", "compute"]
    assert (made["concurrency"], made["transfers"], made["graph"]) == (2, False, True)
    code, stdout, stderr = ridge("bench", "m.ridge", *quick, "--no-graph", "--export-times", "t.csv")
    assert code == 0, stderr
    assert all(word in stdout for word in ("enqueue", "host to device", "compute", "device to host"))
    (first, *_) = csv.DictReader((here / "t.csv").read_text().splitlines())
    assert all(float(first[name]) > 0 for name in ("enqueue_us", "h2d_us", "compute_us", "d2h_us"))


def test_clocks_are_watched(mlp: ridgeline.Engine) -> None:
    feeds = mlp.example_inputs(seed=3)
    report = bench_alone(mlp, feeds, replace(SHORT, duration_s=1.0), open_gpus=open_nvml).report
    assert not any("clocks were not watched" in warning for warning in report.warnings), report.warnings
