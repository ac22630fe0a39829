"""What happened to the requests of one version of a model: counted once per batch, told in Triton's form.

One thread counts and reads, so that no answer shows half a batch. Durations are nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic, time_ns
from typing import Any, NamedTuple

from ridgeline.serve.telemetry.histogram import Histogram, RecentRate

REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
# from 100 µs to 10 s, each at most 1.7 times the one before: quantiles are read between them
REQUEST_US = (*(10.0**power * step for power in range(2, 7) for step in (1, 1.5, 2, 3, 5, 7)), 1e7)
BATCH_SIZES = tuple(float(2**power) for power in range(11))
MILLION = 10**6


def none_waiting() -> int:
    return 0


@dataclass(slots=True)
class Duration:
    """How often something was done, and how long it took in all."""

    count: int = 0
    ns: int = 0

    def add(self, count: int, ns: int) -> None:
        self.count += count
        self.ns += ns

    def json(self) -> dict[str, int]:
        return {"count": self.count, "ns": self.ns}


class Times(NamedTuple):
    """Of a batch: from the server's memory to where the engine reads, the engine, and back."""

    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0


@dataclass(slots=True)
class BatchTimes:
    """Of all executions with one batch size."""

    input: Duration = field(default_factory=Duration)
    infer: Duration = field(default_factory=Duration)
    output: Duration = field(default_factory=Duration)

    def add(self, count: int, input_ns: int, infer_ns: int, output_ns: int) -> None:
        self.input.add(count, input_ns)
        self.infer.add(count, infer_ns)
        self.output.add(count, output_ns)

    def json(self) -> dict[str, dict[str, int]]:
        return {
            "compute_input": self.input.json(),
            "compute_infer": self.infer.json(),
            "compute_output": self.output.json(),
        }


class ModelStatistics:
    """Counters of one version through all its generations. They never fall."""

    def __init__(self, name: str, version: str, *, clock: Callable[[], float] = monotonic) -> None:
        self.name, self.version = name, version
        self.tags: Mapping[str, str] = {}  # of the model's configuration, for its metrics
        self.pending: Callable[[], int] = none_waiting  # how many requests wait now
        self.whole: ModelStatistics | None = None  # of which this is the engine: its batches are that one's
        self.load_s: float | None = None  # how long the last load took
        self.inference_count = 0  # a request counts with its batch size
        self.execution_count = 0
        self.last_inference_ms = 0  # since 1970; 0: never
        self.success, self.fail, self.queue = Duration(), Duration(), Duration()
        self.compute = BatchTimes()  # each request counts with the whole time of its batch
        self.batches: dict[int, BatchTimes] = {}
        self.failures = dict.fromkeys(REASONS, 0)
        self.request_us = Histogram(REQUEST_US)  # whole time of requests that succeeded
        self.batch_sizes = Histogram(BATCH_SIZES)
        self._clock = clock
        self._requests_rate = RecentRate(clock())
        self._inferences_rate = RecentRate(clock())

    def loaded(self, seconds: float) -> None:
        self.load_s = seconds

    def unloaded(self) -> None:
        """Forget the generation that served it: it would otherwise be kept in memory to be asked."""
        self.pending, self.load_s = none_waiting, None

    def executed(
        self,
        times: Times,
        *,
        sizes: Sequence[int],
        queue_ns: Iterable[int],
        total_ns: Sequence[int],
        rows: int = 0,
    ) -> None:
        """A batch that succeeded, and its requests that are answered: `rows` is the batch's size, if more
        were in it."""
        self.answered(times, sizes=sizes, queue_ns=queue_ns, total_ns=total_ns)
        for each in (self, self.whole):
            if each is not None:
                each.ran(rows or sum(sizes), times)

    def ran(self, size: int, times: Times) -> None:
        """A batch of this size."""
        self.execution_count += 1
        batch = self.batches.get(size)
        if batch is None:
            batch = self.batches[size] = BatchTimes()
        batch.add(1, *times)
        self.batch_sizes.observe(size)

    def answered(
        self, times: Times, *, sizes: Sequence[int], queue_ns: Iterable[int], total_ns: Sequence[int]
    ) -> None:
        """Requests of a batch, or of what a model with Python steps does around its batches."""
        now, requests, size = self._clock(), len(sizes), sum(sizes)
        self.inference_count += size
        self.last_inference_ms = time_ns() // MILLION
        self.success.add(requests, sum(total_ns))
        self.queue.add(requests, sum(queue_ns))
        self.compute.add(requests, *(requests * ns for ns in times))
        for ns in total_ns:
            self.request_us.observe(ns / 1000)
        self._requests_rate.add(now, requests)
        self._inferences_rate.add(now, size)

    def failed(self, reason: str, total_ns: int) -> None:
        """A request that got an error for an answer, or whose client went away."""
        self.failures[reason if reason in self.failures else "OTHER"] += 1
        self.fail.add(1, total_ns)

    def json(self) -> dict[str, Any]:
        """A row of the protocol's `model_stats`. There is no response cache, so its counts stay 0."""
        return {
            "name": self.name,
            "version": self.version,
            "last_inference": self.last_inference_ms,
            "inference_count": self.inference_count,
            "execution_count": self.execution_count,
            "inference_stats": {
                "success": self.success.json(),
                "fail": self.fail.json(),
                "queue": self.queue.json(),
                **self.compute.json(),
                "cache_hit": Duration().json(),
                "cache_miss": Duration().json(),
            },
            "batch_stats": [
                {"batch_size": size, **self.batches[size].json()} for size in sorted(self.batches)
            ],
        }

    def snapshot(self, now: float) -> dict[str, Any]:
        """What the status page shows. Times that nothing is known of are null."""
        return {
            "requests": self.success.count,
            "failures": sum(self.failures.values()),
            "failures_by_reason": dict(self.failures),
            "inferences": self.inference_count,
            "executions": self.execution_count,
            "average_batch": self.inference_count / self.execution_count if self.execution_count else None,
            "batch_sizes": [[size, self.batches[size].infer.count] for size in sorted(self.batches)],
            "queue_depth": self.pending(),
            "p50_us": self.request_us.quantile(0.50),
            "p95_us": self.request_us.quantile(0.95),
            "p99_us": self.request_us.quantile(0.99),
            "queue_us": _mean_us(self.queue),
            "infer_us": _mean_us(self.compute.infer),
            "requests_per_s": self._requests_rate.per_second(now),
            "inferences_per_s": self._inferences_rate.per_second(now),
            "last_inference_ms": self.last_inference_ms or None,
            "load_s": self.load_s,
        }


def _mean_us(duration: Duration) -> float | None:
    return duration.ns / duration.count / 1000 if duration.count else None
