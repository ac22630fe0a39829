"""What Prometheus reads: Triton's names and types for models, GPUs and the machine, and a few of our own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from socket import gethostname
from typing import Any

from ridgeline.analyze.top import GpuSample
from ridgeline.analyze.top_metrics import gpu_families
from ridgeline.base.exposition import Distribution, Family, HistogramFamily, Labels, exposition
from ridgeline.serve.telemetry.machine import MachineSample, MachineSampler
from ridgeline.serve.telemetry.statistics import ModelStatistics

US = 1000  # nanoseconds
FIRST_RESPONSE_MS = (100.0, 500.0, 2000.0, 5000.0)  # Triton's buckets
# name, help, where its value comes from
COUNTERS: Sequence[tuple[str, str, Callable[[ModelStatistics], int]]] = (
    ("nv_inference_request_success", "Requests that were answered, of any batch size.",
     lambda s: s.success.count),
    ("nv_inference_count", "Inferences: a request counts with its batch size.", lambda s: s.inference_count),
    ("nv_inference_exec_count", "Batches that were executed.", lambda s: s.execution_count),
    ("nv_inference_request_duration_us", "Time of requests from end to end, in all, in microseconds.",
     lambda s: s.success.ns // US),
    ("nv_inference_queue_duration_us", "Time of requests in the queue, in all, in microseconds.",
     lambda s: s.queue.ns // US),
    ("nv_inference_compute_input_duration_us", "Time until inputs were in place, in all, in microseconds.",
     lambda s: s.compute.input.ns // US),
    ("nv_inference_compute_infer_duration_us", "Time of execution, in all, in microseconds.",
     lambda s: s.compute.infer.ns // US),
    ("nv_inference_compute_output_duration_us", "Time until outputs were read, in all, in microseconds.",
     lambda s: s.compute.output.ns // US),
)  # fmt: skip
GAUGES: Sequence[tuple[str, str, Callable[[ModelStatistics], float | None]]] = (
    ("nv_inference_pending_request_count", "Requests that wait for execution.", lambda s: s.pending()),
    ("ridgeline_queue_depth", "Requests that wait for execution, to scale on.", lambda s: s.pending()),
    ("nv_model_load_duration_secs", "Time that the last load of the model took, in seconds.",
     lambda s: s.load_s),
)  # fmt: skip
HISTOGRAMS: Sequence[tuple[str, str, Callable[[ModelStatistics], Distribution]]] = (
    ("nv_inference_first_response_histogram_ms", "Time until a request's answer, in milliseconds.",
     lambda s: s.request_us.coarse(FIRST_RESPONSE_MS, unit=1000)),
    ("ridgeline_request_duration_us", "Time of requests from end to end, in microseconds.",
     lambda s: s.request_us.distribution()),
    ("ridgeline_batch_size", "Sizes of executed batches.", lambda s: s.batch_sizes.distribution()),
)  # fmt: skip
MACHINE: Sequence[tuple[str, str, Callable[[MachineSample], float | None]]] = (
    ("nv_cpu_utilization", "Share of all processors' time that was used, 0 to 1.", lambda m: m.cpu_share),
    ("nv_cpu_memory_total_bytes", "Memory of the machine.", lambda m: m.memory_bytes),
    ("nv_cpu_memory_used_bytes", "Memory that is not available to programs.", lambda m: m.used_bytes),
    ("process_resident_memory_bytes", "Memory of the server's own process.", lambda m: m.resident_bytes),
    ("process_open_fds", "Open files and sockets of the server's own process.", lambda m: m.open_files),
)  # fmt: skip


def _busy(gpu: GpuSample) -> float | None:
    return None if gpu.utilization is None else gpu.utilization / 100


# perf_analyzer takes a GPU's metric only with this one label
GPUS: Sequence[tuple[str, str, Callable[[GpuSample], float | None]]] = (
    ("nv_gpu_utilization", "Share of time in which a kernel ran, 0 to 1.", _busy),
    ("nv_gpu_memory_total_bytes", "Memory of the GPU.", lambda g: g.memory_bytes),
    ("nv_gpu_memory_used_bytes", "Memory of the GPU that is in use.", lambda g: g.used_bytes),
    ("nv_gpu_power_usage", "Power draw of the GPU, in watts.", lambda g: g.power),
    ("nv_gpu_power_limit", "Power limit of the GPU, in watts.", lambda g: g.power_limit),
)  # fmt: skip


class MetricsText:
    """The text of a scrape. Its thread samples the machine from the start until `close`."""

    def __init__(self, machine: MachineSampler | None = None) -> None:
        self._machine = machine or MachineSampler()
        self._hostname = gethostname()

    def close(self) -> None:
        self._machine.close()

    def text(self, models: Iterable[ModelStatistics], *, restarts: Mapping[str, int], uptime_s: float) -> str:
        """`restarts` of workers by device."""
        return exposition(
            [
                *model_families(list(models)),
                *server_families(restarts, uptime_s),
                *machine_families(self._machine.latest, self._hostname),
            ]
        )

    def gpu_status(self) -> list[dict[str, Any]]:
        """What the status page shows of each GPU. Shares are 0 to 1."""
        report = self._machine.latest.gpus
        return [] if report is None else [_gpu_row(gpu) for gpu in report.gpus]


def model_families(models: Sequence[ModelStatistics]) -> Iterator[Family | HistogramFamily]:
    labelled = [(labels_of(each), each) for each in models]
    for name, about, count in COUNTERS:
        yield Family(name, "counter", about, tuple((labels, count(each)) for labels, each in labelled))
    failures = tuple(
        ({**labels, "reason": reason}, count)
        for labels, each in labelled
        for reason, count in each.failures.items()
    )
    yield Family("nv_inference_request_failure", "counter", "Requests that failed, by reason.", failures)
    for name, about, value in GAUGES:
        yield _gauge(name, about, ((labels, value(each)) for labels, each in labelled))
    for name, about, made in HISTOGRAMS:
        yield HistogramFamily(name, about, tuple((labels, made(each)) for labels, each in labelled))


def labels_of(model: ModelStatistics) -> Labels:
    """As Triton does it, a tag's name gets an underscore; what may not stand in a name becomes one."""
    tags = {"_" + re.sub(r"[^a-zA-Z0-9_]", "_", name): tag for name, tag in sorted(model.tags.items())}
    return {**tags, "model": model.name, "version": model.version}


