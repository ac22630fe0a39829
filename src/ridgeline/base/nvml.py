"""NVIDIA's management library through ctypes: needs the driver's `libnvidia-ml.so.1` and no package.

Only calls that read. A value that this GPU or driver does not offer is None; a GPU that is lost is an error.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_char, c_double, c_int, c_int64, c_uint, c_ulonglong, c_void_p
from dataclasses import dataclass
from typing import Any, TypeVar

from ridgeline.errors import DeviceError

LIBRARY = "libnvidia-ml.so.1"
TEXT_BYTES = 96
NOT_SUPPORTED, FUNCTION_NOT_FOUND, INSUFFICIENT_SIZE, NO_DATA = 3, 13, 7, 21
DRIVER_NOT_LOADED, VERSION_MISMATCH = 9, 18
# as the library names them; others are given as numbers
ERRORS = {
    1: "not initialised", 2: "invalid argument", NOT_SUPPORTED: "not supported", 4: "no permission",
    6: "not found", INSUFFICIENT_SIZE: "buffer too small", 8: "power cables are not attached",
    DRIVER_NOT_LOADED: "the driver is not loaded", 10: "timeout", FUNCTION_NOT_FOUND: "no such function",
    15: "the GPU has fallen off the bus", 16: "the GPU needs a reset",
    VERSION_MISMATCH: "driver and library are of different versions", 999: "unknown error",
}  # fmt: skip
# after these nothing that is read about the GPU means anything
FATAL = frozenset({1, 8, DRIVER_NOT_LOADED, 15, 16, VERSION_MISMATCH})
UNKNOWN_BYTES = 2**64 - 1
HELP = {
    DRIVER_NOT_LOADED: "sudo modprobe nvidia, or install the driver",
    VERSION_MISMATCH: "reboot, so that the loaded kernel module is the one that was installed",
    15: "reboot; if it happens again, the GPU or its slot is faulty",
    16: "sudo nvidia-smi --gpu-reset, with nothing running on it",
}

Made = TypeVar("Made", bound=ctypes.Structure)


class NvmlError(DeviceError):
    """NVIDIA's management library is missing, or cannot be used."""


class Memory(ctypes.Structure):
    _fields_ = (
        ("version", c_uint), ("total", c_ulonglong), ("reserved", c_ulonglong), ("free", c_ulonglong),
        ("used", c_ulonglong),
    )  # fmt: skip


