"""What NVML says about each GPU, for `ridge doctor` to judge. `top.py` has what changes all the time."""

from __future__ import annotations

from ctypes import c_ulonglong
from dataclasses import dataclass

from ridgeline.base.nvml import Nvml, NvmlDevice, NvmlProcess, PciInfo, Utilization

SM_CLOCK, MEMORY_CLOCK = 1, 2
GPU_SENSOR = 0
SHUTDOWN, SLOWDOWN = 0, 1
CORRECTED, UNCORRECTED = 0, 1
SINCE_BOOT, EVER = 0, 1
MEMORY_TEMPERATURE = 82  # a field without a function of its own
COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
# bits of the reasons why clocks are not higher
IDLE, SETTING = "idle", "set by user"
CLOCK_REASONS = {
    0x1: IDLE, 0x2: SETTING, 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost",
    0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown", 0x80: "power brake",
    0x100: "display clocks",
}  # fmt: skip


@dataclass(frozen=True)
class GpuProcess:
    """A process with a context on the GPU."""

    pid: int
    name: str
    memory_bytes: int | None


@dataclass(frozen=True)
class GpuFacts:
    """One GPU: clocks in MHz, power in W, temperatures in °C. What NVML does not offer is null."""

    index: int  # NVML's; CUDA may count in another order
    name: str
    uuid: str
    pci_bus_id: str
    arch: str
    performance_state: int | None
    sm_clock: int | None
    memory_clock: int | None
    max_sm_clock: int | None
    max_memory_clock: int | None
    application_sm_clock: int | None
    default_sm_clock: int | None  # the application clock that the GPU comes with
    clock_reasons: tuple[str, ...] | None  # why clocks are not higher
    power: float | None
    power_limit: float | None
    power_default: float | None
    power_max: float | None
    temperature: int | None
    memory_temperature: int | None
    slowdown_temperature: int | None
    shutdown_temperature: int | None
    ecc: bool | None
    ecc_pending: bool | None  # after the next reset
    corrected_errors: int | None  # since the driver was loaded
    uncorrected_errors: int | None
    uncorrected_errors_ever: int | None
    remapped_rows: int | None
    remap_pending: bool | None
    remap_failed: bool | None
    persistence: bool | None
    pcie_generation: int | None
    pcie_width: int | None
    max_pcie_generation: int | None  # that GPU and slot can do
    max_pcie_width: int | None
    compute_mode: str | None
    mig: bool | None
    memory_bytes: int | None
    used_bytes: int | None
    reserved_bytes: int | None
    utilization: int | None  # percent of the last sample period in which a kernel ran
    processes: tuple[GpuProcess, ...]


def read_gpus(nvml: Nvml) -> tuple[GpuFacts, ...]:
    return tuple(read_gpu(device) for device in nvml.devices())


