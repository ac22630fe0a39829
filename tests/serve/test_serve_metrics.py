"""The text that Prometheus and perf_analyzer read: names, types, labels, and digits without an exponent."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import pytest

from fake_nvml import GIB, H200, FakeNvml
from ridgeline.analyze.top_metrics import METRICS
from ridgeline.base.nvml import Nvml, NvmlError
from ridgeline.serve.telemetry.machine import MachineSampler
from ridgeline.serve.telemetry.metrics import MetricsText, labels_of
from ridgeline.serve.telemetry.statistics import ModelStatistics, Times

MS = 1_000_000
COUNTERS = {
    "nv_inference_request_success": 2, "nv_inference_count": 9, "nv_inference_exec_count": 1,
    "nv_inference_request_duration_us": 161_000, "nv_inference_queue_duration_us": 3000,
    "nv_inference_compute_input_duration_us": 2, "nv_inference_compute_infer_duration_us": 4000,
    "nv_inference_compute_output_duration_us": 6,
}  # fmt: skip
SAMPLE = re.compile(r'([a-zA-Z_:][\w:]*)(?:\{((?:[a-zA-Z_]\w*="(?:[^"\\]|\\.)*",?)*)\})? (-?\d+(?:\.\d+)?)')


def no_library() -> Nvml:
    raise NvmlError("there is no NVIDIA driver here")


def model() -> ModelStatistics:
    made = ModelStatistics("m", "1")
    made.executed(Times(1000, 2 * MS, 3000), sizes=[1, 8], queue_ns=[MS, 2 * MS], total_ns=[MS, 160 * MS])
    made.failed("CANCELED", MS)
    made.pending = lambda: 5
    made.loaded(1.25)
    return made


@contextmanager
def sampling(
    library: Callable[[], Nvml] = no_library, proc: Path = Path("/proc"), *, samples: int = 1
) -> Iterator[MetricsText]:
    """Metrics with a thread that has sampled at least so many times."""
    sampler = MachineSampler(open_library=library, proc=proc, interval_s=0.01)
    seen = {id(sampler.latest): sampler.latest}
    ends = monotonic() + 10
    while len(seen) <= samples and monotonic() < ends:
        sleep(0.002)
        seen[id(sampler.latest)] = sampler.latest
    text = MetricsText(sampler)
    try:
        yield text
    finally:
        text.close()


def read(text: str) -> tuple[dict[str, str], dict[tuple[str, str], float]]:
    """Types by name, values by name and labels; every line must be one that a scraper can read."""
    kinds: dict[str, str] = {}
    values: dict[tuple[str, str], float] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds, "a family is told once"
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            found = SAMPLE.fullmatch(line)
            assert found, line
            key = (found[1], found[2] or "")
            assert key not in values, line
            values[key] = float(found[3])
            base = re.sub(r"_(bucket|sum|count)$", "", found[1])
            assert found[1] in kinds or kinds.get(base) == "histogram", line
    return kinds, values


def scrape(metrics: MetricsText, *models: ModelStatistics) -> str:
    return metrics.text(models, restarts={"cpu": 2, "cuda:0": 0}, uptime_s=1234.5)


def test_models_have_triton_s_names_types_and_labels() -> None:
    with sampling() as metrics:
        kinds, values = read(scrape(metrics, model()))
    labels = 'model="m",version="1"'
    assert {name: values[name, labels] for name in COUNTERS} == COUNTERS
    assert {kinds[name] for name in (*COUNTERS, "nv_inference_request_failure")} == {"counter"}
    failures = {key[1]: value for key, value in values.items() if key[0] == "nv_inference_request_failure"}
    assert failures == {
        f'{labels},reason="{reason}"': float(reason == "CANCELED")
        for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER")
    }
    gauges = {
        "nv_inference_pending_request_count": 5, "ridgeline_queue_depth": 5,
        "nv_model_load_duration_secs": 1.25,
    }  # fmt: skip
    assert {name: values[name, labels] for name in gauges} == gauges
    assert {kinds[name] for name in gauges} == {"gauge"}


def test_histograms_of_times_and_batch_sizes() -> None:
    with sampling() as metrics:
        kinds, values = read(scrape(metrics, model()))
    first = "nv_inference_first_response_histogram_ms"
    buckets = {key[1]: value for key, value in values.items() if key[0] == f"{first}_bucket"}
    assert buckets == {
        f'model="m",version="1",le="{le}"': count
        for le, count in (("100", 1), ("500", 2), ("2000", 2), ("5000", 2), ("+Inf", 2))
    }
    labels = 'model="m",version="1"'
    assert values[f"{first}_sum", labels] == 161
    assert values["ridgeline_request_duration_us_bucket", f'{labels},le="1000"'] == 1
    assert values["ridgeline_request_duration_us_sum", labels] == 161_000
    assert values["ridgeline_batch_size_bucket", f'{labels},le="8"'] == 0
    assert values["ridgeline_batch_size_bucket", f'{labels},le="16"'] == 1
    histograms = {name for name, kind in kinds.items() if kind == "histogram"}
    assert histograms == {first, "ridgeline_request_duration_us", "ridgeline_batch_size"}


def test_tags_of_a_model_are_labels_whatever_their_names_are() -> None:
    made = model()
    made.tags = {"team": 'a"b\n', "cost-centre": "7", "model": "not the name"}
    assert labels_of(made) == {
        "_cost_centre": "7", "_model": "not the name", "_team": 'a"b\n', "model": "m", "version": "1",
    }  # fmt: skip
    with sampling() as metrics:
        _, values = read(scrape(metrics, made, ModelStatistics("other", "2")))
    name = '_cost_centre="7",_model="not the name",_team="a\\"b\\n",model="m",version="1"'
    assert values["nv_inference_count", name] == 9
    assert values["nv_inference_count", 'model="other",version="2"'] == 0
    assert ("nv_model_load_duration_secs", 'model="other",version="2"') not in values


def test_the_machine_and_the_server_are_there_without_a_gpu() -> None:
    with sampling(samples=2) as metrics:
        kinds, values = read(scrape(metrics))
        assert metrics.gpu_status() == []
    assert 0.0 <= values["nv_cpu_utilization", ""] <= 1.0
    assert 0 < values["nv_cpu_memory_used_bytes", ""] < values["nv_cpu_memory_total_bytes", ""]
    assert values["process_resident_memory_bytes", ""] > 10 * 2**20
    assert values["process_open_fds", ""] >= 3
    assert values["ridgeline_uptime_seconds", ""] == 1234.5
    assert values["ridgeline_worker_restarts_total", 'device="cpu"'] == 2
    assert kinds["ridgeline_worker_restarts_total"] == "counter"
    assert not [name for name in kinds if "gpu" in name or name.startswith("DCGM")]
    assert "nv_energy_consumption" not in kinds


def test_what_the_system_does_not_tell_is_absent(tmp_path: Path) -> None:
    with sampling(proc=tmp_path, samples=2) as metrics:
        kinds, _ = read(scrape(metrics))
    assert set(kinds) == {"ridgeline_uptime_seconds", "ridgeline_worker_restarts_total"}


@pytest.mark.parametrize("stat", ["", "cpu 1 2\n", "cpu a b c d e f g h\n"])
def test_files_of_another_form_are_not_guessed_at(tmp_path: Path, stat: str) -> None:
    (tmp_path / "stat").write_text(stat)
    (tmp_path / "meminfo").write_text("MemTotal: 10 kB\n")
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "statm").write_text("1")
    with sampling(proc=tmp_path, samples=2) as metrics:
        kinds, _ = read(scrape(metrics))
    assert set(kinds) == {"ridgeline_uptime_seconds", "ridgeline_worker_restarts_total"}


def test_processor_time_is_counted_between_samples(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 100 700 100 0 0 0 50 0\ncpu0 1 2 3 4 5 6 7 8\n")
    sampler = MachineSampler(open_library=no_library, proc=tmp_path, interval_s=3600)
    sampler.close()
    assert sampler.latest.cpu_share is None, "a single sample says nothing"
    stat.write_text("cpu  120 5 110 750 110 2 2 1 70 0\n")
    assert sampler._sample(None).cpu_share == 0.4  # 40 of 100 ticks; guests are in those of users
    assert sampler._sample(None).cpu_share is None, "no time has passed"


def perf_analyzer_reads(text: str, name: str) -> dict[str, float]:
    """As perf_analyzer finds a GPU's metric: a line of its own, one label, digits."""
    found = re.finditer(r"\n" + name + r'\{gpu_uuid\="([^"]+)"\} (\d+\.?\d*)', text)
    return {match[1]: float(match[2]) for match in found}


