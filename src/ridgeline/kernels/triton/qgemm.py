"""Matrix products of codes on tensor cores: int8 with int32 sums, float8 with float32 sums.

Scales are applied to the sum by EPILOGUE, which also computes what follows the product (docs/gpu.md).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ridgeline.kernels.triton.tiles import finish, prefetch_weight, tile_place


def qgemm_ref(x: Tensor, w: Tensor, zero: int = 0) -> Tensor:
    """Σ (x - zero) · w of codes, exactly; `w` is [N, K], the layout of the packed weight."""
    return torch.matmul(x.double() - zero, w.double().mT)


@triton.jit
def qgemm(
    x_ptr, w_ptr, zero_ptr, sums_ptr, parts_ptr, counters_ptr, pointers, rows,
    N: tl.constexpr, K: tl.constexpr, X_ROW: tl.constexpr, W_COLUMN: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
    HALVES: tl.constexpr, IS_PROMOTED: tl.constexpr, HAS_ZERO: tl.constexpr, IS_UNSIGNED: tl.constexpr,
    PREFETCH: tl.constexpr, PDL: tl.constexpr, EPILOGUE: tl.constexpr,
):  # fmt: skip
    """y = epilogue(Σ_k (x[m, k] - zero) · w[n, k]); grid: tiles, parts of K.

    sums[n] = Σ_k w[n, k], so that a zero point costs one multiplication per column. Tensor cores multiply
    signed bytes, so unsigned ones are moved down by 128, and their zero point with them.
    IS_PROMOTED: on Hopper the tensor cores keep 14 bits of a float8 sum; each step's sum is added in float32.
    """
    STEPS: tl.constexpr = (K + BK * SPLIT_K - 1) // (BK * SPLIT_K)
    IS_EVEN_K: tl.constexpr = STEPS * BK * SPLIT_K == K
    COLUMN_TILES: tl.constexpr = (N + BN - 1) // BN
    IS_INTEGER: tl.constexpr = w_ptr.dtype.element_ty == tl.int8
    SUM: tl.constexpr = tl.int32 if IS_INTEGER else tl.float32
    NOTHING: tl.constexpr = 0 if IS_INTEGER else 0.0
    tile, part = tl.program_id(0), tl.program_id(1)
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
    x_tile = x_ptr + tl.minimum(m, rows - 1).to(tl.int64)[:, None] * X_ROW + k[None, :]  # [BM, BK]
    w_tile = w_ptr + tl.minimum(n, N - 1).to(tl.int64)[None, :] * W_COLUMN + k[:, None]  # [BK, BN]
    acc = tl.zeros((BM, BN), SUM)
    for step in range(STEPS):
        if IS_EVEN_K:
            x = tl.load(x_tile)
            w = tl.load(w_tile)
        else:
            inside = k < K - step * BK
            # the weight is zero there, so that the codes of x do not matter
            x = tl.load(x_tile, mask=inside[None, :], other=NOTHING)
            w = tl.load(w_tile, mask=inside[:, None], other=NOTHING)
        if IS_UNSIGNED:
            x = (x ^ 0x80).to(tl.int8, bitcast=True)
        if IS_PROMOTED and STEPS > 1:
            acc += tl.dot(x, w, out_dtype=SUM)
        else:
            acc = tl.dot(x, w, acc, out_dtype=SUM)
        x_tile += BK
        w_tile += BK
    if HAS_ZERO:
        # of all parts of a sum, one is corrected
        zero = tl.where(part == 0, tl.load(zero_ptr).to(tl.int32) - (128 if IS_UNSIGNED else 0), 0)
        acc -= (zero * tl.load(sums_ptr + tl.minimum(n, N - 1)))[None, :]
    m = m[:, None]
    finish(
        acc, m, m < rows, first_column, pointers, parts_ptr, counters_ptr, tile, part,
        N, SPLIT_K, HALVES, EPILOGUE,
    )  # fmt: skip
