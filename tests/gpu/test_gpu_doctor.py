"""Figures of `ridge doctor` and `ridge top` against those of `nvidia-smi`, at rest and under load."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import torch

import ridgeline
from ridgeline.analyze.gpu_facts import CLOCK_REASONS, GpuFacts, read_gpus
from ridgeline.analyze.kernel_occupancy import occupancy
from ridgeline.analyze.top import GpuSample, GpuSampler
from ridgeline.base.gpu_graph import cuda_driver
from ridgeline.base.nvml import open_nvml
from ridgeline.cli.engines import compile_steps
from ridgeline.kernels.triton.driver import _function

needs_smi = pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="there is no nvidia-smi here")
MIB = 2**20
NONE = ("[N/A]", "N/A", "[Not Supported]", "[Requested functionality has been deprecated]", "")


def ask_smi(*fields: str) -> list[dict[str, str]]:
    """One row for each GPU, as nvidia-smi prints it without units."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return [dict(zip(fields, map(str.strip, line.split(",")), strict=True)) for line in shown.splitlines()]


def facts() -> tuple[GpuFacts, ...]:
    with closing(open_nvml()) as nvml:
        return read_gpus(nvml)


# field of nvidia-smi, ours, and how ours is written there
SAME = {
    "name": "name",
    "uuid": "uuid",
    "clocks.max.sm": "max_sm_clock",
    "clocks.max.memory": "max_memory_clock",
    "pcie.link.gen.max": "max_pcie_generation",
    "pcie.link.width.max": "max_pcie_width",
    "pcie.link.width.current": "pcie_width",
    "ecc.errors.corrected.volatile.total": "corrected_errors",
    "ecc.errors.uncorrected.volatile.total": "uncorrected_errors",
    "ecc.errors.uncorrected.aggregate.total": "uncorrected_errors_ever",
}
WATTS = {"power.limit": "power_limit", "power.default_limit": "power_default", "power.max_limit": "power_max"}
FLAGS = {
    "ecc.mode.current": "ecc",
    "ecc.mode.pending": "ecc_pending",
    "persistence_mode": "persistence",
    "mig.mode.current": "mig",
}


def test_facts_are_those_that_pytorch_knows() -> None:
    known = torch.cuda.get_device_properties(0)
    (gpu,) = [gpu for gpu in facts() if str(known.uuid) in gpu.uuid]
    assert gpu.name == known.name
    assert gpu.arch == f"sm_{known.major}{known.minor}"
    assert gpu.memory_bytes == pytest.approx(known.total_memory, rel=0.02)
    free, total = torch.cuda.mem_get_info()
    assert gpu.used_bytes == pytest.approx(total - free, rel=0.05, abs=2**30)


@needs_smi
def test_facts_that_stay_are_those_of_nvidia_smi() -> None:
    shown = ask_smi(*SAME, *WATTS, *FLAGS, "compute_mode", "pci.bus_id", "memory.total", "memory.reserved")
    found = facts()
    assert len(found) == len(shown)
    for gpu, row in zip(found, shown, strict=True):
        for field, name in SAME.items():
            ours = getattr(gpu, name)
            assert (row[field] in NONE and ours is None) or str(ours) == row[field], field
        for field, name in WATTS.items():
            ours = getattr(gpu, name)
            assert (row[field] in NONE and ours is None) or ours == pytest.approx(float(row[field])), field
        for field, name in FLAGS.items():
            ours = getattr(gpu, name)
            assert row[field] in NONE if ours is None else ours == (row[field] == "Enabled"), field
        assert gpu.compute_mode == row["compute_mode"].lower().replace("_", " ")
        assert row["pci.bus_id"].lower().endswith(gpu.pci_bus_id)
        assert (gpu.memory_bytes or 0) // MIB == int(row["memory.total"])
        # nvidia-smi rounds it up
        assert 0 <= int(row["memory.reserved"]) - (gpu.reserved_bytes or 0) / MIB < 1


@needs_smi
def test_facts_that_move_are_close_to_nvidia_smi() -> None:
    fields = ("temperature.gpu", "temperature.memory", "power.draw", "memory.used", "pstate", "clocks.mem")
    (row, *_), gpu = ask_smi(*fields), facts()[0]
    assert gpu.temperature == pytest.approx(int(row["temperature.gpu"]), abs=3)
    if row["temperature.memory"] not in NONE:
        assert gpu.memory_temperature == pytest.approx(int(row["temperature.memory"]), abs=3)
    assert gpu.power == pytest.approx(float(row["power.draw"]), rel=0.15, abs=10)
    assert (gpu.used_bytes or 0) / MIB == pytest.approx(int(row["memory.used"]), abs=64)
    assert f"P{gpu.performance_state}" == row["pstate"]
    assert gpu.memory_clock == int(row["clocks.mem"])


