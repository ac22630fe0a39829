"""What all GPUs of an architecture share: how much one processor and one block have, and how they multiply.

Rates differ between GPUs of one architecture; they stand in target files. Figures are from NVIDIA's table of
compute capabilities; how many blocks a processor holds is from `cuda_occupancy.h` of CUDA 13.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ridgeline.errors import TargetError

# the instruction that multiplies large tiles: by a warp, by four warps, or into tensor memory
Multiplier: TypeAlias = Literal["mma", "wgmma", "tcgen05"]

REGISTERS = 65_536  # of one processor, and of one block
THREAD_REGISTERS = 255
BLOCK_THREADS = 1024
TENSOR_MEMORY_COLUMNS = 512  # of one processor, where there is tensor memory
KIB = 1024


@dataclass(frozen=True, slots=True)
class Architecture:
    """One row of the table: sizes in bytes."""

    shared_bytes: int  # that one block may have
    processor_shared_bytes: int
    warps: int  # of one processor
    blocks: int  # likewise
    multiplier: Multiplier = "mma"

    @property
    def has_warpgroups(self) -> bool:
        """Tiles of 64 rows and more are multiplied by four warps at least, straight from shared memory."""
        return self.multiplier != "mma"

    @property
    def reserved_bytes(self) -> int:
        """Of shared memory, that the system takes from every block."""
        return self.processor_shared_bytes - self.shared_bytes


ARCHITECTURES = {
    "sm_75": Architecture(64 * KIB, 64 * KIB, warps=32, blocks=16),
    "sm_80": Architecture(163 * KIB, 164 * KIB, warps=64, blocks=32),
    "sm_86": Architecture(99 * KIB, 100 * KIB, warps=48, blocks=16),
    "sm_87": Architecture(163 * KIB, 164 * KIB, warps=48, blocks=16),
    "sm_89": Architecture(99 * KIB, 100 * KIB, warps=48, blocks=24),
    "sm_90": Architecture(227 * KIB, 228 * KIB, warps=64, blocks=32, multiplier="wgmma"),
    "sm_100": Architecture(227 * KIB, 228 * KIB, warps=64, blocks=32, multiplier="tcgen05"),
    "sm_103": Architecture(227 * KIB, 228 * KIB, warps=64, blocks=32, multiplier="tcgen05"),
    "sm_110": Architecture(227 * KIB, 228 * KIB, warps=48, blocks=24, multiplier="tcgen05"),
    "sm_120": Architecture(99 * KIB, 100 * KIB, warps=48, blocks=24),
    "sm_121": Architecture(99 * KIB, 100 * KIB, warps=48, blocks=24),
}
# architectures that no shipped target file is of: predicted as this one is
PREDICTED_AS = {"sm_103": "sm_100", "sm_121": "sm_120"}


def architecture_of(arch: str) -> Architecture:
    """The row of an architecture, or `TargetError` for one that is not in the table."""
    if arch not in ARCHITECTURES:
        raise TargetError(
            f"there are no figures of GPUs of the architecture {arch!r}",
            want=", ".join(ARCHITECTURES),
            help="ridge build MODEL.onnx --target cpu builds for this machine's processor",
        )
    return ARCHITECTURES[arch]
