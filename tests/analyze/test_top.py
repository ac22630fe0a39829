"""`ridge top` over a made-up management library: every figure is that library's, in its documented unit."""

from __future__ import annotations

import ctypes
import http.client
import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from rich.console import Console

from fake_nvml import GIB, H200, FakeNvml
from ridgeline.analyze.top import GpuSampler, TopReport
from ridgeline.analyze.top_metrics import METRICS, gpu_families
from ridgeline.base import nvml as nvml_module
from ridgeline.base.exposition import Family, exposition
from ridgeline.base.nvml import Nvml, NvmlError, open_nvml
from ridgeline.cli.metrics_server import MetricsServer
from ridgeline.errors import RidgelineError

Ridge = Callable[..., tuple[int, str, str]]
OLD = {**H200, "nvmlDeviceGetName": "Tesla T4", "nvmlGpmQueryDeviceSupport": {"is_supported": 0}}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    """What the command opens; two GPUs, of which the second has no GPM."""
    made = FakeNvml({**H200, "processes": [(4242, 3 * GIB), (7, 2**64 - 1)]}, OLD)
    monkeypatch.setattr("ridgeline.base.nvml.open_nvml", lambda: Nvml(made))
    yield made
    assert made.open_samples == 0, "every sample is freed"


def sampled(library: FakeNvml) -> TopReport:
    with closing(GpuSampler(Nvml(library))) as sampler:
        return sampler.sample()


def test_every_figure_is_the_library_s(library: FakeNvml) -> None:
    gpu, old = sampled(library).gpus
    assert (gpu.utilization, gpu.memory_utilization) == (37, 12)
    assert (gpu.power, gpu.power_limit, gpu.energy_mj) == (118.4, 700.0, 123_456_789_012)
    assert (gpu.temperature, gpu.memory_temperature) == (34, 45)
    assert (gpu.sm_clock, gpu.memory_clock) == (1980, 3201)
    assert (gpu.memory_bytes, gpu.used_bytes, gpu.reserved_bytes) == (140 * GIB, 2 * GIB, GIB)
    assert gpu.activity is not None
    assert (gpu.activity.sm, gpu.activity.tensor, gpu.activity.memory) == (0.845, 0.6225, 0.71)
    assert (gpu.pcie_tx_bytes, gpu.pcie_rx_bytes) == (512 * 2**20, 256 * 2**20)
    assert [(p.pid, p.name, p.memory_bytes) for p in gpu.processes] == [
        (4242, "python3", 3 * GIB), (7, "", None)
    ]  # fmt: skip
    assert old.activity is None
    assert "Hopper" in old.why_no_activity
    assert old.pcie_tx_bytes == 1500 * 2**10


def test_what_a_gpu_does_not_offer_is_none_and_no_metric() -> None:
    bare = {"nvmlDeviceGetName": "GPU", "processes": []}
    report = sampled(FakeNvml(bare))
    (gpu,) = report.gpus
    assert gpu.power is gpu.utilization is gpu.used_bytes is gpu.activity is None
    assert exposition(gpu_families(report, hostname="here")) == ""


def test_older_drivers_answer_through_older_functions() -> None:
    gpu = {**H200, "nvmlDeviceGetMemoryInfo": {"total": 8 * GIB, "used": GIB, "free": 7 * GIB}}
    gpu["nvmlDeviceGetCurrentClocksThrottleReasons"] = 0x4
    absent = (
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlGpmQueryDeviceSupport",
    )
    (sample,) = sampled(FakeNvml(gpu, absent=absent)).gpus
    assert (sample.memory_bytes, sample.reserved_bytes) == (8 * GIB, 0)
    assert sample.clock_reasons == ("power cap",)
    assert sample.why_no_activity == "the driver has no GPM"


def test_a_lost_gpu_is_an_error_not_a_row_of_dashes() -> None:
    library = FakeNvml(H200)
    sampler = GpuSampler(Nvml(library))
    library.fails = 15
    with pytest.raises(NvmlError, match="fallen off the bus"):
        sampler.sample()


def test_no_gpu_says_what_can_be_done(ridge: Ridge, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NvmlError, match="docker run --gpus all"):
        open_nvml("libnot-there.so")
    monkeypatch.setattr("ridgeline.base.nvml.open_nvml", lambda: Nvml(FakeNvml()))
    code, _, stderr = ridge("top", "--once")
    assert code == 1
    assert "the driver sees no GPU" in stderr
    assert "ridge doctor" in stderr


def metrics_of(text: str) -> dict[tuple[str, str], float]:
    """Metric and GPU, as a scraper reads them."""
    rows = re.findall(r'^(\w+)\{gpu="(\d+)",[^}]*\} (\S+)$', text, re.MULTILINE)
    return {(name, gpu): float(value) for name, gpu, value in rows}


