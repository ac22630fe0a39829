"""Depthwise convolutions as kernel descriptions: blocks of positions and channels, and what they should take.

No Triton is imported.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product as combinations
from typing import Any, ClassVar

from torch import Tensor

from ridgeline.base.architectures import REGISTERS
from ridgeline.base.devices import Device, device_of
from ridgeline.kernels.triton.epilogue import Epilogue
from ridgeline.kernels.triton.products import Window
from ridgeline.kernels.triton.ranking import FIXED_US, WIDE_BYTES, unlike
from ridgeline.kernels.triton.source import Kernel

# windows of more taps are walked line by line, unless their lines are longer than this
SMALL_TAPS, MOST_COLUMNS = 9, 16
MOST_TOGETHER = 49  # taps of a window whose lines are all loaded at once
MOST_LOADS = 32  # of one block: all are unrolled, and more would take long to compile
MOST_REGISTERS = 216  # of a thread by estimate: the compiler takes up to 20 more, and 255 are the limit
MOST_ADDITIONS = 256  # of blocks, written out by the kernel that walks lines; more take long to compile
MOST_BLOCK_SHAPES = 6  # of one window that are worth a measurement
LINE_CYCLES = 500  # latency of a line of x from L2, and of its weights


@dataclass(frozen=True)
class Block:
    """How a depthwise convolution is cut: outputs per thread, then positions and channels per program."""

    high: int
    wide: int
    positions: int
    channels: int
    warps: int
    stages: ClassVar[int] = 3  # Triton's default; no loop of the kernel is pipelined

    @property
    def held(self) -> int:
        """Neighbouring channels of a thread."""
        return self.positions * self.channels // (32 * self.warps)


@dataclass(frozen=True)
class Depthwise(Window):
    """A `Window` in which every output channel reads one input channel."""

    scratch_types = ()
    extent_name = "images"

    @property
    def is_large(self) -> bool:
        """Whether the kernel walks the window line by line, and takes the weights in float32."""
        return math.prod(self.kernel) > SMALL_TAPS and self.kernel[1] <= MOST_COLUMNS

    @property
    def operand_types(self) -> tuple[tuple[str, str], ...]:
        x, w = super().operand_types[:2]
        return x, (w[0], "*fp32") if self.is_large else w

    @property
    def extent(self) -> int:
        return self.images

    @property
    def touched(self) -> tuple[int, int]:
        return super().touched[0], math.prod(self.kernel) * self.channels

    @property
    def touched_bytes(self) -> tuple[int, int]:
        x_items, w_items = self.touched
        return x_items * self.item_bytes, w_items * (4 if self.is_large else self.item_bytes)

    def pack(self, weight: Tensor) -> Tensor:
        """[C, 1, KH, KW] as [KH, KW, C]."""
        packed = weight[:, 0].permute(1, 2, 0).contiguous()
        return packed.float() if self.is_large else packed

    def describe(self, block: Any, tail: Epilogue, *, pdl: bool) -> Kernel:
        constants = {
            **self._geometry(), "HIGH": block.high, "WIDE": block.wide, "BP": block.positions,
            "BC": block.channels,
        }  # fmt: skip
        if not self.is_large:
            return self._kernel("depthwise.depthwise", constants, block, tail, pdl=pdl)
        del constants["IS_PADDED"]  # each line and column is tested only where it may lie outside
        constants["TOGETHER"] = self.lines_together(block)
        return self._kernel("depthwise.depthwise_lines", constants, block, tail, pdl=pdl)

    def lines_together(self, block: Block) -> int:
        """Lines of a large window in one turn: all, for blocks so small that latency decides, else one."""
        is_small = block.high * block.wide <= 2 and math.prod(self.kernel) <= MOST_TOGETHER
        return self.kernel[0] if is_small and block.high == 1 else 1

    def grid(self, block: Any) -> tuple[int, int, int]:
        """Blocks of positions, blocks of channels."""
        lines, columns = -(-self.made[0] // block.high), -(-self.made[1] // block.wide)
        blocks = -(-self.images * lines * columns // block.positions)
        return blocks, -(-self.channels // block.channels), 1


def rank_depthwise(window: Depthwise, arch: str) -> tuple[Block, ...]:
    """The best few blocks; each thread holds one wide load of channels."""
    device = device_of(arch)
    if window.is_large:
        return _rank_lines(window, device)
    wide = WIDE_BYTES // window.item_bytes
    found = []
    for (high, across), warps, channels in combinations(
        ((1, 1), (1, 2), (2, 2), (1, 4), (2, 4)), (1, 2, 4), (16, 32, 64, 128)
    ):
        positions = 32 * warps * wide // channels
        if positions < 1 or channels >= 2 * max(window.channels, 16):
            continue
        if high > window.made[0] or across > window.made[1]:
            continue
        if high * across > 1 and math.prod(_reach(window, (high, across))) > MOST_LOADS:
            continue
        found.append(Block(high, across, positions, channels, warps))

    ranked = sorted(found, key=lambda block: block_us(window, block, device))
    return unlike(ranked, lambda block: (block.high, block.wide), most=6)


def _rank_lines(window: Depthwise, device: Device) -> tuple[Block, ...]:
    """The best block of each of the best few shapes, for a window that is walked line by line."""
    # a block of two lines needs lines of x that both of them contain
    highs = (1, 2) if window.stride[0] == window.dilation[0] == 1 < window.kernel[0] else (1,)
    most = WIDE_BYTES // window.item_bytes
    found = []
    for high, wide, held, warps, channels in combinations(
        highs, (1, 2, 4, 7, 8), (most, most // 2, most // 4), (1, 2, 4, 8), (16, 32, 64, 128)
    ):
        positions = 32 * warps * held // channels
        block = Block(high, wide, positions, channels, warps)
        additions = window.kernel[1] * wide * (high + high * (high - 1))
        if positions < 1 or channels >= 2 * max(window.channels, 16) or additions > MOST_ADDITIONS:
            continue
        if _line_registers(window, block) > MOST_REGISTERS:
            continue
        if (high == 1 or 2 * high <= window.made[0]) and (wide == 1 or wide <= window.made[1] + 1):
            found.append(block)
    best: dict[tuple[int, int, int], Block] = {}
    for block in sorted(found, key=lambda block: block_us(window, block, device)):
        best.setdefault((block.high, block.wide, block.held), block)
    return tuple(best.values())[:MOST_BLOCK_SHAPES]


def _line_registers(window: Depthwise, block: Block) -> int:
    """Of a thread: sums, a line of weights for each line of outputs, half a line of x, addresses."""
    x = _reach(window, (block.high, block.wide))[1] * block.held * window.item_bytes // 8
    return block.high * (block.wide + window.kernel[1]) * block.held + x + 30


def _lines_us(window: Depthwise, block: Block, device: Device) -> float:
    """Of a window that is walked line by line; instructions as the compiler makes them for sm_90."""
    lines = window.kernel[0] + block.high - 1
    columns = _reach(window, (block.high, block.wide))[1]
    outputs, held = block.high * block.wide, block.held
    # x: a load, a mask, zeros in two registers at a time, a conversion per number of 16 bits
    x = 1.5 + held * (1.25 if window.item_bytes == 2 else 0.5)
    # the weights of a line of outputs go on to the next
    per_line = columns * x + window.kernel[1] * max(1, held / 4) + 14 + 25 * (block.high - 1)
    instructions = lines * per_line + outputs * (math.prod(window.kernel) * held + 3.5 * held + 12) + 80
    warps = math.prod(window.grid(block)) * block.warps / device.sms
    programs = REGISTERS // (_line_registers(window, block) * 32 * block.warps)
    together = min(device.warps, programs * block.warps)
    # a warp waits for a line of x and of weights, then has most of the issue slots of its quarter of the SM;
    # a load takes a turn per cache line
    turns = lines / window.lines_together(block)
    alone_us = (turns * LINE_CYCLES + 1.3 * instructions) / device.cycles_per_us
    cache_lines = lines * columns * max(1, 32 * held // block.channels)
    issue_us = math.ceil(warps / 4) * max(instructions, 4 * cache_lines) / device.cycles_per_us
    moved = (math.prod(window.size) + math.prod(window.made)) * window.images * window.channels
    memory_us = moved * window.item_bytes / device.bytes
    l2_us = math.prod(window.grid(block)) * _footprint(window, block) * window.item_bytes / device.l2_bytes
    return FIXED_US + max(math.ceil(warps / together) * alone_us, issue_us, memory_us, l2_us) + 0.1 * l2_us


def _footprint(window: Depthwise, block: Block) -> float:
    """Items of x under the windows of one program, which reads them again from L1."""
    along = min(block.positions * block.wide, window.made[1])
    down = block.high * max(1.0, block.positions * block.wide / window.made[1])
    return block.channels * math.prod(_reach(window, (down, along)))


def block_us(window: Depthwise, block: Block, device: Device) -> float:
    """Predicted time of one depthwise launch, from its instructions and its bytes."""
    if window.is_large:
        return _lines_us(window, block, device)
    outputs, loads = block.high * block.wide, math.prod(_reach(window, (block.high, block.wide)))
    # a load with conversion and mask; a multiplication per channel, tap and output; an epilogue per output
    instructions = loads * 16 + outputs * (math.prod(window.kernel) * 8 + 24)
    grid = math.prod(window.grid(block))
    # four warps issue at a time; a load takes a turn per cache line
    lines = loads * 32 * WIDE_BYTES // window.item_bytes // block.channels
    issue_us = (
        math.ceil(grid / device.sms) * block.warps * max(instructions / 4, lines) / device.cycles_per_us
    )
    wait_us = FIXED_US + instructions * 2 / device.cycles_per_us
    moved = (math.prod(window.size) + math.prod(window.made)) * window.images * window.channels
    return max(wait_us, moved * window.item_bytes / device.bytes) + 0.5 * issue_us


def _reach(window: Depthwise, outputs: tuple[float, int]) -> tuple[float, int]:
    """Lines and columns of x under a block of outputs."""
    (down, across), (high, wide) = outputs, window.stride
    (k_high, k_wide), (d_high, d_wide) = window.kernel, window.dilation
    return (down - 1) * high + (k_high - 1) * d_high + 1, (across - 1) * wide + (k_wide - 1) * d_wide + 1
