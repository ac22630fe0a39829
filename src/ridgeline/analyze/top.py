"""`ridge top`: what every GPU does at the moment, sampled through NVML."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import c_ulonglong
from dataclasses import dataclass

from ridgeline.analyze.gpu_facts import (
    GPU_SENSOR,
    MEMORY_CLOCK,
    MEMORY_TEMPERATURE,
    SM_CLOCK,
    GpuProcess,
    read_bus_id,
    read_clock_reasons,
    read_processes,
    watts,
)
from ridgeline.base import nvml_gpm
from ridgeline.base.nvml import Nvml, NvmlDevice, Utilization
from ridgeline.base.nvml_gpm import Gpm
from ridgeline.errors import DeviceError

TX, RX = 0, 1
KIB, MIB = 2**10, 2**20
METRICS = (
    nvml_gpm.GRAPHICS, nvml_gpm.SM, nvml_gpm.OCCUPANCY, nvml_gpm.TENSOR, nvml_gpm.DRAM, nvml_gpm.FP64,
    nvml_gpm.FP32, nvml_gpm.FP16, nvml_gpm.PCIE_TX, nvml_gpm.PCIE_RX,
)  # fmt: skip


@dataclass(frozen=True)
class Activity:
    """Shares of the time since the sample before, 0 to 1, of NVML's GPM; null is what it does not give."""

    engine: float | None  # some kernel or copy ran
    sm: float | None  # of all processors' time, with a warp on them
    occupancy: float | None  # of the warps that processors can hold
    tensor: float | None
    memory: float | None  # of the bandwidth of device memory
    fp64: float | None
    fp32: float | None
    fp16: float | None


@dataclass(frozen=True)
class GpuSample:
    """One GPU at one moment: clocks in MHz, power in W, temperatures in °C, rates per second."""

    index: int
    name: str
    uuid: str
    pci_bus_id: str
    device: str  # such as nvidia0
    utilization: int | None  # percent of the last sample period in which a kernel ran, however small
    memory_utilization: int | None
    activity: Activity | None
    why_no_activity: str
    power: float | None
    power_limit: float | None
    energy_mj: int | None  # since the driver was loaded, in millijoules
    temperature: int | None
    memory_temperature: int | None
    sm_clock: int | None
    memory_clock: int | None
    clock_reasons: tuple[str, ...] | None
    pcie_tx_bytes: float | None  # from the GPU, per second
    pcie_rx_bytes: float | None
    pcie_replays: int | None
    memory_bytes: int | None
    used_bytes: int | None
    free_bytes: int | None
    reserved_bytes: int | None
    processes: tuple[GpuProcess, ...]


@dataclass(frozen=True)
class TopReport:
    """All GPUs at one moment."""

    driver: str
    gpus: tuple[GpuSample, ...]


class GpuSampler:
    """Reads all GPUs again and again; activity covers the time since the reading before."""

    def __init__(self, nvml: Nvml) -> None:
        self.nvml = nvml
        self.devices = nvml.devices()
        if not self.devices:
            raise DeviceError(
                "the driver sees no GPU",
                help="nvidia-smi -L lists those that it sees; `ridge doctor` says what is wrong here",
            )
        self.gpms = [Gpm(device) for device in self.devices]
        for gpm in self.gpms:
            gpm.start()

    def sample(self) -> TopReport:
        pairs = zip(self.devices, self.gpms, strict=True)
        gpus = tuple(_sample(device, gpm) for device, gpm in pairs)
        return TopReport(self.nvml.driver or "", gpus)

    def close(self) -> None:
        for gpm in self.gpms:
            gpm.close()
        self.nvml.close()


def _sample(device: NvmlDevice, gpm: Gpm) -> GpuSample:
    number = device.number
    found = gpm.read(METRICS)
    memory = device.memory()
    used = device.structure("nvmlDeviceGetUtilizationRates", Utilization())
    minor = number("nvmlDeviceGetMinorNumber")
    return GpuSample(
        index=device.index,
        name=device.text("nvmlDeviceGetName") or "unknown GPU",
        uuid=device.text("nvmlDeviceGetUUID") or "",
        pci_bus_id=read_bus_id(device),
        device=f"nvidia{device.index if minor is None else minor}",
        utilization=used.gpu if used else None,
        memory_utilization=used.memory if used else None,
        activity=_activity(found),
        why_no_activity=gpm.why_not,
        power=watts(number("nvmlDeviceGetPowerUsage")),
        power_limit=watts(number("nvmlDeviceGetPowerManagementLimit")),
        energy_mj=number("nvmlDeviceGetTotalEnergyConsumption", kind=c_ulonglong),
        temperature=number("nvmlDeviceGetTemperature", GPU_SENSOR),
        memory_temperature=device.field(MEMORY_TEMPERATURE),
        sm_clock=number("nvmlDeviceGetClockInfo", SM_CLOCK),
        memory_clock=number("nvmlDeviceGetClockInfo", MEMORY_CLOCK),
        clock_reasons=read_clock_reasons(device),
        pcie_tx_bytes=_pcie(device, found.get(nvml_gpm.PCIE_TX), TX),
        pcie_rx_bytes=_pcie(device, found.get(nvml_gpm.PCIE_RX), RX),
        pcie_replays=number("nvmlDeviceGetPcieReplayCounter"),
        memory_bytes=memory.total if memory else None,
        used_bytes=memory.used if memory else None,
        free_bytes=memory.free if memory else None,
        reserved_bytes=memory.reserved if memory else None,
        processes=read_processes(device),
    )


def _activity(found: Mapping[int, float]) -> Activity | None:
    """The library gives percents."""
    if not found:
        return None

    def share(metric: int) -> float | None:
        return found[metric] / 100 if metric in found else None

    return Activity(
        engine=share(nvml_gpm.GRAPHICS),
        sm=share(nvml_gpm.SM),
        occupancy=share(nvml_gpm.OCCUPANCY),
        tensor=share(nvml_gpm.TENSOR),
        memory=share(nvml_gpm.DRAM),
        fp64=share(nvml_gpm.FP64),
        fp32=share(nvml_gpm.FP32),
        fp16=share(nvml_gpm.FP16),
    )


def _pcie(device: NvmlDevice, mib: float | None, direction: int) -> float | None:
    """GPM's figure covers the whole time between samples; the older counter only its last 20 ms."""
    if mib is not None:
        return mib * MIB
    kib = device.number("nvmlDeviceGetPcieThroughput", direction)
    return None if kib is None else kib * KIB
