"""How many blocks of a kernel one processor holds, by CUDA's formula, and the resource that limits them."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.base.architectures import REGISTERS, architecture_of
from ridgeline.kernels.triton.compiler import Compiled

REGISTER_UNIT = 8  # of a thread: a warp's registers are allocated in units of 256
SHARED_UNIT = 128  # bytes
PARTITIONS = 4  # of a processor: each has a quarter of the registers, and a warp lies in one


@dataclass(frozen=True)
class Occupancy:
    """Blocks on one processor, the share of its warps that they are, and every limit by its name."""

    blocks: int
    share: float
    limited_by: str
    limits: dict[str, int]  # resource: blocks that fit


def occupancy(made: Compiled) -> Occupancy:
    # the file may state anything about its kernels
    registers = -(-max(made.registers, 1) // REGISTER_UNIT) * REGISTER_UNIT
    limit = architecture_of(made.arch)
    warps, own_shared = max(made.num_warps, 1), max(made.shared, 0) + limit.reserved_bytes
    warps_of_partition = REGISTERS // PARTITIONS // (registers * 32)
    limits = {
        "registers": warps_of_partition * PARTITIONS // warps,
        "shared memory": limit.processor_shared_bytes // max(SHARED_UNIT, _in_units(own_shared)),
        "warps": limit.warps // warps,
        "blocks": limit.blocks,
    }
    least = min(limits, key=lambda name: limits[name])
    return Occupancy(limits[least], min(1.0, limits[least] * warps / limit.warps), least, limits)


def _in_units(nbytes: int) -> int:
    """As shared memory is given out."""
    return -(-nbytes // SHARED_UNIT) * SHARED_UNIT
