from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest

from ridgeline.analyze.bench import Feeds, Peer, bench
from ridgeline.analyze.headline import headline
from ridgeline.analyze.show import summarise
from ridgeline.plan.plan import Plan
from ridgeline.plan.report import Report

FEEDS = {"x": np.ones((4, 4), np.float32)}


@dataclass
class Doubler:
    """Stands in for an engine: y = 2x."""

    plan: Plan
    report: Report
    runs: int = 0

    def run(self, feeds: Feeds) -> Mapping[str, np.ndarray]:
        self.runs += 1
        return {"y": feeds["x"] * 2}


@pytest.fixture
def engine(plan: Plan, report: Report) -> Doubler:
    return Doubler(plan, report)


def test_alone_every_sample_is_one_query(engine: Doubler) -> None:
    result = bench(engine, FEEDS, duration_s=0.01, warmup_ms=1)
    (row,) = result.rows
    assert row.queries_per_sample == 1
    assert row.min_us <= row.median_us <= row.p90_us <= row.p95_us <= row.p99_us <= row.max_us
    assert row.throughput_qps == pytest.approx(1e6 / row.mean_us)
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


def test_headline_puts_it_on_one_line(engine: Doubler) -> None:
    peers = [Peer("same", lambda feeds: {"y": feeds["x"] * 2})]
    measured = bench(engine, FEEDS, peers=peers, duration_s=0.01, warmup_ms=0)
    summary = summarise(engine.plan, engine.report)
    row = headline("tiny", summary=summary, measured=measured, build_s=1.5, engine_file="t.ridge")
    assert (row.nodes, row.steps, row.peer, row.max_error) == (9, 2, "same", 5e-6)
    assert row.verified
    assert row.agrees
