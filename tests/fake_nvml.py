"""A management library made of Python functions, which fill their arguments as NVIDIA's does."""

from __future__ import annotations

import copy
import ctypes
from typing import Any

from ridgeline.base.nvml import FUNCTION_NOT_FOUND, INSUFFICIENT_SIZE, NOT_SUPPORTED

GIB = 2**30
MEMORY_TEMPERATURE = 82
# an H200 at rest, with its clocks locked: function and first arguments, and what it answers
H200: dict[str, Any] = {
    "nvmlDeviceGetName": "NVIDIA H200",
    "nvmlDeviceGetUUID": "GPU-0f1e2d3c",
    "nvmlDeviceGetPciInfo_v3": {"bus_id": b"00000000:18:00.0"},
    "nvmlDeviceGetCudaComputeCapability": (9, 0),
    "nvmlDeviceGetMinorNumber": 0,
    "nvmlDeviceGetPerformanceState": 0,
    "nvmlDeviceGetClockInfo 1": 1980,
    "nvmlDeviceGetClockInfo 2": 3201,
    "nvmlDeviceGetMaxClockInfo 1": 1980,
    "nvmlDeviceGetMaxClockInfo 2": 3201,
    "nvmlDeviceGetApplicationsClock 1": 1980,
    "nvmlDeviceGetDefaultApplicationsClock 1": 1980,
    "nvmlDeviceGetCurrentClocksEventReasons": 0x2,
    "nvmlDeviceGetPowerUsage": 118_400,
    "nvmlDeviceGetPowerManagementLimit": 700_000,
    "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
    "nvmlDeviceGetPowerManagementLimitConstraints": (200_000, 700_000),
    "nvmlDeviceGetTotalEnergyConsumption": 123_456_789_012,
    "nvmlDeviceGetTemperature 0": 34,
    "nvmlDeviceGetTemperatureThreshold 0": 92,
    "nvmlDeviceGetTemperatureThreshold 1": 89,
    f"field {MEMORY_TEMPERATURE}": 45,
    "nvmlDeviceGetEccMode": (1, 1),
    "nvmlDeviceGetTotalEccErrors 0 0": 0,
    "nvmlDeviceGetTotalEccErrors 1 0": 0,
    "nvmlDeviceGetTotalEccErrors 1 1": 0,
    "nvmlDeviceGetRemappedRows": (0, 0, 0, 0),
    "nvmlDeviceGetPersistenceMode": 1,
    "nvmlDeviceGetCurrPcieLinkGeneration": 5,
    "nvmlDeviceGetCurrPcieLinkWidth": 16,
    "nvmlDeviceGetMaxPcieLinkGeneration": 5,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetPcieReplayCounter": 2,
    "nvmlDeviceGetPcieThroughput 0": 1500,
    "nvmlDeviceGetPcieThroughput 1": 2500,
    "nvmlDeviceGetComputeMode": 0,
    "nvmlDeviceGetMigMode": (0, 0),
    "nvmlDeviceGetMemoryInfo_v2": {"total": 140 * GIB, "used": 2 * GIB, "free": 137 * GIB, "reserved": GIB},
    "nvmlDeviceGetUtilizationRates": {"gpu": 37, "memory": 12},
    "nvmlGpmQueryDeviceSupport": {"is_supported": 1},
    "processes": [],
    # of one sample after another: metric and value
    "gpm": {1: 91.0, 2: 84.5, 3: 40.0, 5: 62.25, 10: 71.0, 11: 0.0, 12: 3.5, 13: 1.5, 20: 512.0, 21: 256.0},
}


class FakeNvml:
    """The functions as attributes. `absent` are those that an older driver does not have."""

    def __init__(self, *gpus: dict[str, Any], absent: tuple[str, ...] = (), fails: int = 0) -> None:
        self.gpus, self.absent, self.fails = [copy.deepcopy(gpu) for gpu in gpus], absent, fails
        self.names = {4242: "/usr/bin/python3", 99: "/opt/server/bin/trainer"}
        self.open_samples = 0

    def __getattr__(self, name: str) -> Any:
        if name in self.absent or not name.startswith("nvml"):
            raise AttributeError(name)
        own = type(self).__dict__.get(f"_{name}")
        return own.__get__(self) if own else lambda handle, *rest: self._ask(name, handle, rest)

    def _ask(self, name: str, handle: Any, rest: tuple[Any, ...]) -> int:
        if self.fails:
            return self.fails
        given = [str(each.value) for each in rest if isinstance(each, ctypes.c_uint)]
        if rest and isinstance(rest[0], ctypes.Array):  # a text comes as a buffer and its size
            given = []
        answer = self.gpus[handle.value - 1].get(" ".join([name, *given]))
        if answer is None:
            return NOT_SUPPORTED
        places = [each for each in rest if not isinstance(each, ctypes.c_uint)]
        if isinstance(answer, str):
            places[0].value = answer.encode()
        elif isinstance(answer, dict):
            for field, value in answer.items():
                setattr(places[0]._obj, field, value)
        else:
            numbers = answer if isinstance(answer, tuple) else (answer,)
            for place, value in zip(places, numbers, strict=True):
                place._obj.value = value
        return 0

    def _nvmlInit_v2(self) -> int:
        return self.fails

    def _nvmlShutdown(self) -> int:
        return 0

    def _nvmlSystemGetDriverVersion(self, buffer: Any, size: Any) -> int:
        buffer.value = b"580.95.05"
        return 0

    def _nvmlSystemGetCudaDriverVersion_v2(self, version: Any) -> int:
        version._obj.value = 13000
        return 0

    def _nvmlSystemGetProcessName(self, pid: Any, buffer: Any, size: Any) -> int:
        if pid.value not in self.names:
            return 6
        buffer.value = self.names[pid.value].encode()
        return 0

    def _nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.gpus)
        return 0

    def _nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        handle._obj.value = index.value + 1
        return 0

    def _nvmlDeviceGetFieldValues(self, handle: Any, count: Any, value: Any) -> int:
        answer = self.gpus[handle.value - 1].get(f"field {value._obj.field}")
        value._obj.code = NOT_SUPPORTED if answer is None else 0
        value._obj.value.uint = answer or 0
        return 0

    def _nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, rows: Any) -> int:
        found = self.gpus[handle.value - 1]["processes"]
        room, count._obj.value = count._obj.value, len(found)
        if rows is None or room < len(found):
            return INSUFFICIENT_SIZE if found else 0
        for row, (pid, used) in zip(rows, found, strict=False):
            row.pid, row.used_bytes = pid, used
        return 0

    def _nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle: Any, count: Any, rows: Any) -> int:
        return FUNCTION_NOT_FOUND

    def _nvmlGpmSampleAlloc(self, sample: Any) -> int:
        self.open_samples += 1
        sample._obj.value = self.open_samples
        return 0

    def _nvmlGpmSampleFree(self, sample: Any) -> int:
        self.open_samples -= 1
        return 0

    def _nvmlGpmSampleGet(self, handle: Any, sample: Any) -> int:
        sample.value = handle.value  # which GPU it is of
        return 0

    def _nvmlGpmMetricsGet(self, request: Any) -> int:
        asked = request._obj
        values = self.gpus[asked.first - 1]["gpm"]
        for place in asked.metrics[: asked.count]:
            place.code = 0 if place.metric in values else NOT_SUPPORTED
            place.value = values.get(place.metric, -1.0)
        return 0