def server_families(restarts: Mapping[str, int], uptime_s: float) -> Iterator[Family]:
    yield _gauge("ridgeline_uptime_seconds", "Time since the server was started.", [({}, uptime_s)])
    yield Family(
        "ridgeline_worker_restarts_total", "counter", "Worker processes that died and were started again.",
        tuple(({"device": device}, count) for device, count in restarts.items()),
    )  # fmt: skip


def machine_families(sample: MachineSample, hostname: str) -> Iterator[Family]:
    for name, about, of_machine in MACHINE:
        yield _gauge(name, about, [({}, of_machine(sample))])
    if sample.gpus is None:
        return
    for name, about, of_gpu in GPUS:
        yield _gauge(name, about, (({"gpu_uuid": gpu.uuid}, of_gpu(gpu)) for gpu in sample.gpus.gpus))
    joules = tuple(({"gpu_uuid": uuid}, energy / 1000) for uuid, energy in sample.gpu_energy_mj.items())
    yield Family(
        "nv_energy_consumption", "counter", "Energy of the GPU since the server started, in joules.", joules
    )
    yield from gpu_families(sample.gpus, hostname=hostname)


def _gauge(name: str, about: str, samples: Iterable[tuple[Labels, float | None]]) -> Family:
    """What is not known is left out."""
    known = tuple((labels, value) for labels, value in samples if value is not None)
    return Family(name, "gauge", about, known)


def _gpu_row(gpu: GpuSample) -> dict[str, Any]:
    return {
        "index": gpu.index, "name": gpu.name, "uuid": gpu.uuid, "utilization": _busy(gpu),
        "memory_bytes": gpu.memory_bytes, "used_bytes": gpu.used_bytes, "power_w": gpu.power,
        "power_limit_w": gpu.power_limit, "temperature_c": gpu.temperature,
        "sm_share": gpu.activity.sm if gpu.activity else None,
        "tensor_share": gpu.activity.tensor if gpu.activity else None,
    }  # fmt: skip
