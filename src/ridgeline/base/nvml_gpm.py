"""Activity of a GPU's parts between two moments, by NVML's GPM: on Hopper and later, without a daemon."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from ctypes import Structure, byref, c_uint, c_void_p

from ridgeline.base.nvml import GpmMetric, GpmSupport, NvmlDevice, reason

VERSION = 1
# the library gives no figures for a shorter time
SHORTEST_S = 0.1
GRAPHICS, SM, OCCUPANCY, TENSOR, DRAM, FP64, FP32, FP16, PCIE_TX, PCIE_RX = 1, 2, 3, 5, 10, 11, 12, 13, 20, 21


class Gpm:
    """Keeps the sample that was taken last, so that each reading covers the time since the one before."""

    def __init__(self, device: NvmlDevice) -> None:
        self.device = device
        self.why_not = _why_not(device)
        self._last: c_void_p | None = None
        self._taken = 0.0

    def start(self) -> None:
        """Take the first sample."""
        if not self.why_not and self._last is None:
            self._last = self._sample()

    def read(self, metrics: Sequence[int]) -> Mapping[int, float]:
        """The metrics that the library gives, over the time since the last sample; waits if that was now."""
        self.start()
        if self._last is None:
            return {}
        time.sleep(max(0.0, SHORTEST_S - (time.monotonic() - self._taken)))
        first, self._last = self._last, self._sample()
        found = self._difference(first, self._last, metrics) if self._last is not None else {}
        self.device.nvml.call("nvmlGpmSampleFree", first)
        return found

    def close(self) -> None:
        if self._last is not None:
            self.device.nvml.call("nvmlGpmSampleFree", self._last)
            self._last = None

    def _sample(self) -> c_void_p | None:
        made, nvml = c_void_p(), self.device.nvml
        code = nvml.call("nvmlGpmSampleAlloc", byref(made))
        if code == 0:
            code = nvml.call("nvmlGpmSampleGet", self.device.handle, made)
            if code:
                nvml.call("nvmlGpmSampleFree", made)
        if code:
            self.why_not = f"NVML takes no sample: {reason(code)}"
            return None
        self._taken = time.monotonic()
        return made

    def _difference(self, first: c_void_p, last: c_void_p, metrics: Sequence[int]) -> dict[int, float]:
        request = _request_type(len(metrics))()
        request.version, request.count, request.first, request.last = VERSION, len(metrics), first, last
        for place, metric in zip(request.metrics, metrics, strict=True):
            place.metric = metric
        code = self.device.nvml.call("nvmlGpmMetricsGet", byref(request))
        if code:
            self.why_not = f"NVML compares no samples: {reason(code)}"
            return {}
        return {place.metric: place.value for place in request.metrics if place.code == 0}


def _request_type(count: int) -> type[Structure]:
    """The library reads `count` metrics, however many its own header has room for."""
    fields = [("version", c_uint), ("count", c_uint), ("first", c_void_p), ("last", c_void_p)]
    return type("Request", (Structure,), {"_fields_": [*fields, ("metrics", GpmMetric * count)]})


def _why_not(device: NvmlDevice) -> str:
    support = device.structure("nvmlGpmQueryDeviceSupport", GpmSupport(version=VERSION))
    if support is None:
        return "the driver has no GPM"
    return "" if support.is_supported else "GPM is for Hopper and later GPUs"