def test_perf_analyzer_and_dashboards_find_every_gpu() -> None:
    library = FakeNvml(H200, {**H200, "nvmlDeviceGetUUID": "GPU-2"})
    with sampling(lambda: Nvml(library), samples=2) as metrics:
        text = scrape(metrics, model())
        kinds, values = read(text)
        rows = metrics.gpu_status()
    expected = {
        "nv_gpu_utilization": 0.37, "nv_gpu_power_usage": 118.4, "nv_gpu_memory_used_bytes": 2 * GIB,
        "nv_gpu_memory_total_bytes": 140 * GIB, "nv_gpu_power_limit": 700,
    }  # fmt: skip
    for name, value in expected.items():
        assert perf_analyzer_reads(text, name) == {"GPU-0f1e2d3c": value, "GPU-2": value}
        assert kinds[name] == "gauge"
    assert not re.search(r"\de[+-]?\d", re.sub(r'"[^"]*"', "", text)), (
        "an exponent is read as its first digit"
    )
    assert {metric.name for metric in METRICS} <= set(kinds)
    assert values["nv_energy_consumption", 'gpu_uuid="GPU-2"'] == 0
    assert kinds["nv_energy_consumption"] == "counter"
    assert [row["uuid"] for row in rows] == ["GPU-0f1e2d3c", "GPU-2"]
    assert (rows[0]["utilization"], rows[0]["used_bytes"], rows[0]["sm_share"]) == (0.37, 2 * GIB, 0.845)
    assert library.open_samples == 0, "the library is given back"


