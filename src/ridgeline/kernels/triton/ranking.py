"""Which cuts of a product are worth a measurement, best guess first, by a small model of a GPU.

A block loads its operands from L2, multiplies them, and ends with its epilogue; blocks run in waves over the
SMs. Rates, clocks and sizes are the device's; what a step or a launch costs besides are rounded figures of an
H200. They only order the candidates, which are then measured.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product as combinations
from typing import TypeVar

from ridgeline.base.architectures import REGISTERS, THREAD_REGISTERS
from ridgeline.base.devices import FITTED_MHZ, Device, device_of
from ridgeline.base.spec import TF32
from ridgeline.kernels.triton.products import Cut, Product, Tile, Window
from ridgeline.kernels.triton.quant_products import CodedWeight
from ridgeline.kernels.triton.text import power_of_two

MAX_CONFIGS = 8
# at most this many of the chosen have the same tile shape, or agree in whether they split the sum
SAME_SHAPE, SAME_KIND = 2, 6
DIRECT_CONFIGS = 3  # of a convolution in groups: a narrow product waits for L2, to which each tap goes again
MAX_SPLIT = 16
MOST_SUMS = 128  # of a thread
MOST_BLOCKS = 16  # with scales of their own in one step of a product with a packed weight
# with more row tiles the weight is in L2 after the first of them, and prefetching it again only costs
PREFETCH_ROW_TILES = 4
SM_BYTES = 75e3 / FITTED_MHZ  # that one SM can load from L2 per cycle
L1_BYTES = 200e3 / FITTED_MHZ  # the same from L1
STEP_US = 0.04  # the barriers of one step
IN_FLIGHT_BYTES = 40e3  # about so much per SM hides the latency of memory
DIRECT_BYTES = 192  # that a thread loads to registers in one step
LOAD_US = 0.7  # latency of a load from L2 or memory to shared memory
L1_LOAD_US = 0.2  # the same where most lines are in L1
ASYNC_BYTES = 4  # that an asynchronous copy moves at the least
FIXED_US = 1.2  # a block's start, first load and epilogue
JOIN_US = 1.3  # a part is written to memory, counted and read back
ITEM_WARP_ISSUE = 0.15  # share of a processor's cycles in which one warp issues on items of x, at most
# the epilogue of codes: instructions per result, and the share of cycles that a warp of an SM issues one
CODE_INSTRUCTIONS, WARP_ISSUE, MOST_ISSUE = 14, 0.045, 0.7
ALONE_US = 0.3  # the next kernel cannot start beside a block that takes most of the shared memory
WIDE_BYTES = 16  # of one load
DECODE_AND_ADD = 3.2  # instructions for one number of a packed weight, without tensor cores
# by the bytes of an item: sums in a tile, and depths of a step; float32 products run on plain cores, which
# hold their operands in registers, unless they may round to TF32
LARGEST_TILES = {1: (128 * 256, (32, 64, 128, 256)), 2: (128 * 256, (32, 64, 128)), 4: (64 * 64, (16, 32))}
TF32_TILES = (128 * 256, (16, 32, 64))
MOST_GATHERED = 32  # single bytes that a thread loads in a step: addresses of more would spill
OWN_REGISTERS = 64  # of a thread, beside its share of the sums

TiledProblem = Product | Window
AnyCut = TypeVar("AnyCut", bound=Cut)


def shared_bytes(tile: Tile, problem: TiledProblem, device: Device) -> int:
    """Of the buffers of a block: a stage each, but one less where operands are multiplied from registers."""
    buffers = tile.stages if device.has_warpgroups else max(1, tile.stages - 1)
    return buffers * _step_bytes(tile, problem)


def _step_bytes(tile: Tile, problem: TiledProblem) -> int:
    return (problem.loaded_tiles(tile) * tile.bm + tile.bn) * tile.bk * problem.item_bytes


@lru_cache(maxsize=4096)
def rank_gemm(problem: TiledProblem, arch: str, most_sums: int = MOST_SUMS) -> tuple[Tile, ...]:
    """The best few cuts of a product or convolution that differ enough to be worth timing."""
    device = device_of(arch)
    tiles = fitting_tiles(problem, device, most_sums)

    def best(tiles: Sequence[Tile], most: int) -> tuple[Tile, ...]:
        ranked = sorted(tiles, key=lambda tile: tile_us(problem, tile, device))
        return unlike(ranked, lambda tile: (tile.bm, tile.bn), most)

    if not isinstance(problem, Window) or problem.batch == 1 or math.prod(problem.kernel) == 1:
        return best(tiles, MAX_CONFIGS)
    direct = [
        replace(tile, stages=1)
        for tile in tiles
        if tile.stages == 2
        and (tile.bm + tile.bn) * tile.bk * problem.item_bytes <= DIRECT_BYTES * 32 * tile.warps
    ]
    return *best(tiles, MAX_CONFIGS - DIRECT_CONFIGS), *best(direct, DIRECT_CONFIGS)


def fitting_tiles(problem: TiledProblem, device: Device, most_sums: int) -> list[Tile]:
    """Every cut that suits the sizes of the problem and of the device."""
    return [tile for tile in _tiles(problem, device) if _fits(tile, problem, device, most_sums)]


def rank_gemv(problem: Product, arch: str) -> tuple[Tile, ...]:
    """Cuts for a few rows: enough blocks to keep every SM reading."""
    device = device_of(arch)
    rows = power_of_two(problem.rows)
    wide = WIDE_BYTES // problem.item_bytes
    found = []
    for bn, warps, split in combinations((1, 2, 4, 8, 16), (2, 4, 8), (1, 2, 4, 8)):
        bk = 32 * warps * wide
        if rows * bn * bk > 32 * warps * 64 or (bk * split > problem.depth and (split, warps) != (1, 2)):
            continue
        if bn > problem.columns or (rows * bn < 2 and problem.columns > 8 * device.sms):
            continue
        found.append(Tile(rows, bn, bk, split, warps, 1, prefetch=True))

    def cost(tile: Tile) -> float:
        blocks = -(-problem.columns // tile.bn) * tile.split
        in_flight = min(blocks / device.sms, 16 // tile.warps * 2) * tile.bn * tile.bk * problem.item_bytes
        rate = device.bytes * min(1.0, in_flight / IN_FLIGHT_BYTES, blocks / device.sms)
        return problem.columns * problem.depth * problem.item_bytes / rate + JOIN_US * (tile.split > 1)

    return unlike(sorted(found, key=cost), lambda tile: (tile.bn, tile.warps))


def rank_coded(problem: CodedWeight, arch: str) -> tuple[Tile, ...]:
    """Cuts of a product with a packed weight: enough blocks to keep every SM reading it."""
    device = device_of(arch)
    rows = min(64, max(16, power_of_two(problem.rows)))
    found = []
    for bm, bn, bk, split, stages in combinations(
        {rows, 8} if problem.rows <= 8 else {rows}, (32, 64, 128), (128, 256, 512), (1, 2, 4, 8), (3, 4, 6)
    ):
        steps = math.ceil(problem.depth / (bk * split))
        # blocks of a step are written out one by one, and many take long to compile
        is_long = bool(problem.scales) and bk > MOST_BLOCKS * problem.block and bk > problem.step
        if is_long or bk % problem.step or (steps < 2 and (split, bk) != (1, max(128, problem.step))):
            continue
        if bn > 2 * problem.columns and bn > 32:
            continue
        warps = 2 if bn == 32 else 8 if bn == 128 and bm == 64 else 4
        tile = Tile(bm, bn, bk, split, warps, stages, prefetch=problem.rows <= bm)
        if stages * _coded_step_bytes(problem, tile) <= device.shared_bytes // 2:
            found.append(tile)
    found += _one_row_tiles(problem) if problem.rows == 1 else []
    ranked = sorted(found, key=lambda tile: coded_us(problem, tile, device))
    return unlike(ranked, lambda tile: (tile.bm, tile.bn))


def _one_row_tiles(problem: CodedWeight) -> list[Tile]:
    """Cuts in which every thread reads the weight in pieces of 16 bytes, all threads the same rows."""
    made: list[Tile] = []
    if not problem.takes_one_row:
        return made
    for bn, warps, split in combinations((2, 4, 8), (1, 2, 4, 8), (1, 2, 4)):
        bk = 32 * warps * WIDE_BYTES * problem.planes // (1 if problem.planes == 1 else 2)
        if bk % problem.step or bn > problem.columns:
            continue
        if bk * split < 2 * problem.depth or (warps, split) == (1, 1):
            made.append(Tile(1, bn, bk, split, warps, 1, prefetch=True))
    return made


def _coded_step_bytes(problem: CodedWeight, tile: Tile) -> int:
    word_bytes = 1 if problem.planes == 1 else 2
    return tile.bk * (tile.bn * word_bytes // problem.planes + tile.bm * problem.item_bytes)


def coded_us(problem: CodedWeight, tile: Tile, device: Device) -> float:
    """Predicted time of one launch, from the bytes of the weight and the instructions that decode it."""
    if tile.bm == 1:
        return _one_row_us(problem, tile, device)
    blocks = math.prod(problem.grid(tile))
    shared = tile.stages * _coded_step_bytes(problem, tile) + 1024
    side_by_side = min(
        device.shared_bytes // shared, REGISTERS // (96 * 32 * tile.warps), device.warps // tile.warps
    )
    busy = min(blocks, device.sms * side_by_side)
    in_flight = busy / device.sms * (tile.stages - 1) * _coded_step_bytes(problem, tile)
    rate = device.bytes * min(1.0, in_flight / IN_FLIGHT_BYTES, blocks / device.sms)
    numbers = problem.columns * problem.depth * -(-problem.rows // tile.bm)
    waves = math.ceil(blocks / (device.sms * side_by_side)) * device.sms * side_by_side / blocks
    decode_us = 2.0 * waves * numbers / (128 * device.sms * device.cycles_per_us)
    multiply_us = 2 * numbers * tile.bm / (0.3 * device.flops)
    moved = problem.touched_bytes[1] + problem.rows * (problem.depth + problem.columns) * problem.item_bytes
    # x is read again by every column tile, from L2
    again = problem.rows * problem.depth * problem.item_bytes * -(-problem.columns // tile.bn)
    steps = math.ceil(problem.depth / (tile.bk * tile.split))
    return (
        FIXED_US + max(moved / rate, decode_us, multiply_us, again / device.l2_bytes) + steps * STEP_US
        + JOIN_US * (tile.split > 1)
    )  # fmt: skip


def _one_row_us(problem: CodedWeight, tile: Tile, device: Device) -> float:
    """The same without tensor cores: the words that blocks side by side hold are in flight."""
    blocks = math.prod(problem.grid(tile))
    by_registers = REGISTERS // (OWN_REGISTERS * 32 * tile.warps)
    side_by_side = min(by_registers, device.warps // tile.warps, device.blocks)
    held = tile.bn * tile.bk * problem.touched_bytes[1] / (problem.columns * problem.depth)
    in_flight = min(blocks / device.sms, side_by_side) * held
    rate = device.bytes * min(1.0, in_flight / IN_FLIGHT_BYTES, blocks / device.sms)
    decode_us = DECODE_AND_ADD * problem.columns * problem.depth / (128 * device.sms * device.cycles_per_us)
    steps = math.ceil(problem.depth / (tile.bk * tile.split))
    whole = FIXED_US + max(problem.touched_bytes[1] / rate, decode_us) + (steps - 1) * LOAD_US
    return whole + JOIN_US * (tile.split > 1)


def tile_us(problem: TiledProblem, tile: Tile, device: Device) -> float:
    """Predicted time of one launch."""
    return max(blocks_us(problem, tile, device), _moved(problem) * problem.item_bytes / device.bytes)


def blocks_us(problem: TiledProblem, tile: Tile, device: Device) -> float:
    """Of one launch whose operands come as fast as they are asked for."""
    item = problem.item_bytes
    blocks = math.prod(problem.grid(tile))
    side_by_side = _blocks_per_sm(tile, problem, device)
    waves = math.ceil(blocks / (device.sms * side_by_side))
    sharing = min(side_by_side, math.ceil(blocks / device.sms))
    steps = math.ceil(problem.depth / (tile.bk * tile.split))
    step_bytes = _step_bytes(tile, problem)
    step_flops = 2 * tile.bm * tile.bn * tile.bk
    multiply_us = sharing * step_flops / (_rate(tile, problem, device) / device.sms)
    sm_bytes = SM_BYTES * device.cycles_per_us
    load_us = step_bytes * max(sharing / sm_bytes, min(blocks, device.sms * side_by_side) / device.l2_bytes)
    # with two buffers the multiplication waits for its load; extra buffers still help a little
    patience = 1.0 if steps == 1 else 1.25 if tile.stages == 2 else 1 + 0.05 / tile.stages
    if tile.stages == 1:  # through registers, and so through L1, where neighbouring taps find their lines
        load_us, patience = sharing * step_bytes / (L1_BYTES * device.cycles_per_us), 1.0
        waiting_us = L1_LOAD_US + (load_us + multiply_us) / sharing
    else:
        waiting_us = LOAD_US / (tile.stages - 1)
    if problem.access_bytes < ASYNC_BYTES:
        # rows that start between such pieces are loaded through registers: a block waits, then multiplies
        waiting_us = multiply_us / sharing + max(load_us / sharing, LOAD_US)
    step_us = patience * max(multiply_us, load_us, waiting_us)
    block_us = FIXED_US + steps * (STEP_US + step_us)
    if tile.split > 1:
        block_us += JOIN_US + tile.split * tile.bm * tile.bn * 4 / sm_bytes
    if 2 * (shared_bytes(tile, problem, device) + 1024) > device.shared_bytes:
        block_us += ALONE_US
    if item == 1:
        block_us += _code_epilogue_us(tile, sharing, device)
    return waves * block_us


def items_us(problem: TiledProblem, tile: Tile, instructions: float, device: Device) -> float:
    """Of so many instructions on every item of x, which each program of its rows computes anew."""
    blocks = math.prod(problem.grid(tile))
    sharing = max(1, math.ceil(blocks / device.sms))
    warps = min(sharing, _blocks_per_sm(tile, problem, device)) * tile.warps
    # few warps do not keep a processor issuing
    issued = 128 * device.cycles_per_us * min(1.0, ITEM_WARP_ISSUE * warps)
    return sharing * tile.bm * (problem.depth / tile.split) * instructions / issued


def _moved(problem: TiledProblem) -> int:
    """Items that a launch moves. Windows overlap: an item is read more often than it comes from memory."""
    read = min(problem.touched[0], problem.batch * problem.rows * problem.depth)
    return read + problem.batch * problem.columns * (problem.rows + problem.depth)


def _code_epilogue_us(tile: Tile, sharing: int, device: Device) -> float:
    """Of the blocks that share an SM: few warps do not keep it busy."""
    issued = min(MOST_ISSUE, WARP_ISSUE * sharing * tile.warps) * 128 * device.cycles_per_us
    return sharing * tile.bm * tile.bn * CODE_INSTRUCTIONS / issued


def _tiles(problem: TiledProblem, device: Device) -> Iterator[Tile]:
    """Every cut that suits the sizes of the problem."""
    largest, depths = TF32_TILES if problem.precision == TF32 else LARGEST_TILES[problem.item_bytes]
    for bm, bn, bk in combinations((16, 32, 64, 128, 256), (16, 32, 64, 128, 256), depths):
        if bm * bn > largest:
            continue
        if not (_suits(bm, problem.rows) and _suits(bn, problem.columns)) or bk > max(32, 2 * problem.depth):
            continue
        prefetch = problem.has_weight and -(-problem.rows // bm) <= PREFETCH_ROW_TILES
        splits = [1, *(s for s in range(2, MAX_SPLIT + 1) if _is_worth(s, problem, (bm, bn, bk), device))]
        for split, stages, warps in combinations(splits, (2, 3, 4, 5), _warps(bm, bn)):
            if stages - 1 <= math.ceil(problem.depth / (bk * split)):
                yield Tile(bm, bn, bk, split, warps, stages, prefetch)


def _warps(bm: int, bn: int) -> tuple[int, ...]:
    return (8,) if bm * bn > 128 * 128 else (8, 4) if bm * bn == 128 * 128 else (4,)


def _suits(block: int, size: int) -> bool:
    """Whether a block is at most the size, rounded up to a power of two."""
    return block <= max(16, power_of_two(size))


def _is_worth(split: int, problem: TiledProblem, shape: tuple[int, int, int], device: Device) -> bool:
    """Whether the parts are at least two steps each, of about equal size, and at most two per SM."""
    if isinstance(problem, Window) and problem.members > 1:
        return False
    bm, bn, bk = shape
    steps = math.ceil(problem.depth / bk)
    if (steps % split and split > 4) or steps // split < 2:
        return False
    tiles = -(-problem.rows // bm) * -(-problem.columns // bn) * problem.batch
    return tiles * split <= 2 * device.sms


def _fits(tile: Tile, problem: TiledProblem, device: Device, most_sums: int) -> bool:
    # a step takes channels of one tap if they divide evenly; otherwise it gathers element by element
    if (
        isinstance(problem, Window)
        and problem.channels % tile.bk
        and any(problem.channels % bk == 0 for bk in (32, 64))
    ):
        return False
    is_gathered = isinstance(problem, Window) and (problem.is_planes or problem.channels % tile.bk != 0)
    if problem.item_bytes == 1 and is_gathered and tile.bm * tile.bk > MOST_GATHERED * 32 * tile.warps:
        return False
    # rows of 32 bytes are loaded as slowly as rows of 64
    is_whole = problem.depth % 64 == 0 and (not isinstance(problem, Window) or problem.channels % 64 == 0)
    if problem.item_bytes == 1 and is_whole and not 64 <= tile.bk <= problem.depth:
        return False
    sums = tile.bm * tile.bn // (32 * tile.warps)
    # the addresses of 256 rows need registers too
    most = 64 if isinstance(problem, Window) and tile.bm == 256 else MOST_SUMS
    return sums <= min(most, most_sums) and shared_bytes(tile, problem, device) <= device.shared_bytes


def _blocks_per_sm(tile: Tile, problem: TiledProblem, device: Device) -> int:
    registers = min(THREAD_REGISTERS, OWN_REGISTERS + tile.bm * tile.bn // (32 * tile.warps))
    by_registers = REGISTERS // (registers * 32 * tile.warps)
    by_shared = device.shared_bytes // (shared_bytes(tile, problem, device) + 1024)
    return max(1, min(by_registers, by_shared, device.warps // tile.warps, device.blocks))


def _rate(tile: Tile, problem: TiledProblem, device: Device) -> float:
    """Flops per µs of the whole device with tiles of this size."""
    if not problem.runs_on_tensor_cores:
        return device.plain_flops
    narrow = {16: 0.3, 32: 0.6}.get(min(tile.bn, tile.bm if tile.bm < 64 else tile.bn), 1.0)
    if device.has_warpgroups and tile.bm < 64:
        narrow *= 0.6
    # a small tile reads its operands from shared memory as often as it multiplies them
    return (
        2 / problem.item_bytes * device.flops * narrow * min(1.0, math.sqrt(tile.bm * tile.bn) / 128 + 0.25)
    )


def unlike(
    ranked: Sequence[AnyCut], shape: Callable[[AnyCut], object], most: int = MAX_CONFIGS
) -> tuple[AnyCut, ...]:
    """The best cuts that are not just variations of one another."""
    shapes: Counter[object] = Counter()
    kinds: Counter[bool] = Counter()
    seen: set[object] = set()
    chosen: list[AnyCut] = []
    for cut in ranked:
        split = getattr(cut, "split", 1)
        twin = (shape(cut), split, getattr(cut, "bk", 0), cut.warps)
        if shapes[shape(cut)] >= SAME_SHAPE or kinds[split > 1] >= SAME_KIND or twin in seen:
            continue
        shapes[shape(cut)] += 1
        kinds[split > 1] += 1
        seen.add(twin)
        chosen.append(cut)
        if len(chosen) == most:
            break
    return tuple(chosen)
