"""The GPU's clocks while it is measured: read in a thread of their own, every quarter of a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread

import torch

from ridgeline.analyze.doctor_gpu import HARMLESS
from ridgeline.analyze.gpu_facts import IDLE, SETTING, SM_CLOCK, read_clock_reasons
from ridgeline.base.nvml import Nvml, NvmlDevice, NvmlError

INTERVAL_S = 0.25
MOVED = 0.02  # clocks that differ by more than this within a run have moved


@dataclass
class Clocks:
    """What was seen; empty where NVML does not tell, or `why_not` says why nothing was."""

    sm_mhz: list[int] = field(default_factory=list)
    reasons: list[tuple[str, ...]] = field(default_factory=list)  # why clocks are not higher
    index: int = 0  # NVML's
    max_mhz: int | None = None
    why_not: str = ""


@contextmanager
def watched_clocks(open_gpus: Callable[[], Nvml], interval_s: float = INTERVAL_S) -> Iterator[Clocks]:
    """Inside, the clocks of PyTorch's current GPU are read. A figure is never worth a failed benchmark."""
    seen, stop = Clocks(), Event()
    with ExitStack() as stack:
        try:
            nvml = stack.enter_context(closing(open_gpus()))
            device = _current(nvml.devices())
            seen.index, seen.max_mhz = device.index, device.number("nvmlDeviceGetMaxClockInfo", SM_CLOCK)
        except NvmlError as error:
            seen.why_not = error.what
            yield seen
            return
        thread = Thread(target=_watch, args=(device, seen, stop, interval_s), daemon=True)
        thread.start()
        try:
            yield seen
        finally:
            stop.set()
            thread.join()


def clock_warnings(seen: Clocks) -> Iterator[str]:
    """Clocks that were lowered, that moved, or that may move."""
    if seen.why_not:
        yield f"clocks were not watched: {seen.why_not}"
        return
    # between queries the GPU may be idle for a moment
    busy = [reasons for reasons in seen.reasons if IDLE not in reasons]
    harmful = list(dict.fromkeys(r for reasons in busy for r in reasons if r not in HARMLESS))
    if harmful:
        yield (
            f"throttled: {', '.join(harmful)} held the GPU's clocks down while it was measured; "
            "ridge doctor says more"
        )
    elif busy and not any(SETTING in reasons for reasons in busy):
        lowest, highest = min(seen.sm_mhz, default=0), max(seen.sm_mhz, default=0)
        moved = f", and moved from {lowest} to {highest} MHz" if lowest < highest * (1 - MOVED) else ""
        lock = f"sudo nvidia-smi -i {seen.index} -lgc {seen.max_mhz or 'MHZ'}"
        yield f"clocks are not locked{moved}: figures of another run may differ; {lock} locks them"


def _watch(device: NvmlDevice, seen: Clocks, stop: Event, interval_s: float) -> None:
    # the first look waits: at the start clocks are those of an idle GPU
    while not stop.wait(interval_s):
        try:
            clock, reasons = device.number("nvmlDeviceGetClockInfo", SM_CLOCK), read_clock_reasons(device)
        except NvmlError as error:
            seen.why_not = error.what
            return
        if clock is not None:
            seen.sm_mhz.append(clock)
        if reasons is not None:
            seen.reasons.append(reasons)


def _current(devices: Sequence[NvmlDevice]) -> NvmlDevice:
    """The only one, or the one with the UUID that PyTorch names."""
    if len(devices) == 1:
        return devices[0]
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    uuid = str(getattr(properties, "uuid", ""))
    matching = [each for each in devices if uuid and (each.text("nvmlDeviceGetUUID") or "").endswith(uuid)]
    if len(matching) != 1:
        raise NvmlError("NVML does not say which of its GPUs is PyTorch's")
    return matching[0]
