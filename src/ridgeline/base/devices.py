"""The figures of a GPU that models of kernels count with. Plain numbers; no GPU is asked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from ridgeline.base.ceilings import REACHABLE_BYTES as COPY_SHARE
from ridgeline.base.ceilings import REACHABLE_FLOPS, Ceilings
from ridgeline.base.target_files import ceilings_of_arch

REGISTERS = 65_536  # of one processor
# what kernels reach of the maker's figures: less than a plain copy or a square product do
REACHABLE_BYTES, REACHABLE_PLAIN_FLOPS = 0.80, 0.67
LANES, MHZ = 128, 1500.0  # of one processor; a usual clock
LEAST_SHARED = 49_152  # every GPU allows a block this much


@dataclass(frozen=True)
class Device:
    """One GPU: times in µs, rates per µs."""

    sms: int
    shared_bytes: int  # a block may have
    flops: float  # of 16-bit tensor cores, reachable
    plain_flops: float  # of plain cores in fp32
    bytes: float  # from memory
    l2_bytes: float
    has_warpgroups: bool  # tiles of 64 rows and more run on the fast path


def device_with(ceilings: Ceilings) -> Device:
    """What models of kernels need of a machine."""
    memory = REACHABLE_BYTES / COPY_SHARE * ceilings.memory_bytes_per_us
    return Device(
        sms=ceilings.sms or 1,
        shared_bytes=ceilings.shared_bytes or LEAST_SHARED,
        flops=ceilings.flops_per_us("float16"),
        plain_flops=REACHABLE_PLAIN_FLOPS / REACHABLE_FLOPS * _plain_flops(ceilings),
        bytes=memory,
        l2_bytes=ceilings.l2_bytes_per_us,
        has_warpgroups=ceilings.has_warpgroups,
    )


def _plain_flops(ceilings: Ceilings) -> float:
    """As stated or measured; else what all lanes could do at the stated clock."""
    known = ceilings.flops_per_us("float32")
    if not math.isnan(known):
        return known
    return REACHABLE_FLOPS * 2 * LANES * (ceilings.sms or 1) * (ceilings.clock_mhz or MHZ)


@cache
def device_of(arch: str) -> Device:
    """The GPU that stands for an architecture, or for the nearest that is known."""
    return device_with(ceilings_of_arch(arch))
