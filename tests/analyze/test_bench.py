from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import onnx.numpy_helper
import onnx.parser
import pytest

from fake_machine import make_machine, read_machine
from ridgeline.analyze.bench import Feeds, Peer, bench, bench_alone, bench_peers
from ridgeline.analyze.bench_settings import BenchSettings
from ridgeline.analyze.headline import headline
from ridgeline.analyze.show import summarise
from ridgeline.errors import OptionError
from ridgeline.options import DEFAULT_LIMITS
from ridgeline.plan.plan import Plan
from ridgeline.plan.report import Report

FEEDS = {"x": np.ones((4, 4), np.float32)}


@dataclass
class Doubler:
    """Stands in for an engine: y = 2x."""

    plan: Plan
    report: Report
    runs: int = 0
    contexts: int = 0
    shows_steps: bool = True
    spoiled: float = 0.0  # what every context but the first adds to its result
    program: ClassVar[Any] = SimpleNamespace(limits=DEFAULT_LIMITS)

    def fused_onnx(self, *, weights: bool) -> onnx.ModelProto:
        """y = 2x by way of a large sum, so that rounding carries it far."""
        model = onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["": 20]> g (float[4,4] x) => (float[4,4] y)'
            " { s = Add(x, up) t = Add(s, x) sum = ReduceSum <keepdims = 0> (down, first) y = Add(t, sum) }"
        )
        made_of = {
            "up": np.full((4, 4), 1000, np.float32),
            "down": np.full((2, 4, 4), -500, np.float32),
            "first": np.array([0], np.int64),
        }
        for name, array in made_of.items():
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        return model

    def context(self, *, wait: bool) -> DoublerContext:
        assert wait, "what is measured is the planned engine, not what runs meanwhile"
        self.contexts += 1
        return DoublerContext(self, 0.0 if self.contexts == 1 else self.spoiled)


@dataclass
class DoublerContext:
    engine: Doubler
    spoiled: float
    execute: Callable[[], None] = lambda: None

    def run(self, feeds: Feeds) -> Mapping[str, np.ndarray]:
        self.engine.runs += 1
        self.execute()
        return {"y": feeds["x"] * 2 + np.float32(self.spoiled)}

    @contextmanager
    def timed_steps(
        self, feeds: Feeds, times_ns: list[tuple[int, int]], clock: Callable[[], int]
    ) -> Iterator[None]:
        if self.engine.shows_steps:
            self.execute = lambda: times_ns.append((clock(), clock()))
        yield


@pytest.fixture
def engine(plan: Plan, report: Report) -> Doubler:
    return Doubler(plan, report)


def test_alone_every_sample_is_one_query(engine: Doubler) -> None:
    result = bench(engine, FEEDS, duration_s=0.01, warmup_ms=1)
    (row,) = result.rows
    assert row.queries_per_sample == 1
    assert row.min_us <= row.median_us <= row.p90_us <= row.p95_us <= row.p99_us <= row.max_us
    assert row.throughput_qps == pytest.approx(row.queries / result.walltime_s)
    assert row.throughput_qps <= 1e6 / row.mean_us * (1 + 1e-9), "one context runs one query at a time"
    assert [part.part for part in result.parts] == ["h2d", "compute", "d2h"]
    assert engine.runs > row.queries + result.warmup_queries
    assert (result.shapes, result.types) == ({"x": (4, 4)}, {"x": "float32"})


def test_a_peer_gets_a_ratio_and_a_gate(engine: Doubler) -> None:
    peers = [
        Peer("same", lambda feeds: {"y": feeds["x"] + feeds["x"]}),
        Peer("wrong", lambda feeds: {"y": feeds["x"] * 3}, note="on purpose"),
    ]
    rounds: list[tuple[int, int]] = []
    result = bench(
        engine, FEEDS, peers=peers, duration_s=0.01, warmup_ms=0, on_round=lambda d, t: rounds.append((d, t))
    )
    same, wrong = result.versus
    assert [row.name for row in result.rows] == ["ridgeline", "same", "wrong"]
    assert same.agrees
    assert same.ratio_p10 <= same.ratio <= same.ratio_p90
    assert (wrong.max_difference, wrong.agrees, wrong.output) == (1.0, False, "y")
    assert not result.passed
    assert rounds[-1][0] == rounds[-1][1]


def test_what_verification_did_not_need_is_measured_at_the_inputs(engine: Doubler) -> None:
    """It drew tolerances as far as its own inputs needed them; others may be carried farther."""
    peers = [Peer(str(off), lambda feeds, off=off: {"y": feeds["x"] * 2 + off}) for off in (1e-6, 1e-4, 0.1)]
    near, rounded, wrong = bench(engine, FEEDS, peers=peers, duration_s=0.01, warmup_ms=0).versus
    assert near.agrees
    assert near.tolerance is not None
    assert near.tolerance < 1e-4
    assert rounded.agrees
    assert wrong.tolerance == rounded.tolerance
    assert not wrong.agrees


def test_without_verification_there_is_no_tolerance(engine: Doubler) -> None:
    engine.report = Report()
    peers = [Peer("other", lambda feeds: {"y": feeds["x"] * 3})]
    result = bench(engine, FEEDS, peers=peers, duration_s=0.01, warmup_ms=0)
    assert result.versus[0].tolerance is None
    assert result.versus[0].max_difference == 1.0


