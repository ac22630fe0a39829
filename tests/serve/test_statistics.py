"""What is counted of a model's requests, and told in the form that perf_analyzer reads."""

from __future__ import annotations

import json
import random
from time import time

import pytest

from ridgeline.serve.telemetry.histogram import WINDOW_S, Histogram, RecentRate
from ridgeline.serve.telemetry.statistics import REQUEST_US, ModelStatistics, Times

MS = 1_000_000  # nanoseconds
DURATIONS = (
    "success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss",
)  # fmt: skip


class Clock:
    now = 100.5

    def __call__(self) -> float:
        return self.now


def counted(clock: Clock | None = None) -> ModelStatistics:
    """Two batches, of three requests and of one, and three failures."""
    made = ModelStatistics("m", "3", clock=clock or Clock())
    made.executed(
        Times(10, MS, 20), sizes=[1, 2, 1], queue_ns=[MS, 2 * MS, 3 * MS], total_ns=[4 * MS, 5 * MS, 6 * MS]
    )
    made.executed(Times(1, 2 * MS, 2), sizes=[8], queue_ns=[0], total_ns=[40 * MS])
    made.failed("REJECTED", 5)
    made.failed("BACKEND", 7 * MS)
    made.failed("a reason that Triton does not have", 0)
    return made


def test_requests_inferences_and_executions_are_three_counts() -> None:
    before = int(time() * 1000)
    made = counted()
    row = made.json()
    assert (row["inference_count"], row["execution_count"]) == (12, 2)
    assert before <= row["last_inference"] <= time() * 1000
    stats = row["inference_stats"]
    assert stats["success"] == {"count": 4, "ns": 55 * MS}
    assert stats["fail"] == {"count": 3, "ns": 7 * MS + 5}
    assert stats["queue"] == {"count": 4, "ns": 6 * MS}
    # each request counts with the whole time of its batch
    assert stats["compute_input"] == {"count": 4, "ns": 31}
    assert stats["compute_infer"] == {"count": 4, "ns": 5 * MS}
    assert stats["compute_output"] == {"count": 4, "ns": 62}
    assert made.failures == {"REJECTED": 1, "CANCELED": 0, "BACKEND": 1, "OTHER": 1}


def test_batches_are_counted_by_size_and_once_each() -> None:
    made = counted()
    made.executed(Times(1, 1, 1), sizes=[4], queue_ns=[0], total_ns=[MS])
    assert made.json()["batch_stats"] == [
        {
            "batch_size": 4,
            "compute_input": {"count": 2, "ns": 11},
            "compute_infer": {"count": 2, "ns": MS + 1},
            "compute_output": {"count": 2, "ns": 21},
        },
        {
            "batch_size": 8,
            "compute_input": {"count": 1, "ns": 1},
            "compute_infer": {"count": 1, "ns": 2 * MS},
            "compute_output": {"count": 1, "ns": 2},
        },
    ]


def test_batch_sizes_are_told_in_their_order() -> None:
    made = counted()
    made.executed(Times(1, 1, 1), sizes=[2], queue_ns=[0], total_ns=[MS])
    assert [row["batch_size"] for row in made.json()["batch_stats"]] == [2, 4, 8]
    assert made.snapshot(0.0)["batch_sizes"] == [[2, 1], [4, 1], [8, 1]]


@pytest.mark.parametrize("made", [ModelStatistics("m", "1"), counted()])
def test_perf_analyzer_finds_all_that_it_reads_without_checking(made: ModelStatistics) -> None:
    row = json.loads(json.dumps(made.json()))
    assert isinstance(row["name"], str)
    assert isinstance(row["version"], str)
    assert set(row["inference_stats"]) == set(DURATIONS)
    numbers = [row["inference_count"], row["execution_count"], row["last_inference"]]
    for name in DURATIONS:
        numbers += [row["inference_stats"][name][part] for part in ("count", "ns")]
    assert all(type(number) is int and 0 <= number < 2**64 for number in numbers)
    compute = {row["inference_stats"][f"compute_{name}"]["count"] for name in ("input", "infer", "output")}
    assert len(compute) == 1, "server side statistics compute counts must be the same"


def test_the_status_page_s_row() -> None:
    clock = Clock()
    made = counted(clock)
    made.pending = lambda: 7
    made.loaded(2.5)
    clock.now = 102.0
    row = json.loads(json.dumps(made.snapshot(clock.now)))
    assert (row["requests"], row["failures"], row["inferences"], row["executions"]) == (4, 3, 12, 2)
    assert row["failures_by_reason"]["REJECTED"] == 1
    assert (row["average_batch"], row["batch_sizes"], row["queue_depth"]) == (6.0, [[4, 1], [8, 1]], 7)
    assert (row["requests_per_s"], row["inferences_per_s"]) == (2.0, 6.0), "over the two seconds there were"
    assert 3000 <= row["p50_us"] <= 5000
    assert 30_000 <= row["p99_us"] <= 50_000
    assert (row["queue_us"], row["infer_us"], row["load_s"]) == (1500.0, 1250.0, 2.5)
    made.unloaded()
    after = made.snapshot(clock.now)
    assert (after["queue_depth"], after["load_s"], after["requests"]) == (0, None, 4)


def test_a_model_without_requests_has_no_times() -> None:
    row = ModelStatistics("m", "1").snapshot(0.0)
    unknown = {name for name, value in row.items() if value is None}
    assert unknown == {
        "average_batch", "p50_us", "p95_us", "p99_us", "queue_us", "infer_us", "last_inference_ms", "load_s",
    }  # fmt: skip
    assert row["requests_per_s"] == 0.0


def test_values_at_a_bound_belong_below_it() -> None:
    made = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5, 9.0):
        made.observe(value)
    assert made.counts == [2, 2, 2]
    assert made.sum == 16.5
    assert made.quantile(1.0) == 2.0, "of larger values only that is known"
    assert Histogram((1.0,)).quantile(0.5) is None


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
def test_quantiles_are_near_the_true_ones(share: float) -> None:
    values = sorted(random.lognormvariate(8.0, 1.0) for _ in range(5000))
    made = Histogram(REQUEST_US)
    for value in values:
        made.observe(value)
    found = made.quantile(share)
    assert found == pytest.approx(values[int(share * 5000)], rel=0.1)


def test_coarse_buckets_count_the_same_values_in_another_unit() -> None:
    made = Histogram(REQUEST_US)
    for ms in (0.05, 100.0, 100.1, 499.0, 3000.0, 20_000.0):
        made.observe(ms * 1000)
    coarse = made.coarse((100.0, 500.0, 2000.0, 5000.0), unit=1000)
    assert coarse.counts == (2, 2, 0, 1, 1)
    assert coarse.sum == pytest.approx(23_699.15)
    with pytest.raises(KeyError):
        made.coarse((120.0,), unit=1000)


def test_the_rate_is_of_the_last_whole_seconds() -> None:
    rate = RecentRate(100.0)
    assert rate.per_second(100.9) == 0.0
    rate.add(100.9, 6)
    assert rate.per_second(100.95) == 0.0, "its second is not over"
    assert rate.per_second(101.0) == 6.0
    assert rate.per_second(103.5) == 2.0
    for second in range(101, 140):
        rate.add(second + 0.5, 3)
    assert rate.per_second(140.0) == 3.0
    rate.add(140.1, 1000)
    assert rate.per_second(140.2) == 3.0
    assert rate.per_second(140.0 + WINDOW_S) == 1000 / WINDOW_S
    assert rate.per_second(141.0 + WINDOW_S) == 0.0
    assert rate.per_second(1000.0) == 0.0
