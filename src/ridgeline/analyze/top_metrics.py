"""GPU samples as metrics with the names, units and labels of NVIDIA's dcgm-exporter and its dashboards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from ridgeline.analyze.top import Activity, GpuSample, TopReport
from ridgeline.base.exposition import Family, Labels

MIB = 2**20


@dataclass(frozen=True)
class Metric:
    """A name of DCGM, and where its value comes from; None where this GPU does not give it."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    value: Callable[[GpuSample], float | None]


def _mib(pick: Callable[[GpuSample], int | None]) -> Callable[[GpuSample], float | None]:
    def value(gpu: GpuSample) -> float | None:
        nbytes = pick(gpu)
        return None if nbytes is None else nbytes // MIB

    return value


def _share(pick: Callable[[Activity], float | None]) -> Callable[[GpuSample], float | None]:
    return lambda gpu: None if gpu.activity is None else pick(gpu.activity)


def _of_gpm(pick: Callable[[GpuSample], float | None]) -> Callable[[GpuSample], float | None]:
    """Without GPM, NVML's figure is of the last 20 ms alone and goes by another name."""
    return lambda gpu: None if gpu.activity is None else pick(gpu)


# DCGM_FI_PROF_ names are ratios from 0 to 1, PCIe in bytes per second; memory is in MiB, energy in mJ
METRICS = (
    Metric("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz).", lambda g: g.sm_clock),
    Metric("DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock frequency (in MHz).", lambda g: g.memory_clock),
    Metric("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature (in C).", lambda g: g.memory_temperature),
    Metric("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C).", lambda g: g.temperature),
    Metric("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W).", lambda g: g.power),
    Metric("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Total energy consumption since boot (in mJ).",
           lambda g: g.energy_mj),
    Metric("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "Total number of PCIe retries.",
           lambda g: g.pcie_replays),
    Metric("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).", lambda g: g.utilization),
    Metric("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Memory utilization (in %).",
           lambda g: g.memory_utilization),
    Metric("DCGM_FI_DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB).", _mib(lambda g: g.free_bytes)),
    Metric("DCGM_FI_DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB).", _mib(lambda g: g.used_bytes)),
    Metric("DCGM_FI_DEV_FB_RESERVED", "gauge", "Framebuffer memory reserved (in MiB).",
           _mib(lambda g: g.reserved_bytes)),
    Metric("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gauge", "Ratio of time the graphics engine is active.",
           _share(lambda a: a.engine)),
    Metric("DCGM_FI_PROF_SM_ACTIVE", "gauge", "The ratio of cycles an SM has at least 1 warp assigned.",
           _share(lambda a: a.sm)),
    Metric("DCGM_FI_PROF_SM_OCCUPANCY", "gauge", "The ratio of number of warps resident on an SM.",
           _share(lambda a: a.occupancy)),
    Metric("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", "Ratio of cycles the tensor (HMMA) pipe is active.",
           _share(lambda a: a.tensor)),
    Metric("DCGM_FI_PROF_DRAM_ACTIVE", "gauge",
           "Ratio of cycles the device memory interface is active sending or receiving data.",
           _share(lambda a: a.memory)),
    Metric("DCGM_FI_PROF_PIPE_FP64_ACTIVE", "gauge", "Ratio of cycles the fp64 pipes are active.",
           _share(lambda a: a.fp64)),
    Metric("DCGM_FI_PROF_PIPE_FP32_ACTIVE", "gauge", "Ratio of cycles the fp32 pipes are active.",
           _share(lambda a: a.fp32)),
    Metric("DCGM_FI_PROF_PIPE_FP16_ACTIVE", "gauge", "Ratio of cycles the fp16 pipes are active.",
           _share(lambda a: a.fp16)),
    Metric("DCGM_FI_PROF_PCIE_TX_BYTES", "gauge",
           "The rate of data transmitted over the PCIe bus in bytes per second.",
           _of_gpm(lambda g: g.pcie_tx_bytes)),
    Metric("DCGM_FI_PROF_PCIE_RX_BYTES", "gauge",
           "The rate of data received over the PCIe bus in bytes per second.",
           _of_gpm(lambda g: g.pcie_rx_bytes)),
)  # fmt: skip


def gpu_families(report: TopReport, *, hostname: str) -> Iterator[Family]:
    """What `ridge top --prometheus` prints, for `ridgeline.base.exposition`; a server may add its own."""
    for metric in METRICS:
        pairs = [(_labels(gpu, report.driver, hostname), metric.value(gpu)) for gpu in report.gpus]
        samples = tuple((labels, value) for labels, value in pairs if value is not None)
        yield Family(metric.name, metric.kind, metric.help, samples)


def _labels(gpu: GpuSample, driver: str, hostname: str) -> Labels:
    return {
        "gpu": str(gpu.index),
        "UUID": gpu.uuid,
        "pci_bus_id": gpu.pci_bus_id.upper().rjust(16, "0"),
        "device": gpu.device,
        "modelName": gpu.name,
        "hostname": hostname,
        "DCGM_FI_DRIVER_VERSION": driver,
    }