def test_overhead_that_dominates_is_a_warning(engine: Doubler) -> None:
    engine.report = replace(engine.report, call_overhead_us=1e6)
    result = bench(engine, FEEDS, duration_s=0.01, warmup_ms=0)
    assert any("overhead-bound" in warning for warning in result.warnings)


SHORT = BenchSettings(duration_s=0.0, warmup_ms=0.0, iterations=20)


def test_contexts_side_by_side_are_counted_together_and_compared(engine: Doubler) -> None:
    made = bench_alone(engine, FEEDS, replace(SHORT, concurrency=3))
    report = made.report
    assert {query.context for query in made.queries} == {0, 1, 2}
    assert report.rows[0].queries == len(made.queries) == 60
    assert (report.concurrency, len(report.contexts), report.passed) == (3, 2, True)
    assert any("waiting for the others" in warning for warning in report.warnings)


def test_a_context_that_computes_something_else_fails_the_gate(engine: Doubler) -> None:
    engine.spoiled = 1.0
    report = bench_alone(engine, FEEDS, replace(SHORT, concurrency=3)).report
    assert [(check.context, check.output, check.max_difference) for check in report.contexts] == [
        (1, "y", 1.0), (2, "y", 1.0),
    ]  # fmt: skip
    assert not report.passed


def test_contexts_of_an_unverified_engine_must_be_equal(engine: Doubler) -> None:
    engine.report, engine.spoiled = Report(), 1e-3
    assert not bench_alone(engine, FEEDS, replace(SHORT, concurrency=2)).report.passed


def test_bits_that_differ_within_the_tolerance_are_said(engine: Doubler) -> None:
    engine.spoiled = 1e-6
    report = bench_alone(engine, FEEDS, replace(SHORT, concurrency=2)).report
    assert report.passed
    assert any("not deterministic" in warning for warning in report.warnings)


def test_without_transfers_a_cpu_says_that_nothing_changes(engine: Doubler) -> None:
    report = bench_alone(engine, FEEDS, replace(SHORT, transfers=False)).report
    assert any("changes nothing on a CPU" in warning for warning in report.warnings)


def test_a_clock_that_follows_the_load_and_a_quota_are_said(engine: Doubler, tmp_path: Path) -> None:
    quiet = read_machine(make_machine(tmp_path / "quiet"))
    governor = "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    changes = {governor: "powersave\n", "sys/fs/cgroup/user.slice/cpu.max": "50000 100000\n"}
    slow = read_machine(make_machine(tmp_path / "slow", changes))
    said = bench_alone(engine, FEEDS, SHORT, host=quiet).report.warnings
    assert not any("governor" in warning or "quota" in warning for warning in said)
    said = bench_alone(engine, FEEDS, SHORT, host=slow).report.warnings
    assert any(warning.startswith("governor performance, powersave: ") for warning in said)
    assert any(warning.startswith("quota 0.50 of 2 CPUs: ") for warning in said)


def test_parts_that_cannot_be_measured_are_said(engine: Doubler) -> None:
    engine.shows_steps = False
    made = bench_alone(engine, FEEDS, SHORT)
    assert made.report.parts == ()
    assert all(query.compute_us is None for query in made.queries)
    assert any("only whole queries" in warning for warning in made.report.warnings)


def test_settings_that_would_be_ignored_are_errors(engine: Doubler) -> None:
    with pytest.raises(OptionError, match="--no-graph is for engines on a GPU"):
        bench_alone(engine, FEEDS, BenchSettings(graph=False))
    with pytest.raises(OptionError, match="--concurrency, --avg-runs cannot be used beside --peers"):
        bench_peers(engine, FEEDS, [], BenchSettings(concurrency=2, avg_runs=3))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"iterations": 0}, "--iterations is too small"),
        ({"iterations": 1_000_001}, "--iterations is too large"),
        ({"iterations": 500_001, "concurrency": 2}, "--iterations is too large"),
        ({"duration_s": float("nan")}, "--duration is no length of time"),
        ({"warmup_ms": -1.0}, "--warmup is no length of time"),
        ({"concurrency": 0}, "--concurrency is out of range"),
        ({"concurrency": 65}, "--concurrency is out of range"),
        ({"percentiles": (99.0, 101.0)}, "--percentile is out of range"),
        ({"avg_runs": -1}, "--avg-runs is negative"),
    ],
)
def test_settings_out_of_range_are_errors(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        BenchSettings(**wrong)


def test_headline_puts_it_on_one_line(engine: Doubler) -> None:
    peers = [Peer("same", lambda feeds: {"y": feeds["x"] * 2})]
    measured = bench(engine, FEEDS, peers=peers, duration_s=0.01, warmup_ms=0)
    summary = summarise(engine.plan, engine.report)
    row = headline("tiny", summary=summary, measured=measured, build_s=1.5, engine_file="t.ridge")
    assert (row.nodes, row.steps, row.peer, row.max_error) == (9, 2, "same", 5e-6)
    assert row.verified
    assert row.agrees