def test_metrics_have_dcgm_s_names_units_and_labels(ridge: Ridge, library: FakeNvml) -> None:
    code, stdout, stderr = ridge("top", "--prometheus", "--interval", "0.1")
    assert code == 0, stderr
    found = metrics_of(stdout)
    expected = {
        "DCGM_FI_DEV_SM_CLOCK": 1980,
        "DCGM_FI_DEV_GPU_TEMP": 34,
        "DCGM_FI_DEV_POWER_USAGE": 118.4,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 123_456_789_012,
        "DCGM_FI_DEV_GPU_UTIL": 37,
        "DCGM_FI_DEV_FB_USED": 2048,
        "DCGM_FI_DEV_FB_FREE": 137 * 1024,
        "DCGM_FI_PROF_SM_ACTIVE": 0.845,
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.6225,
        "DCGM_FI_PROF_DRAM_ACTIVE": 0.71,
        "DCGM_FI_PROF_PCIE_TX_BYTES": 512 * 2**20,
    }
    assert {name: found[name, "0"] for name in expected} == expected
    assert {name for name, gpu in found if gpu == "0"} == {metric.name for metric in METRICS}
    # the second GPU has no GPM: no metric, rather than a zero
    assert not [name for name, gpu in found if gpu == "1" and "PROF" in name]
    assert 'pci_bus_id="00000000:18:00.0",device="nvidia0",modelName="NVIDIA H200"' in stdout
    assert "# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter" in stdout
    assert "e+" not in stdout


def test_text_format_escapes_and_keeps_digits() -> None:
    family = Family("m", "gauge", "a\nb", (({"l": 'q"\\\n'}, 1.5e11), ({}, 0.25), ({}, float("nan"))))
    assert (
        exposition([family])
        == '# HELP m a\\nb\n# TYPE m gauge\nm{l="q\\"\\\\\\n"} 150000000000\nm 0.25\nm NaN\n'
    )


def test_json_and_table(ridge: Ridge, library: FakeNvml) -> None:
    made = json.loads(ridge("top", "--json", "--interval", "0.1")[1])
    assert made["schema"] == "ridgeline/top/1"
    assert made["gpus"][0]["activity"]["tensor"] == 0.6225
    shown = ridge("top", "--once", "--interval", "0.1")[1]
    for words in ("37 %", "84 %", "118/700", "python3", "3.00 GiB", "utilisation only", "Hopper"):
        assert words in shown, shown


def test_the_live_table_is_drawn_until_it_is_stopped(
    ridge: Ridge, library: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=120)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        if seconds == 1.0:  # between two tables; less is a wait for NVML
            waits.append(seconds)
            if len(waits) > 2:
                raise KeyboardInterrupt

    monkeypatch.setattr("ridgeline.cli.commands_top.out", screen)
    monkeypatch.setattr("time.sleep", sleep)
    assert ridge("top")[0] == 0
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    assert shown.count("driver 580.95.05") == 2, "once for each sample"
    assert "python3" in shown


def test_the_server_of_the_command_ends_with_ctrl_c(
    ridge: Ridge, library: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[tuple[int, bytes]] = []

    def scrape(server: MetricsServer) -> None:
        for _ in range(500):
            answers.append(_get(server.port, "/metrics"))
            if answers[-1][0] == 200:
                break
        raise KeyboardInterrupt

    monkeypatch.setattr(MetricsServer, "wait", scrape)
    code, _, stderr = ridge("top", "--prometheus", "--port", "0", "--interval", "0.1")
    assert code == 0
    assert "metrics at 127.0.0.1:" in stderr
    assert b"DCGM_FI_DEV_GPU_UTIL{" in answers[-1][1]


@pytest.mark.parametrize("words", [("--port", "0"), ("--prometheus", "--json")])
def test_options_that_do_not_go_together(ridge: Ridge, library: FakeNvml, words: tuple[str, ...]) -> None:
    assert ridge("top", *words)[0] == 2


def test_metrics_are_served_fresh_and_never_stale() -> None:
    texts = iter(["a 1\n", "a 2\n"])

    def make() -> str:
        try:
            return next(texts)
        except StopIteration:
            raise RidgelineError("the GPU has fallen off the bus") from None

    with MetricsServer(make, host="127.0.0.1", port=0, interval_s=0.05) as server:
        answers = [_get(server.port, "/metrics")]
        while b"bus" not in answers[-1][1]:
            assert len(answers) < 2000, "old figures are served as if they were new"
            answers.append(_get(server.port, "/metrics"))
        assert answers[-1][0] == 503
        assert {text for status, text in answers if status == 200} <= {b"a 1\n", b"a 2\n"}
        assert _get(server.port, "/other")[0] == 404


def _get(port: int, path: str) -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        assert (answer.getheader("Content-Type") or "").startswith("text/plain; version=0.0.4")
        return answer.status, answer.read()


def test_structures_have_the_sizes_of_nvidia_s_header() -> None:
    sizes = {
        nvml_module.Memory: 40, nvml_module.ProcessInfo: 24, nvml_module.PciInfo: 68,
        nvml_module.FieldValue: 40, nvml_module.GpmMetric: 40, nvml_module.Utilization: 8,
    }  # fmt: skip
    assert {made: ctypes.sizeof(made) for made in sizes} == sizes
    assert nvml_module.versioned(nvml_module.Memory(), 2).version == 0x02000028
