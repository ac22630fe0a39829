"""What is known of each GPU architecture: processors, memory, rates. Plain figures; no GPU is asked."""

from __future__ import annotations

from dataclasses import dataclass

REGISTERS = 65_536  # of one processor


@dataclass(frozen=True)
class Device:
    """One architecture: times in µs, rates per µs."""

    sms: int
    shared_bytes: int  # a block may have
    flops: float  # of 16-bit tensor cores, reachable
    plain_flops: float  # of plain cores in fp32
    bytes: float  # from memory
    l2_bytes: float
    has_warpgroups: bool  # tiles of 64 rows and more run on the fast path


_HOPPER = Device(132, 232_448, 0.80 * 989e6, 45e6, 0.80 * 4.8e6, 5.5e6, True)
DEVICES = {
    "sm_80": Device(108, 166_912, 0.80 * 312e6, 15e6, 0.80 * 2.0e6, 4.0e6, False),
    "sm_86": Device(84, 101_376, 0.80 * 142e6, 25e6, 0.80 * 0.9e6, 2.5e6, False),
    "sm_89": Device(142, 101_376, 0.80 * 362e6, 60e6, 0.80 * 0.95e6, 4.0e6, False),
    "sm_90": _HOPPER,
    # as specified; nothing was measured on these
    "sm_100": Device(148, 232_448, 0.80 * 2250e6, 60e6, 0.80 * 8.0e6, 6.5e6, True),
    "sm_120": Device(170, 101_376, 0.80 * 210e6, 70e6, 0.80 * 1.8e6, 5.0e6, False),
}


def device_of(arch: str) -> Device:
    """An architecture of its own, or the nearest that is known."""
    return DEVICES.get(arch, _HOPPER)
