"""What the machine does: processors, memory, this process, GPUs. Read by one thread of its own.

A scrape takes the latest sample and never waits for a driver. What cannot be read is None.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from ridgeline.analyze.top import GpuSampler, TopReport
from ridgeline.base.nvml import Nvml, open_nvml
from ridgeline.errors import DeviceError

PROC = Path("/proc")
KIB = 1024
INTERVAL_S = 1.0
# columns of the first line of /proc/stat; guests are part of user
USER, NICE, SYSTEM, IDLE, IOWAIT, IRQ, SOFTIRQ, STEAL = range(1, 9)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MachineSample:
    cpu_share: float | None = None  # of all processors' time since the sample before, 0 to 1
    memory_bytes: int | None = None
    used_bytes: int | None = None  # what programs could not have
    resident_bytes: int | None = None  # of this process
    open_files: int | None = None  # of this process
    gpus: TopReport | None = None
    gpu_energy_mj: Mapping[str, int] = field(default_factory=dict)  # by UUID, since the first sample


class MachineSampler:
    """Samples from its start until it is closed. `latest` may be read from any thread."""

    def __init__(
        self,
        *,
        open_library: Callable[[], Nvml] = open_nvml,
        proc: Path = PROC,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self.latest = MachineSample()
        self._open, self._proc, self._interval_s = open_library, proc, interval_s
        self._cpu: tuple[int, int] | None = None
        self._energy: dict[str, int] = {}
        self._is_gpu_lost = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ridgeline-machine", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        with ExitStack() as stack:
            gpus = self._gpus(stack)
            while True:
                self.latest = self._sample(gpus)
                if self._ended.wait(self._interval_s):
                    return

    def _gpus(self, stack: ExitStack) -> GpuSampler | None:
        try:
            return stack.enter_context(closing(GpuSampler(self._open())))
        except DeviceError as error:
            _log.debug("no metrics of GPUs: %s", error.what)
            return None

    def _sample(self, gpus: GpuSampler | None) -> MachineSample:
        memory, used = _memory(self._proc)
        report = None if gpus is None else self._report(gpus)
        return MachineSample(
            cpu_share=self._cpu_share(),
            memory_bytes=memory,
            used_bytes=used,
            resident_bytes=_resident(self._proc),
            open_files=_open_files(self._proc),
            gpus=report,
            gpu_energy_mj={} if report is None else self._energy_since(report),
        )

    def _report(self, gpus: GpuSampler) -> TopReport | None:
        """None while the GPU cannot be read: old figures would pass for new ones."""
        try:
            report = gpus.sample()
        except DeviceError as error:
            if not self._is_gpu_lost:
                _log.warning("GPUs cannot be read: %s", error.what)
            self._is_gpu_lost = True
            return None
        self._is_gpu_lost = False
        return report

    def _energy_since(self, report: TopReport) -> dict[str, int]:
        found = {gpu.uuid: gpu.energy_mj for gpu in report.gpus if gpu.energy_mj is not None}
        return {uuid: energy - self._energy.setdefault(uuid, energy) for uuid, energy in found.items()}

    def _cpu_share(self) -> float | None:
        before, self._cpu = self._cpu, _cpu_ticks(self._proc)
        if before is None or self._cpu is None:
            return None
        busy, all_of_it = (new - old for new, old in zip(self._cpu, before, strict=True))
        return min(max(busy / all_of_it, 0.0), 1.0) if all_of_it > 0 else None


def _cpu_ticks(proc: Path) -> tuple[int, int] | None:
    """Busy, and all, of all processors since the machine started."""
    try:
        row = (proc / "stat").read_text().split("\n", 1)[0].split()
        ticks = {column: int(row[column]) for column in range(USER, STEAL + 1)}
    except (OSError, ValueError, IndexError):
        return None
    total = sum(ticks.values())
    return total - ticks[IDLE] - ticks[IOWAIT], total


def _memory(proc: Path) -> tuple[int | None, int | None]:
    try:
        rows = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
        total, available = (int(rows[name].split()[0]) * KIB for name in ("MemTotal", "MemAvailable"))
    except (OSError, ValueError, IndexError, KeyError):
        return None, None
    return total, total - available


def _resident(proc: Path) -> int | None:
    try:
        return int((proc / "self" / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _open_files(proc: Path) -> int | None:
    try:
        return len(os.listdir(proc / "self" / "fd")) - 1  # the listing itself is one
    except OSError:
        return None
