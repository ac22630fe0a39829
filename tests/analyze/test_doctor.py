"""`ridge doctor` on a made-up machine: all is fine, and each fault that is planted is flagged alone."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fake_machine import CACHE, FILES, GIB, make_machine, read_machine
from fake_nvml import H200, FakeNvml
from ridgeline.analyze.doctor import DoctorReport, examine
from ridgeline.analyze.doctor_host import parse_list
from ridgeline.analyze.doctor_versions import Versions, fits
from ridgeline.base.nvml import Nvml, NvmlError, open_nvml

Ridge = Callable[..., tuple[int, str, str]]
PACKAGES: dict[str, str | None] = {"torch": "2.13.0", "onnx": "1.23.2", "triton": "3.7.0"}
VERSIONS = Versions(
    ridgeline="0.1.0", python="3.12.3", packages=PACKAGES, torch_cuda="12.8", compiler="g++ 13",
    requirements={"torch": ">=2.11,<2.14"},
)  # fmt: skip


def diagnose(
    root: Path,
    *,
    gpu: dict[str, Any] | None = None,
    settings: dict[str, str] | None = None,
    versions: Versions = VERSIONS,
    **reading: Any,
) -> DoctorReport:
    library = FakeNvml({**H200, **(gpu or {})})
    host = read_machine(root, **reading)
    return examine(host, versions, settings or {}, open_gpus=lambda: Nvml(library))


def flagged(report: DoctorReport) -> list[tuple[str, str, str]]:
    return [(row.topic, row.name, row.verdict) for row in report.rows if row.verdict != "fine"]


def test_a_quiet_server_is_fine(tmp_path: Path) -> None:
    report = diagnose(make_machine(tmp_path))
    assert flagged(report) == []
    assert report.worst == "fine"
    assert {row.topic for row in report.rows} == {
        "versions", "gpu 0", "gpu", "cpu", "settings", "memory", "disk"
    }  # fmt: skip


CPU0 = "sys/devices/system/cpu/cpu0"
HOST_FAULTS = [
    ({f"{CPU0}/cpufreq/scaling_governor": "powersave\n"}, ("cpu", "governor", "distorts")),
    ({"sys/devices/system/cpu/intel_pstate/no_turbo": "0\n"}, ("cpu", "turbo", "note")),
    (
        {
            f"{CPU0}/topology/thread_siblings_list": "0-1\n",
            "sys/devices/system/cpu/cpu1/topology/thread_siblings_list": "0-1\n",
        },
        ("cpu", "threads per core", "note"),
    ),
    ({"sys/fs/cgroup/user.slice/cpu.max": "150000 100000\n"}, ("cpu", "quota", "distorts")),
    ({"proc/loadavg": "1.90 1.0 0.5 3/300 1\n"}, ("cpu", "load", "distorts")),
    ({"proc/cpuinfo": "model name : Old CPU\nflags : fpu avx\n"}, ("cpu", "processor", "note")),
    (
        {"proc/meminfo": FILES["proc/meminfo"].replace("120000000", "9000000")},
        ("memory", "memory", "distorts"),
    ),
    (
        {"proc/meminfo": FILES["proc/meminfo"].replace("SwapFree: 8", "SwapFree: 7")},
        ("memory", "swap", "note"),
    ),
    (
        {"sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n"},
        ("memory", "huge pages", "note"),
    ),
    ({"sys/devices/pci0/nvme0n1/queue/rotational": "1\n"}, ("disk", "cache folder", "note")),
    ({"proc/self/status": "Cpus_allowed_list: 2-3\n"}, ("gpu 0", "NUMA", "distorts")),
    ({"proc/self/status": "Cpus_allowed_list: 0-3\n"}, ("gpu 0", "NUMA", "note")),
    (
        {"proc/77/comm": "nvidia-cuda-mps\n", "proc/77/cmdline": "nvidia-cuda-mps-server\0"},
        ("gpu", "MPS", "distorts"),
    ),
    (
        {"proc/77/comm": "nvidia-cuda-mps\n", "proc/77/cmdline": "nvidia-cuda-mps-control\0-d\0"},
        ("gpu", "MPS", "note"),
    ),
    ({f"{CPU0}/cpufreq/scaling_governor": None}, None),  # the other CPU of this process still tells
]


@pytest.mark.parametrize(("changes", "expected"), HOST_FAULTS)
def test_each_fault_of_the_host_is_flagged_alone(
    tmp_path: Path, changes: dict[str, str | None], expected: tuple[str, str, str] | None
) -> None:
    report = diagnose(make_machine(tmp_path, changes))
    assert flagged(report) == ([expected] if expected else [])
    assert all(row.reason and row.fix for row in report.rows if row.verdict == "distorts")


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        ({"room": {"": 100 << 20}}, ("disk", "cache folder", "problem")),
        ({"room": {"": 2 * GIB}}, ("disk", "cache folder", "note")),
        ({"room": {"/dev/shm": 60 << 20}}, ("memory", "/dev/shm", "note")),
        ({"cache": Path("/net/home/.cache")}, ("disk", "cache folder", "note")),
    ],
)
def test_each_fault_of_a_folder_is_flagged_alone(
    tmp_path: Path, reading: dict[str, Any], expected: tuple[str, str, str]
) -> None:
    assert flagged(diagnose(make_machine(tmp_path), **reading)) == [expected]


GPU_FAULTS = [
    ({"nvmlDeviceGetCurrentClocksEventReasons": 0x0}, ("clocks", "note")),
    ({"nvmlDeviceGetApplicationsClock 1": 1200}, ("clocks", "distorts")),
    ({"nvmlDeviceGetCurrentClocksEventReasons": 0x6}, ("throttling", "distorts")),
    ({"nvmlDeviceGetCurrentClocksEventReasons": 0x42}, ("throttling", "distorts")),
    ({"nvmlDeviceGetCurrentClocksEventReasons": 0x22}, ("throttling", "distorts")),
    ({"nvmlDeviceGetCurrentClocksEventReasons": 0x82}, ("throttling", "distorts")),
    ({"nvmlDeviceGetPowerManagementLimit": 500_000}, ("power", "distorts")),
    ({"nvmlDeviceGetTemperature 0": 86}, ("temperature", "distorts")),
    ({"nvmlDeviceGetMemoryInfo_v2": {"total": 100 * GIB, "used": 95 * GIB}}, ("memory", "problem")),
    ({"nvmlDeviceGetEccMode": (0, 0)}, ("ECC", "note")),
    ({"nvmlDeviceGetTotalEccErrors 0 0": 3}, ("ECC", "note")),
    ({"nvmlDeviceGetTotalEccErrors 1 0": 1}, ("ECC", "problem")),
    ({"nvmlDeviceGetRemappedRows": (0, 1, 1, 0)}, ("ECC", "note")),
    ({"nvmlDeviceGetRemappedRows": (0, 1, 0, 1)}, ("ECC", "problem")),
    ({"nvmlDeviceGetPersistenceMode": 0}, ("persistence", "distorts")),
    ({"nvmlDeviceGetCurrPcieLinkWidth": 8}, ("PCIe", "distorts")),
    ({"nvmlDeviceGetCurrPcieLinkGeneration": 3}, ("PCIe", "distorts")),
    (
        {
            "nvmlDeviceGetCurrPcieLinkGeneration": 1,
            "nvmlDeviceGetUtilizationRates": {"gpu": 0, "memory": 0},
        },
        ("PCIe", "note"),
    ),
    ({"nvmlDeviceGetComputeMode": 2}, ("compute mode", "problem")),
    ({"nvmlDeviceGetComputeMode": 3}, ("compute mode", "note")),
    ({"nvmlDeviceGetMigMode": (1, 1)}, ("MIG", "distorts")),
    ({"processes": [(99, GIB)]}, ("other processes", "distorts")),
]


@pytest.mark.parametrize(("changes", "expected"), GPU_FAULTS)
def test_each_fault_of_the_gpu_is_flagged_alone(
    tmp_path: Path, changes: dict[str, Any], expected: tuple[str, str]
) -> None:
    report = diagnose(make_machine(tmp_path), gpu=changes)
    assert flagged(report) == [("gpu 0", *expected)]
    (row,) = [row for row in report.rows if row.verdict != "fine"]
    assert row.reason
    assert row.fix


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"OMP_NUM_THREADS": "64"}, ("settings", "threads", "distorts")),
        ({"OMP_NUM_THREADS": "1"}, ("settings", "threads", "note")),
        ({"OMP_NUM_THREADS": "2"}, None),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, ("settings", "CUDA_LAUNCH_BLOCKING", "distorts")),
        ({"CUDA_LAUNCH_BLOCKING": "0"}, None),
        ({"TRITON_INTERPRET": "1"}, ("settings", "TRITON_INTERPRET", "distorts")),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ("gpu", "visible", "note")),
    ],
)
def test_each_setting_is_flagged_alone(
    tmp_path: Path, settings: dict[str, str], expected: tuple[str, str, str] | None
) -> None:
    report = diagnose(make_machine(tmp_path), settings=settings)
    assert flagged(report) == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"packages": {**PACKAGES, "torch": None}}, ("torch", "problem")),
        ({"packages": {**PACKAGES, "torch": "2.9.1"}}, ("torch", "note")),
        ({"packages": {**PACKAGES, "triton": None}}, ("triton", "distorts")),
        ({"compiler": None}, ("C++ compiler", "distorts")),
        ({"torch_cuda": None}, ("CUDA", "problem")),
        ({"torch_cuda": "14.0"}, ("CUDA", "problem")),
    ],
)
def test_each_version_that_does_not_fit_is_flagged_alone(
    tmp_path: Path, changes: dict[str, Any], expected: tuple[str, str]
) -> None:
    versions = Versions(**{**vars(VERSIONS), **changes})
    assert flagged(diagnose(make_machine(tmp_path), versions=versions)) == [("versions", *expected)]


def test_no_driver_is_a_note_unless_a_gpu_is_on_the_bus(tmp_path: Path) -> None:
    def missing() -> Nvml:
        return open_nvml("libnot-there.so")

    root = make_machine(tmp_path)
    report = examine(read_machine(root), VERSIONS, {}, open_gpus=missing)
    assert flagged(report) == [("gpu", "GPU", "problem")]
    (root / "sys/bus/pci/devices/0000:18:00.0/vendor").write_text("0x1002\n")
    report = examine(read_machine(root), VERSIONS, {}, open_gpus=missing)
    assert flagged(report) == [("gpu", "GPU", "note")]
    assert report.gpus == ()


@pytest.mark.parametrize(("code", "words"), [(9, "not loaded"), (18, "different versions")])
def test_a_driver_that_does_not_answer_is_a_problem(tmp_path: Path, code: int, words: str) -> None:
    library = FakeNvml(copy.deepcopy(H200), fails=code)
    report = examine(read_machine(make_machine(tmp_path)), VERSIONS, {}, open_gpus=lambda: Nvml(library))
    (row,) = [row for row in report.rows if row.verdict == "problem"]
    assert words in row.reason


def test_a_container_that_shows_nothing_gets_rows_that_say_so(tmp_path: Path) -> None:
    host = read_machine(tmp_path, room={"/": 0})
    report = examine(host, VERSIONS, {}, open_gpus=lambda: Nvml(FakeNvml()))
    unknown = {row.name for row in report.rows if row.value == "not known"}
    assert unknown >= {"governor", "turbo", "threads per core", "load", "memory", "swap", "huge pages"}
    assert all(row.verdict == "note" for row in report.rows if row.name in unknown)


def test_the_quota_is_the_least_of_all_groups_above(tmp_path: Path) -> None:
    changes: dict[str, str | None] = {
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/cpu.max": "50000 100000\n",
        "sys/fs/cgroup/a/b/cpu.max": "400000 100000\n",
        "sys/fs/cgroup/a/b/cpu.stat": "nr_throttled 17\n",
    }
    host = read_machine(make_machine(tmp_path, changes))
    assert host.quota_cpus == 0.5
    assert host.throttled_periods == 17
    old = make_machine(tmp_path / "old", {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "300000\n"})
    (old / "sys/fs/cgroup/cpu/cpu.cfs_period_us").write_text("100000\n")
    assert read_machine(old).quota_cpus == 3.0


def test_small_readers(tmp_path: Path) -> None:
    assert parse_list("0-2,8") == (0, 1, 2, 8)
    assert parse_list("") == ()
    assert fits("2.11.0+cpu", ">=2.11,<2.14")
    assert not fits("2.14.0", ">=2.11,<2.14")
    assert not fits("2.10.9", ">=2.11")
    host = read_machine(make_machine(tmp_path))
    assert (host.cache.path, host.cache.filesystem, host.cache.device) == (str(CACHE), "ext4", "nvme")
    assert host.shm.device == "memory"
    assert host.gpu_nodes == {"0000:18:00.0": 0}


def test_the_command_on_this_machine(ridge: Ridge, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Nvml:
        raise NvmlError("there is no NVIDIA driver here")

    monkeypatch.setattr("ridgeline.base.nvml.open_nvml", missing)
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.delenv("TRITON_INTERPRET")
    code, stdout, stderr = ridge("doctor", "--json")
    report = json.loads(stdout)
    assert code == (1 if report["worst"] == "problem" else 0), stderr
    assert report["schema"] == "ridgeline/doctor/1"
    assert {row["verdict"] for row in report["rows"]} <= {"fine", "note", "distorts", "problem"}
    if code == 0:
        assert ridge("doctor", "--strict")[0] == 3
    shown = ridge("doctor")[1]
    assert "every launch waits for the one before" in shown
    assert "unset CUDA_LAUNCH_BLOCKING" in shown
    assert "--target cuda:sm_90" in shown
