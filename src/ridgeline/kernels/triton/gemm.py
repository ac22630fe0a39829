"""Matrix products: tiles on tensor cores, with K split if tiles are few; a few rows on plain cores.

EPILOGUE computes what follows the product, PROLOGUE what comes before it (docs/gpu.md).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ridgeline.kernels.triton.tiles import finish, prefetch_weight, tile_place, used


def gemm_ref(x: Tensor, w: Tensor) -> Tensor:
    """The product alone; `w` is [..., N, K], the layout of the packed weight."""
    return torch.matmul(x, w.mT)


@triton.jit
def gemm(
    x_ptr, w_ptr, parts_ptr, counters_ptr, pointers, rows,
    N: tl.constexpr, K: tl.constexpr,
    X_BATCH: tl.constexpr, X_ROW: tl.constexpr, X_DEPTH: tl.constexpr,
    W_BATCH: tl.constexpr, W_COLUMN: tl.constexpr, W_DEPTH: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
    HALVES: tl.constexpr, PREFETCH: tl.constexpr, PDL: tl.constexpr, PRECISION: tl.constexpr,
    PROLOGUE: tl.constexpr, WAITS: tl.constexpr, EPILOGUE: tl.constexpr,
):  # fmt: skip
    """y = epilogue(x[M, K] · w[K, N]) per batch; grid: tiles, parts of K, batches. With a prologue x is
    prologue(x), of one batch whose rows follow one another."""
    STEPS: tl.constexpr = (K + BK * SPLIT_K - 1) // (BK * SPLIT_K)
    IS_EVEN_K: tl.constexpr = STEPS * BK * SPLIT_K == K
    COLUMN_TILES: tl.constexpr = (N + BN - 1) // BN
    tile, part, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row_tile, column_tile = tile_place(tile, tl.cdiv(rows, BM), COLUMN_TILES, GROUP_M)
    first_row, first_column, first_depth = row_tile * BM, column_tile * BN, part * (STEPS * BK)
    if PREFETCH:
        prefetch_weight(w_ptr, first_column, first_depth, N, K, W_COLUMN, BN, STEPS * BK)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    m = first_row + tl.arange(0, BM)
    n = first_column + tl.arange(0, BN)
    k = first_depth + tl.arange(0, BK)
    # rows and columns past the edge read the last one: cheaper than a mask, and they are not stored
    x_row = tl.minimum(m, rows - 1).to(tl.int64) * X_ROW + batch.to(tl.int64) * X_BATCH
    w_column = tl.minimum(n, N - 1).to(tl.int64) * W_COLUMN + batch.to(tl.int64) * W_BATCH
    x_tile = x_ptr + x_row[:, None] + k[None, :] * X_DEPTH  # [BM, BK]
    w_tile = w_ptr + w_column[None, :] + k[:, None] * W_DEPTH  # [BK, BN]
    acc = tl.zeros((BM, BN), tl.float32)
    for step in range(STEPS):
        inside = k < K - step * BK
        if PROLOGUE is not None:
            x = _before(x_ptr, first_row, m, k + step * BK, rows, pointers, K, IS_EVEN_K, PROLOGUE)
        elif IS_EVEN_K:
            x = tl.load(x_tile)
        else:
            x = tl.load(x_tile, mask=inside[None, :], other=0.0)
        w = tl.load(w_tile) if IS_EVEN_K else tl.load(w_tile, mask=inside[:, None], other=0.0)
        acc = tl.dot(x, w, acc, input_precision=PRECISION)
        if WAITS:
            # wgmma takes a computed x from registers, and by the rules of PTX they may not be written before
            # it is waited for. Triton 3.7 leaves the last part of a step under way when the next one begins
            acc = used(acc)
        x_tile += BK * X_DEPTH
        w_tile += BK * W_DEPTH
    m = m[:, None]
    slot = batch * tl.num_programs(0) + tile
    finish(
        acc, batch * rows + m, m < rows, first_column, pointers, parts_ptr, counters_ptr, slot, part,
        N, SPLIT_K, HALVES, EPILOGUE,
    )  # fmt: skip


@triton.jit
def _before(
    x_ptr, first, m, k, rows, pointers, K: tl.constexpr, IS_EVEN_K: tl.constexpr, PROLOGUE: tl.constexpr
):  # fmt: skip
    """x[m, k] as the product reads it; zeros past K, whatever the prologue makes of what it did not load."""
    BM: tl.constexpr = m.shape[0]
    inside = (k < K)[None, :]
    last = tl.minimum(first + BM, rows) - 1
    x = PROLOGUE(x_ptr, first, last, tl.minimum(m, last)[:, None], k[None, :], inside, pointers)
    x = tl.broadcast_to(x, (BM, k.shape[0]))
    return x if IS_EVEN_K else tl.where(inside, x, 0.0)


@triton.jit
def gemv(
    x_ptr, w_ptr, parts_ptr, counters_ptr, pointers, rows,
    N: tl.constexpr, K: tl.constexpr, X_ROW: tl.constexpr, W_COLUMN: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT_K: tl.constexpr,
    PREFETCH: tl.constexpr, PDL: tl.constexpr, EPILOGUE: tl.constexpr,
):  # fmt: skip
    """y = epilogue(x[M, K] · w[N, K]ᵀ) for M ≤ BM; the weight is read once, one piece ahead of its use."""
    STEPS: tl.constexpr = (K + BK * SPLIT_K - 1) // (BK * SPLIT_K)
    IS_EVEN_K: tl.constexpr = STEPS * BK * SPLIT_K == K
    tile, part = tl.program_id(0), tl.program_id(1)
    m = tl.arange(0, BM)
    n = tile * BN + tl.arange(0, BN)
    first_depth = part * (STEPS * BK)
    k = first_depth + tl.arange(0, BK)
    w_tile = w_ptr + tl.minimum(n, N - 1).to(tl.int64)[:, None] * W_COLUMN + k[None, :]  # [BN, BK]
    # the weight is a constant: its first piece is loaded, and the rest fetched into L2, before the wait
    if IS_EVEN_K:
        w = tl.load(w_tile, eviction_policy="evict_first")
    else:
        w = tl.load(w_tile, mask=(k < K)[None, :], other=0.0, eviction_policy="evict_first")
    if PREFETCH:
        prefetch_weight(w_ptr, tile * BN, first_depth + BK, N, K, W_COLUMN, BN, (STEPS - 1) * BK)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    x_tile = x_ptr + tl.minimum(m, rows - 1)[:, None] * X_ROW + k[None, :]  # [BM, BK]
    acc = tl.zeros((BM, BN, BK), tl.float32)
    for step in range(STEPS):
        w_tile += BK
        is_more = step + 1 < STEPS
        if IS_EVEN_K:
            following = tl.load(w_tile, mask=is_more, other=0.0, eviction_policy="evict_first")
            x = tl.load(x_tile)
        else:
            inside = (k < K - (step + 1) * BK) & is_more
            following = tl.load(w_tile, mask=inside[None, :], other=0.0, eviction_policy="evict_first")
            x = tl.load(x_tile, mask=(k < K - step * BK)[None, :], other=0.0)
        acc += x.to(tl.float32)[:, None, :] * w.to(tl.float32)[None, :, :]
        x_tile += BK
        w = following
    m = m[:, None]
    finish(
        tl.sum(acc, 2), m, m < rows, tile * BN, pointers, parts_ptr, counters_ptr, tile, part,
        N, SPLIT_K, 1, EPILOGUE,
    )  # fmt: skip
