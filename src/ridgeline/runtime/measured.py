"""What a way of measuring finds of one instance, before it is joined with the plan to a trace."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.base.timing import Timing
from ridgeline.plan.trace import HostTime, How, KernelTime


@dataclass(frozen=True)
class CallTimes:
    """One of the instance's calls: samples of each round, and where it lies in the run."""

    timing: Timing
    start_us: float
    gap_us: float | None = None
    overlap_us: float | None = None
    eager_us: float | None = None
    kernels: tuple[KernelTime, ...] = ()


@dataclass(frozen=True)
class Measured:
    """All calls of one instance and the whole run, from the same rounds."""

    how: How
    total: Timing
    calls: tuple[CallTimes, ...]  # as `Instance.calls`
    host: HostTime
    timer_us: float = 0.0
    notes: tuple[str, ...] = ()
