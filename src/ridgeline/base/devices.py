"""The figures of a GPU that models of kernels count with. Plain numbers; no GPU is asked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from ridgeline.base.architectures import architecture_of
from ridgeline.base.ceilings import REACHABLE_BYTES as COPY_SHARE
from ridgeline.base.ceilings import REACHABLE_FLOPS, Ceilings
from ridgeline.base.target_files import ceilings_of_arch

# what kernels reach of the maker's figures: less than a plain copy or a square product do
REACHABLE_BYTES, REACHABLE_PLAIN_FLOPS = 0.80, 0.67
LANES, MHZ = 128, 1500.0  # of one processor; a usual clock
# the clock that models of kernels were fitted at on an H200, of the highest that its maker states
FITTED_MHZ, STATED_MHZ = 1700, 1980


@dataclass(frozen=True)
class Device:
    """One GPU: times in µs, rates per µs."""

    sms: int
    shared_bytes: int  # a block may have
    warps: int  # of one processor
    blocks: int  # likewise
    cycles_per_us: float
    flops: float  # of 16-bit tensor cores, reachable
    plain_flops: float  # of plain cores in fp32
    bytes: float  # from memory
    l2_bytes: float
    has_warpgroups: bool  # tiles of 64 rows and more run on the fast path

    @property
    def flops_per_cycle(self) -> float:
        """Of the tensor cores of one processor, in 16 bits."""
        return self.flops / (self.sms * self.cycles_per_us)

    @property
    def plain_flops_per_cycle(self) -> float:
        """Of the plain cores of one processor, in fp32."""
        return self.plain_flops / (self.sms * self.cycles_per_us)


def device_with(ceilings: Ceilings) -> Device:
    """What models of kernels need of a machine."""
    limits = architecture_of(ceilings.arch)
    memory = REACHABLE_BYTES / COPY_SHARE * ceilings.memory_bytes_per_us
    return Device(
        sms=ceilings.sms or 1,
        shared_bytes=ceilings.shared_bytes or limits.shared_bytes,
        warps=limits.warps,
        blocks=limits.blocks,
        cycles_per_us=round(FITTED_MHZ * (ceilings.clock_mhz or STATED_MHZ) / STATED_MHZ),
        flops=ceilings.flops_per_us("float16"),
        plain_flops=REACHABLE_PLAIN_FLOPS / REACHABLE_FLOPS * _plain_flops(ceilings),
        bytes=memory,
        l2_bytes=ceilings.l2_bytes_per_us,
        has_warpgroups=limits.has_warpgroups,
    )


def _plain_flops(ceilings: Ceilings) -> float:
    """As stated or measured; else what all lanes could do at the stated clock."""
    known = ceilings.flops_per_us("float32")
    if not math.isnan(known):
        return known
    return REACHABLE_FLOPS * 2 * LANES * (ceilings.sms or 1) * (ceilings.clock_mhz or MHZ)


@cache
def device_of(arch: str) -> Device:
    """The GPU that stands for an architecture."""
    return device_with(ceilings_of_arch(arch))