def test_energy_is_counted_from_the_start_in_joules() -> None:
    library = FakeNvml(H200)
    with sampling(lambda: Nvml(library), samples=1) as metrics:
        library.gpus[0]["nvmlDeviceGetTotalEnergyConsumption"] += 2500
        _wait_for(lambda: 'nv_energy_consumption{gpu_uuid="GPU-0f1e2d3c"} 2.5\n' in scrape(metrics))


def test_a_gpu_that_is_lost_has_no_metrics_until_it_is_back() -> None:
    library = FakeNvml(H200)
    with sampling(lambda: Nvml(library)) as metrics:
        assert "nv_gpu_utilization" in scrape(metrics)
        library.fails = 15
        _wait_for(lambda: "nv_gpu_utilization" not in scrape(metrics))
        assert metrics.gpu_status() == []
        assert "nv_cpu_memory_total_bytes" in scrape(metrics)
        library.fails = 0
        _wait_for(lambda: "nv_gpu_utilization" in scrape(metrics))


def test_a_scrape_never_waits_for_the_driver() -> None:
    """The thread sits in the driver; scrapes go on, and the thread ends with the server."""
    is_asked, may_answer = threading.Event(), threading.Event()

    def slow() -> Nvml:
        is_asked.set()
        may_answer.wait(10)
        raise NvmlError("too late")

    metrics = MetricsText(MachineSampler(open_library=slow))
    assert is_asked.wait(10)
    assert "nv_inference_count" in scrape(metrics, model())
    may_answer.set()
    metrics.close()
    assert "ridgeline-machine" not in {thread.name for thread in threading.enumerate()}


def _wait_for(is_so: Callable[[], bool]) -> None:
    ends = monotonic() + 10
    while not is_so():
        assert monotonic() < ends, "it did not happen"
        sleep(0.005)
