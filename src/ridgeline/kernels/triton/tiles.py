"""What tiled kernels share: the order of tiles, the prefetch of weights, and the end of a split sum.

Legend: M rows, N columns, K summed over; BM, BN, BK are the sizes of a tile. A program computes one tile of
the result, or one part of its sum if K is split.
"""

from __future__ import annotations

import triton
import triton.language as tl

PREFETCH_LANES = tl.constexpr(256)
CACHE_LINE_BYTES = tl.constexpr(128)


@triton.jit
def tile_place(tile, row_tiles, COLUMN_TILES: tl.constexpr, GROUP_M: tl.constexpr):
    """The row and column of a tile; tiles go down GROUP_M rows before the next column, so they share L2."""
    if GROUP_M == 1:
        return tile // COLUMN_TILES, tile % COLUMN_TILES
    group_size = GROUP_M * COLUMN_TILES
    first = tile // group_size * GROUP_M
    height = tl.minimum(row_tiles - first, GROUP_M)
    inside = tile % group_size
    return first + inside % height, inside // height


@triton.jit
def prefetch_weight(
    w_ptr, first_row, first_column, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STRIDE: tl.constexpr,
    BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Fetches [BLOCK, WIDTH] of a constant matrix [ROWS, COLUMNS] into L2, one address per cache line."""
    LINE: tl.constexpr = CACHE_LINE_BYTES * 8 // w_ptr.dtype.element_ty.primitive_bitwidth
    LINES: tl.constexpr = (WIDTH + LINE - 1) // LINE
    for start in range(0, BLOCK * LINES, PREFETCH_LANES):
        i = start + tl.arange(0, PREFETCH_LANES)
        row = tl.minimum(first_row + i // LINES, ROWS - 1)
        column = tl.minimum(first_column + i % LINES * LINE, COLUMNS - 1)
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [w_ptr + row.to(tl.int64) * STRIDE + column],
            dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip


@triton.jit
def used(acc):
    """The same sums, read: where the sums of a product are read in its step, the step waits for them."""
    return tl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [acc], dtype=tl.float32, is_pure=True, pack=1
    )  # fmt: skip


@triton.jit
def finish(
    acc, m, is_row, first_column, pointers, parts_ptr, counters_ptr, slot, part,
    end, SPLIT_K: tl.constexpr, HALVES: tl.constexpr, EPILOGUE: tl.constexpr,
):  # fmt: skip
    """epilogue(Σ parts): the last program of a tile adds the parts in order and resets the counter.

    Columns from `end` on are not stored. HALVES is 2 if a whole tile and the epilogue's operands do not fit
    in registers together.
    """
    BM: tl.constexpr = acc.shape[0]
    BN: tl.constexpr = acc.shape[1]
    if SPLIT_K == 1:
        if HALVES == 1:
            store_tile(acc, m, is_row, first_column, pointers, end, EPILOGUE)
        else:
            left, right = tl.split(tl.permute(tl.reshape(acc, (BM, 2, BN // 2)), (0, 2, 1)))
            store_tile(left, m, is_row, first_column, pointers, end, EPILOGUE)
            store_tile(right, m, is_row, first_column + BN // 2, pointers, end, EPILOGUE)
    else:
        parts = parts_ptr + slot.to(tl.int64) * (SPLIT_K * BM * BN)
        place = tl.arange(0, BM)[:, None] * BN
        tl.store(parts + part * (BM * BN) + place + tl.arange(0, BN)[None, :], acc)
        # all threads have written their part before one of them counts it
        tl.debug_barrier()
        arrived = tl.atomic_add(counters_ptr + slot, 1, sem="acq_rel")
        if arrived == SPLIT_K - 1:
            tl.store(counters_ptr + slot, 0)
            for half in tl.static_range(HALVES):
                column = half * (BN // HALVES)
                inside = parts + place + column + tl.arange(0, BN // HALVES)[None, :]
                total = tl.load(inside, cache_modifier=".cg")
                for other in tl.static_range(1, SPLIT_K):
                    total += tl.load(inside + other * (BM * BN), cache_modifier=".cg")
                store_tile(total, m, is_row, first_column + column, pointers, end, EPILOGUE)


@triton.jit
def store_tile(acc, m, is_row, first_column, pointers, end, EPILOGUE: tl.constexpr):
    n = (first_column + tl.arange(0, acc.shape[1]))[None, :]
    EPILOGUE(acc.to(tl.float32), m, n, is_row & (n < end), pointers)