def test_our_own_process_is_on_the_list() -> None:
    """In a container NVML may show none, or numbers of the host's."""
    held = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    found = facts()[0].processes
    if all(process.memory_bytes is None for process in found):
        pytest.skip("NVML shows no processes in this container, or not what they hold")
    own = [process for process in found if process.pid == os.getpid()] or found
    assert max(process.memory_bytes or 0 for process in own) >= held.nbytes


@pytest.fixture
def busy() -> Iterator[None]:
    """Large products of bfloat16, for longer than the samples take; a stream holds about 1,000 launches."""
    a = torch.randn(16384, 16384, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    for _ in range(700):  # some 11 ms each on an H200
        torch.mm(a, a, out=out)
    yield
    torch.cuda.synchronize()


def sample(seconds: float) -> GpuSample:
    with closing(GpuSampler(open_nvml())) as sampler:
        time.sleep(seconds)
        return sampler.sample().gpus[0]


def test_at_rest_nothing_is_active() -> None:
    torch.cuda.synchronize()
    time.sleep(2.0)
    gpu = sample(1.0)
    if gpu.activity is None:
        pytest.skip(gpu.why_no_activity)
    assert (gpu.activity.tensor or 0.0) < 0.05
    assert (gpu.activity.sm or 0.0) < 0.2


@needs_smi
@pytest.mark.usefixtures("busy")
def test_under_load_top_says_what_nvidia_smi_says() -> None:
    time.sleep(1.5)
    gpu = sample(1.0)
    (row, *_) = ask_smi(
        "utilization.gpu", "power.draw", "clocks.sm", "clocks.mem", "temperature.gpu", "memory.used"
    )
    assert gpu.utilization == pytest.approx(int(row["utilization.gpu"]), abs=10)
    assert gpu.utilization is not None
    assert gpu.utilization > 80
    assert gpu.power == pytest.approx(float(row["power.draw"]), rel=0.15)
    assert gpu.sm_clock == pytest.approx(int(row["clocks.sm"]), rel=0.15)
    assert gpu.memory_clock == int(row["clocks.mem"])
    assert gpu.temperature == pytest.approx(int(row["temperature.gpu"]), abs=5)
    assert (gpu.used_bytes or 0) / MIB == pytest.approx(int(row["memory.used"]), abs=64)
    assert set(gpu.clock_reasons or ()) <= set(CLOCK_REASONS.values())
    if gpu.activity is None:
        pytest.skip(gpu.why_no_activity)
    assert (gpu.activity.sm or 0.0) > 0.8
    assert (gpu.activity.tensor or 0.0) > 0.4
    assert (gpu.activity.engine or 0.0) > 0.9


@needs_smi
def test_the_commands_say_so(ridge: Callable[..., tuple[int, str, str]]) -> None:
    name = torch.cuda.get_device_name()
    report = json.loads(ridge("doctor", "--json")[1])
    assert report["gpus"][0]["name"] == name
    assert {row["name"] for row in report["rows"] if row["topic"] == "gpu 0"} >= {
        "clocks",
        "ECC",
        "PCIe",
        "NUMA",
    }
    assert name in ridge("top", "--once", "--interval", "0.2")[1]
    metrics = ridge("top", "--prometheus", "--interval", "0.2")[1]
    used = [line for line in metrics.splitlines() if line.startswith("DCGM_FI_DEV_FB_USED{")]
    (row, *_) = ask_smi("memory.used")
    assert float(used[0].split()[-1]) == pytest.approx(int(row["memory.used"]), abs=64)


def test_blocks_on_a_processor_are_those_that_the_driver_counts(engine: ridgeline.Engine) -> None:
    made = compile_steps(engine)
    assert made
    for compiled in made.values():
        blocks = ctypes.c_int()
        code = cuda_driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(
            ctypes.byref(blocks),
            _function(compiled),
            32 * compiled.num_warps,
            ctypes.c_size_t(compiled.shared),
        )
        assert code == 0
        assert occupancy(compiled).blocks == blocks.value, compiled