def read_gpu(device: NvmlDevice) -> GpuFacts:
    """Everything at once; takes a few milliseconds and starts nothing on the GPU."""
    number, text = device.number, device.text
    memory = device.memory()
    remapped = device.numbers("nvmlDeviceGetRemappedRows", 4)
    used = device.structure("nvmlDeviceGetUtilizationRates", Utilization())
    mode = number("nvmlDeviceGetComputeMode")
    ecc = device.numbers("nvmlDeviceGetEccMode", 2)
    mig = device.numbers("nvmlDeviceGetMigMode", 2)
    limits = device.numbers("nvmlDeviceGetPowerManagementLimitConstraints", 2)
    return GpuFacts(
        index=device.index,
        name=text("nvmlDeviceGetName") or "unknown GPU",
        uuid=text("nvmlDeviceGetUUID") or "",
        pci_bus_id=read_bus_id(device),
        arch=_arch(device),
        performance_state=number("nvmlDeviceGetPerformanceState"),
        sm_clock=number("nvmlDeviceGetClockInfo", SM_CLOCK),
        memory_clock=number("nvmlDeviceGetClockInfo", MEMORY_CLOCK),
        max_sm_clock=number("nvmlDeviceGetMaxClockInfo", SM_CLOCK),
        max_memory_clock=number("nvmlDeviceGetMaxClockInfo", MEMORY_CLOCK),
        application_sm_clock=number("nvmlDeviceGetApplicationsClock", SM_CLOCK),
        default_sm_clock=number("nvmlDeviceGetDefaultApplicationsClock", SM_CLOCK),
        clock_reasons=read_clock_reasons(device),
        power=watts(number("nvmlDeviceGetPowerUsage")),
        power_limit=watts(number("nvmlDeviceGetPowerManagementLimit")),
        power_default=watts(number("nvmlDeviceGetPowerManagementDefaultLimit")),
        power_max=watts(limits[1]) if limits else None,
        temperature=number("nvmlDeviceGetTemperature", GPU_SENSOR),
        memory_temperature=device.field(MEMORY_TEMPERATURE),
        slowdown_temperature=number("nvmlDeviceGetTemperatureThreshold", SLOWDOWN),
        shutdown_temperature=number("nvmlDeviceGetTemperatureThreshold", SHUTDOWN),
        ecc=bool(ecc[0]) if ecc else None,
        ecc_pending=bool(ecc[1]) if ecc else None,
        corrected_errors=_errors(device, CORRECTED, SINCE_BOOT),
        uncorrected_errors=_errors(device, UNCORRECTED, SINCE_BOOT),
        uncorrected_errors_ever=_errors(device, UNCORRECTED, EVER),
        remapped_rows=remapped[0] + remapped[1] if remapped else None,
        remap_pending=bool(remapped[2]) if remapped else None,
        remap_failed=bool(remapped[3]) if remapped else None,
        persistence=_flag(number("nvmlDeviceGetPersistenceMode")),
        pcie_generation=number("nvmlDeviceGetCurrPcieLinkGeneration"),
        pcie_width=number("nvmlDeviceGetCurrPcieLinkWidth"),
        max_pcie_generation=number("nvmlDeviceGetMaxPcieLinkGeneration"),
        max_pcie_width=number("nvmlDeviceGetMaxPcieLinkWidth"),
        compute_mode=COMPUTE_MODES.get(mode, str(mode)) if mode is not None else None,
        mig=bool(mig[0]) if mig else None,
        memory_bytes=memory.total if memory else None,
        used_bytes=memory.used if memory else None,
        reserved_bytes=memory.reserved if memory else None,
        utilization=used.gpu if used else None,
        processes=read_processes(device),
    )


def read_processes(device: NvmlDevice) -> tuple[GpuProcess, ...]:
    """In a container the numbers may be those of the host."""

    def named(process: NvmlProcess) -> GpuProcess:
        path = device.nvml.process_name(process.pid)
        return GpuProcess(process.pid, path.rsplit("/", 1)[-1] if path else "", process.memory_bytes)

    return tuple(named(process) for process in device.processes())


def read_bus_id(device: NvmlDevice) -> str:
    """As in /sys/bus/pci/devices: ``0000:18:00.0``. NVML writes eight digits of the domain."""
    info = device.structure("nvmlDeviceGetPciInfo_v3", PciInfo())
    if info is None:
        return ""
    domain, _, rest = info.bus_id.decode(errors="replace").lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def read_clock_reasons(device: NvmlDevice) -> tuple[str, ...] | None:
    bits = device.number("nvmlDeviceGetCurrentClocksEventReasons", kind=c_ulonglong)
    if bits is None:  # its name before driver 535
        bits = device.number("nvmlDeviceGetCurrentClocksThrottleReasons", kind=c_ulonglong)
    if bits is None:
        return None
    return tuple(name for bit, name in CLOCK_REASONS.items() if bits & bit)


def watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _arch(device: NvmlDevice) -> str:
    version = device.numbers("nvmlDeviceGetCudaComputeCapability", 2)
    return f"sm_{version[0]}{version[1]}" if version else ""


def _errors(device: NvmlDevice, kind: int, since: int) -> int | None:
    return device.number("nvmlDeviceGetTotalEccErrors", kind, since, kind=c_ulonglong)
