"""A norm of rows and the product behind it as one kernel: the rows go to the tensor cores as they are.

The weight carries the norm's scale, so y = (x · (γW) - mean · Σ γW) / deviation + βW. Sums for mean and
deviation are taken from the tiles that are multiplied; no row is read twice.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ridgeline.kernels.triton.tiles import prefetch_weight, store_tile, tile_place, used

# items of a row that one thread adds up before lanes are joined: as many as it loads at once
TOGETHER = tl.constexpr(8)
# mean² / variance from which a row is centred before it is multiplied: up to there, with sums in float32,
# what cancels leaves errors below the rounding of a half
MOST_OFF_CENTRE = tl.constexpr(64.0)
# columns of the normed rows that are written at a time
WRITTEN = tl.constexpr(64)


def normed_gemm_ref(
    x: Tensor, w: Tensor, gamma: Tensor, beta: Tensor | None, epsilon: float, *, is_centred: bool
) -> tuple[Tensor, Tensor]:
    """The product and the normed rows; `w` is [N, K], without the scale."""
    centred = x - x.mean(-1, keepdim=True) if is_centred else x
    normed = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + epsilon) * gamma
    normed = normed if beta is None else normed + beta
    return torch.matmul(normed, w.mT), normed


@triton.jit
def normed_gemm(
    x_ptr, w_ptr, columns_ptr, affine_ptr, pointers, rows,
    N: tl.constexpr, K: tl.constexpr, W_COLUMN: tl.constexpr, EPSILON: tl.constexpr,
    IS_CENTRED: tl.constexpr, NORMED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP_M: tl.constexpr,
    WAITS: tl.constexpr, PREFETCH: tl.constexpr, PDL: tl.constexpr, EPILOGUE: tl.constexpr,
):  # fmt: skip
    """y = epilogue(norm(x[M, K]) · w[K, N]); grid: tiles. `columns`: sums, scales and shifts of [N] columns.

    The normed rows go to `pointers[NORMED]` with `affine` (γ and β), a share from each program; -1: nowhere.
    """
    STEPS: tl.constexpr = (K + BK - 1) // BK
    IS_EVEN_K: tl.constexpr = STEPS * BK == K
    COLUMN_TILES: tl.constexpr = (N + BN - 1) // BN
    row_tile, column_tile = tile_place(tl.program_id(0), tl.cdiv(rows, BM), COLUMN_TILES, GROUP_M)
    first_row, first_column = row_tile * BM, column_tile * BN
    if PREFETCH:
        prefetch_weight(w_ptr, first_column, 0, N, K, W_COLUMN, BN, K)
    if PDL:
        prefetch_weight(columns_ptr, 0, first_column, 3, N, N, 3, BN)
        gdc_wait()
        gdc_launch_dependents()
    m = first_row + tl.arange(0, BM)
    n = first_column + tl.arange(0, BN)
    k = tl.arange(0, BK)
    # rows and columns past the edge read the last one: cheaper than a mask, and they are not stored
    x_tile = x_ptr + (tl.minimum(m, rows - 1).to(tl.int64) * K)[:, None] + k[None, :]  # [BM, BK]
    w_tile = w_ptr + (tl.minimum(n, N - 1).to(tl.int64) * W_COLUMN)[None, :] + k[:, None]  # [BK, BN]
    acc = tl.zeros((BM, BN), tl.float32)
    totals = tl.zeros((BM, BK // TOGETHER), tl.float32)
    squares = tl.zeros((BM, BK // TOGETHER), tl.float32)
    for step in range(STEPS):
        if IS_EVEN_K:
            x = tl.load(x_tile + step * BK)
            w = tl.load(w_tile + step * BK)
        else:
            inside = k < K - step * BK
            x = tl.load(x_tile + step * BK, mask=inside[None, :], other=0.0)
            w = tl.load(w_tile + step * BK, mask=inside[:, None], other=0.0)
        acc = tl.dot(x, w, acc)
        items = tl.reshape(x.to(tl.float32), (BM, BK // TOGETHER, TOGETHER))
        if IS_CENTRED:
            totals += tl.sum(items, 2)
        squares += tl.sum(items * items, 2)
        if WAITS:
            # a use of the sums in the loop makes every step wait for its product. Without it Triton 3.7
            # starts copying into the tile of x that wgmma still reads: it counts one buffer too few for a
            # tile that is looked at in registers as well (`loadRequiresAdditionalBuffer`)
            acc = used(acc)
    mean = tl.sum(totals, 1) / K  # [BM]
    variance = tl.sum(squares, 1) / K - mean * mean
    # false for NaN as well
    is_near = (mean * mean <= variance * MOST_OFF_CENTRE) & (variance < float("inf"))
    inverse = 1.0 / tl.sqrt_rn(variance + EPSILON)
    column = tl.minimum(n, N - 1)
    if tl.min(is_near.to(tl.int32), 0) == 1:
        if IS_CENTRED:
            acc -= mean[:, None] * tl.load(columns_ptr + column)[None, :]
        acc *= inverse[:, None]
    else:
        mean, inverse, acc = _centred_first(x_tile, w_tile, mean, K, EPSILON, IS_CENTRED, BM, BN, BK)
    acc *= tl.load(columns_ptr + N + column)[None, :]
    if IS_CENTRED:
        acc += tl.load(columns_ptr + 2 * N + column)[None, :]
    store_tile(acc, m[:, None], m[:, None] < rows, first_column, pointers, N, EPILOGUE)
    if NORMED >= 0:
        _write_normed(
            x_ptr, affine_ptr, pointers[NORMED], mean, inverse, m, rows, column_tile, K, IS_CENTRED,
            COLUMN_TILES,
        )  # fmt: skip


@triton.jit
def _centred_first(
    x_tile, w_tile, mean, K: tl.constexpr, EPSILON: tl.constexpr, IS_CENTRED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """mean, 1 / deviation and ((x - mean) / deviation) · w, for rows far from zero or with no finite sums."""
    k = tl.arange(0, BK)
    totals = tl.zeros((BM, BK), tl.float32)
    squares = tl.zeros((BM, BK), tl.float32)
    for step in tl.range(0, K, BK, num_stages=1):
        inside = (k < K - step)[None, :]
        x = tl.load(x_tile + step, mask=inside, other=0.0).to(tl.float32) - mean[:, None]
        x = tl.where(inside, x, 0.0)
        totals += x
        squares += x * x
    off = tl.sum(totals, 1) / K
    variance = tl.sum(squares, 1) / K
    if IS_CENTRED:
        mean += off
        variance -= off * off
    inverse = 1.0 / tl.sqrt_rn(variance + EPSILON)
    acc = tl.zeros((BM, BN), tl.float32)
    for step in tl.range(0, K, BK, num_stages=1):
        inside = k < K - step
        x = tl.load(x_tile + step, mask=inside[None, :], other=0.0)
        w = tl.load(w_tile + step, mask=inside[:, None], other=0.0)
        normed = (x.to(tl.float32) - mean[:, None]) * inverse[:, None]
        acc = tl.dot(tl.where(inside[None, :], normed, 0.0).to(x.dtype), w, acc)
    return mean, inverse, acc


@triton.jit
def _write_normed(
    x_ptr, affine_ptr, normed_ptr, mean, inverse, m, rows, column_tile, K: tl.constexpr,
    IS_CENTRED: tl.constexpr, COLUMN_TILES: tl.constexpr,
):  # fmt: skip
    """This program's share of the columns of its normed rows, in blocks of `WRITTEN`."""
    BLOCKS: tl.constexpr = (K + WRITTEN - 1) // WRITTEN
    place = m.to(tl.int64)[:, None] * K
    for block in range(column_tile, BLOCKS, COLUMN_TILES):
        k = block * WRITTEN + tl.arange(0, WRITTEN)
        is_inside = (m < rows)[:, None] & (k < K)[None, :]
        x = tl.load(x_ptr + place + k[None, :], mask=is_inside, other=0.0).to(tl.float32)
        y = (x - mean[:, None]) * inverse[:, None]
        y *= tl.load(affine_ptr + k, mask=k < K, other=0.0)[None, :]
        if IS_CENTRED:
            y += tl.load(affine_ptr + K + k, mask=k < K, other=0.0)[None, :]
        tl.store(normed_ptr + place + k[None, :], y.to(normed_ptr.dtype.element_ty), mask=is_inside)