class PlainMemory(ctypes.Structure):
    """Of drivers before 510: `used` holds what the driver reserves as well."""

    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class Utilization(ctypes.Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class PciInfo(ctypes.Structure):
    _fields_ = (
        ("legacy_bus_id", c_char * 16), ("domain", c_uint), ("bus", c_uint), ("device", c_uint),
        ("device_id", c_uint), ("subsystem_id", c_uint), ("bus_id", c_char * 32),
    )  # fmt: skip


class ProcessInfo(ctypes.Structure):
    _fields_ = (
        ("pid", c_uint), ("used_bytes", c_ulonglong), ("gpu_instance", c_uint), ("compute_instance", c_uint),
    )  # fmt: skip


class _Value(ctypes.Union):
    _fields_ = (("number", c_double), ("uint", c_uint), ("ulonglong", c_ulonglong), ("int", c_int))


class FieldValue(ctypes.Structure):
    _fields_ = (
        ("field", c_uint), ("scope", c_uint), ("timestamp", c_int64), ("latency_us", c_int64),
        ("kind", c_uint), ("code", c_uint), ("value", _Value),
    )  # fmt: skip


class GpmSupport(ctypes.Structure):
    _fields_ = (("version", c_uint), ("is_supported", c_uint))


class GpmMetric(ctypes.Structure):
    _fields_ = (
        ("metric", c_uint), ("code", c_uint), ("value", c_double), ("short_name", c_void_p),
        ("long_name", c_void_p), ("unit", c_void_p),
    )  # fmt: skip


@dataclass(frozen=True)
class NvmlProcess:
    """A process that has a context on the GPU; memory is None where the driver does not tell."""

    pid: int
    memory_bytes: int | None


def open_nvml(name: str = LIBRARY) -> Nvml:
    """The library of the installed driver, initialised."""
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        raise NvmlError(
            "there is no NVIDIA driver here: its management library was not found",
            got=str(error),
            want=name,
            help="install the driver; in a container, start it with `docker run --gpus all`",
        ) from error
    return Nvml(library)


class Nvml:
    """The library, initialised. `library` holds its functions; tests hand in one of their own."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.require(self.call("nvmlInit_v2"), "starting NVIDIA's management library")

    def close(self) -> None:
        self.call("nvmlShutdown")

    def call(self, function: str, *arguments: Any) -> int:
        """The library's own status code."""
        try:
            entry = getattr(self.library, function)
        except AttributeError:  # an older driver
            return FUNCTION_NOT_FOUND
        return int(entry(*arguments))

    def require(self, code: int, what: str) -> None:
        if code:
            raise NvmlError(
                f"{what} failed", got=f"NVML error {code}: {reason(code)}", help=HELP.get(code, "")
            )

    def text(self, function: str, *arguments: Any) -> str | None:
        buffer = ctypes.create_string_buffer(TEXT_BYTES)
        code = self.call(function, *arguments, buffer, c_uint(TEXT_BYTES))
        return None if code else buffer.value.decode(errors="replace")

    @property
    def driver(self) -> str | None:
        return self.text("nvmlSystemGetDriverVersion")

    @property
    def cuda(self) -> str | None:
        """The newest CUDA version that the driver runs, such as 13.0."""
        version = c_int()
        if self.call("nvmlSystemGetCudaDriverVersion_v2", byref(version)):
            return None
        return f"{version.value // 1000}.{version.value % 1000 // 10}"

    def process_name(self, pid: int) -> str | None:
        return self.text("nvmlSystemGetProcessName", c_uint(pid))

    def devices(self) -> list[NvmlDevice]:
        count = c_uint()
        self.require(self.call("nvmlDeviceGetCount_v2", byref(count)), "counting the GPUs")
        made = []
        for index in range(count.value):
            handle = c_void_p()
            code = self.call("nvmlDeviceGetHandleByIndex_v2", c_uint(index), byref(handle))
            self.require(code, f"opening GPU {index}")
            made.append(NvmlDevice(self, index, handle))
        return made


class NvmlDevice:
    """One GPU, in the library's own order, which need not be CUDA's: the UUID tells them apart."""

    def __init__(self, nvml: Nvml, index: int, handle: Any) -> None:
        self.nvml, self.index, self.handle = nvml, index, handle

    def read(self, function: str, *arguments: Any) -> bool:
        """Whether the arguments were filled; an error if the GPU itself is gone."""
        code = self.nvml.call(function, self.handle, *arguments)
        if code in FATAL:
            self.nvml.require(code, f"reading GPU {self.index}")
        return code == 0

    def number(self, function: str, *arguments: int, kind: Any = c_uint) -> int | None:
        value = kind()
        given = [c_uint(argument) for argument in arguments]
        return int(value.value) if self.read(function, *given, byref(value)) else None

    def numbers(self, function: str, count: int) -> tuple[int, ...] | None:
        """Several results of one call."""
        values = [c_uint() for _ in range(count)]
        return tuple(int(v.value) for v in values) if self.read(function, *map(byref, values)) else None

    def text(self, function: str) -> str | None:
        return self.nvml.text(function, self.handle)

    def structure(self, function: str, made: Made) -> Made | None:
        return made if self.read(function, byref(made)) else None

    def field(self, field: int) -> int | None:
        """One of the fields that have no function of their own."""
        value = FieldValue(field=field)
        if not self.read("nvmlDeviceGetFieldValues", c_int(1), byref(value)) or value.code:
            return None
        return int(value.value.uint)

    def memory(self) -> Memory | None:
        found = self.structure("nvmlDeviceGetMemoryInfo_v2", versioned(Memory(), 2))
        if found is not None:
            return found
        plain = self.structure("nvmlDeviceGetMemoryInfo", PlainMemory())
        if plain is None:
            return None
        return Memory(total=plain.total, reserved=0, free=plain.free, used=plain.used)

    def processes(self) -> tuple[NvmlProcess, ...]:
        """Those with a compute context, then those that draw."""
        found: dict[int, NvmlProcess] = {}
        for kind in ("Compute", "Graphics"):
            for row in self._processes(f"nvmlDeviceGet{kind}RunningProcesses_v3"):
                used = None if row.used_bytes == UNKNOWN_BYTES else int(row.used_bytes)
                found.setdefault(row.pid, NvmlProcess(row.pid, used))
        return tuple(found.values())

    def _processes(self, function: str) -> Sequence[ProcessInfo]:
        count = c_uint()
        for _ in range(4):  # processes may start between asking how many there are and listing them
            code = self.nvml.call(function, self.handle, byref(count), None)
            if code != INSUFFICIENT_SIZE:
                return ()
            count.value = count.value * 2 + 5
            rows = (ProcessInfo * count.value)()
            if self.nvml.call(function, self.handle, byref(count), rows) == 0:
                return rows[: count.value]
        return ()


def versioned(made: Made, version: int) -> Made:
    """The structure with its version and size, by which the library knows its layout."""
    made.version = ctypes.sizeof(made) | version << 24
    return made


def reason(code: int) -> str:
    return ERRORS.get(code, f"code {code}")
