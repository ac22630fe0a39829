"""How many blocks of a kernel one processor holds, by CUDA's formula, and the resource that limits them."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.base.devices import REGISTERS, device_of
from ridgeline.kernels.triton.compiler import Compiled
from ridgeline.kernels.triton.sass import RESERVED_SHARED

REGISTER_UNIT = 8  # of a thread: a warp's registers are allocated in units of 256
SHARED_UNIT = 128  # bytes
PARTITIONS = 4  # of a processor: each has a quarter of the registers, and a warp lies in one
# blocks and warps that one processor holds; others hold 32 and 64
MOST_BLOCKS = {"sm_75": 16, "sm_86": 16, "sm_87": 16, "sm_89": 24, "sm_120": 24}
MOST_WARPS = {"sm_75": 32, "sm_86": 48, "sm_87": 48, "sm_89": 48, "sm_120": 48}


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
    warps, own_shared = max(made.num_warps, 1), max(made.shared, 0) + RESERVED_SHARED
    most_warps = MOST_WARPS.get(made.arch, 64)
    # a block may use all shared memory of a processor except the reserved bytes
    shared = device_of(made.arch).shared_bytes + RESERVED_SHARED
    warps_of_partition = REGISTERS // PARTITIONS // (registers * 32)
    limits = {
        "registers": warps_of_partition * PARTITIONS // warps,
        "shared memory": shared // (-(-own_shared // SHARED_UNIT) * SHARED_UNIT),
        "warps": most_warps // warps,
        "blocks": MOST_BLOCKS.get(made.arch, 32),
    }
    least = min(limits, key=lambda name: limits[name])
    return Occupancy(limits[least], min(1.0, limits[least] * warps / most_warps), least, limits)
