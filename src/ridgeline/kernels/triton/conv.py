"""Convolution as an implicit product: rows are output positions, columns channels, K runs over the window.

Images may have any order of axes; NHWC gives the widest loads. docs/gpu.md describes EPILOGUE.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ridgeline.kernels.triton.tiles import finish, prefetch_weight, store_tile, tile_place

FEW_ROWS = tl.constexpr(16)


def conv_ref(
    x: Tensor, w: Tensor, *, stride: Sequence[int], pads: Sequence[int], dilation: Sequence[int]
) -> Tensor:
    """The convolution alone; `pads` are (top, left, bottom, right), and w's channels give the groups."""
    top, left, bottom, right = pads
    groups = x.shape[1] // w.shape[1]
    return F.conv2d(F.pad(x, (left, right, top, bottom)), w, None, tuple(stride), 0, tuple(dilation), groups)


@triton.jit
def _place_windows(
    x_ptr, m, rows,
    X_IMAGE: tl.constexpr, X_LINE: tl.constexpr, X_COLUMN: tl.constexpr,
    IN_H: tl.constexpr, IN_W: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    HAS_BITS: tl.constexpr,
):  # fmt: skip
    """Where the window of each row starts, as a pointer and in the image; then a bit per tap inside of it."""
    # rows past the edge read the last one: cheaper than a mask, and they are not stored
    row = tl.minimum(m, rows - 1)
    top = row // OUT_W % OUT_H * STRIDE_H - PAD_H
    left = row % OUT_W * STRIDE_W - PAD_W
    image = (row // (OUT_W * OUT_H)).to(tl.int64) * X_IMAGE
    x_row = x_ptr + (image + top * X_LINE + left * X_COLUMN)
    bits = tl.zeros(m.shape, tl.int32)
    if HAS_BITS:
        for bit in tl.static_range(KERNEL_H * KERNEL_W):
            high, wide = top + bit // KERNEL_W * DILATION_H, left + bit % KERNEL_W * DILATION_W
            is_inside = (high >= 0) & (high < IN_H) & (wide >= 0) & (wide < IN_W)
            bits |= is_inside.to(tl.int32) << bit
    return x_row, top, left, bits


@triton.jit
def _load_window(
    x_row, top, left, bits, depth, inner,
    C: tl.constexpr, X_LINE: tl.constexpr, X_COLUMN: tl.constexpr, X_CHANNEL: tl.constexpr,
    IN_H: tl.constexpr, IN_W: tl.constexpr, KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr, IS_PADDED: tl.constexpr,
    HAS_BITS: tl.constexpr, IS_FOLDED: tl.constexpr, IS_PLANES: tl.constexpr, IS_EVEN_K: tl.constexpr,
    NOTHING: tl.constexpr,
):  # fmt: skip
    """x under the windows of some rows, from `depth` on along K: [BM, BK]. `bits` as `conv` makes them."""
    K: tl.constexpr = KERNEL_H * KERNEL_W * C
    if IS_FOLDED:
        k = depth + inner
        if IS_PLANES:
            channel, tap = k // (KERNEL_H * KERNEL_W), k % (KERNEL_H * KERNEL_W)
        else:
            tap, channel = k // C, k % C
        if KERNEL_H * KERNEL_W * KERNEL_W < 65536:
            # a division of small numbers, which the compiler makes three times as long
            tap_line = (tap * (65536 // KERNEL_W + 1)) >> 16
        else:
            tap_line = tap // KERNEL_W
        line, column = tap_line * DILATION_H, (tap - tap_line * KERNEL_W) * DILATION_W
        offset = line * X_LINE + column * X_COLUMN + channel * X_CHANNEL
        x_tile = x_row[:, None] + offset[None, :]
        inside = (k < K)[None, :]
        if IS_PADDED:
            h, w = top[:, None] + line[None, :], left[:, None] + column[None, :]
            inside = inside & (h >= 0) & (h < IN_H) & (w >= 0) & (w < IN_W)
        x = tl.load(x_tile, mask=inside, other=NOTHING)
    else:
        tap = depth // C
        channel = tl.multiple_of(depth % C, inner.shape[0])
        line, column = tap // KERNEL_W * DILATION_H, tap % KERNEL_W * DILATION_W
        x_tile = (x_row + (line * X_LINE + column * X_COLUMN + channel * X_CHANNEL))[:, None]
        x_tile = x_tile + inner[None, :] * X_CHANNEL
        if HAS_BITS:
            # there is no bit past the last tap
            inside = (bits >> (tap if IS_EVEN_K else tl.minimum(tap, 31))) & 1 != 0
            x = tl.load(x_tile, mask=inside[:, None], other=NOTHING)
        elif IS_PADDED:
            h, w = top + line, left + column
            inside = (h >= 0) & (h < IN_H) & (w >= 0) & (w < IN_W) & (depth < K)
            x = tl.load(x_tile, mask=inside[:, None], other=NOTHING)
        elif IS_EVEN_K:
            x = tl.load(x_tile)
        else:
            x = tl.load(x_tile, mask=depth < K, other=NOTHING)
    return x


@triton.jit
def conv(
    x_ptr, w_ptr, zero_ptr, sums_ptr, parts_ptr, counters_ptr, pointers, rows,
    C: tl.constexpr,
    X_IMAGE: tl.constexpr, X_LINE: tl.constexpr, X_COLUMN: tl.constexpr, X_CHANNEL: tl.constexpr,
    IN_H: tl.constexpr, IN_W: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    IS_PADDED: tl.constexpr, N: tl.constexpr, BATCH: tl.constexpr, MEMBERS: tl.constexpr,
    W_COLUMN: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
    HALVES: tl.constexpr, IS_FOLDED: tl.constexpr, IS_PLANES: tl.constexpr, PREFETCH: tl.constexpr,
    PDL: tl.constexpr, PRECISION: tl.constexpr, IS_PROMOTED: tl.constexpr, HAS_ZERO: tl.constexpr,
    IS_UNSIGNED: tl.constexpr, EPILOGUE: tl.constexpr,
):  # fmt: skip
    """y[(i, h, w), n] = epilogue(Σ_{r, s, c} x[i, h·S + r·D - P, w·S + s·D - P, c] · w[n, (r, s, c)]).

    One step takes BK channels of one tap. With IS_FOLDED (few or odd channels) it takes BK neighbours along
    K, which may belong to several taps. With IS_PLANES (each channel is a plane) K counts (c, r, s), so that
    neighbours along K are neighbours in a line. Images and weights may be codes of 8 bits, as in `qgemm`;
    outside of an image their number is zero.

    With groups there are BATCH such products side by side, each of C channels into N. MEMBERS narrow groups
    share one product, whose weight is zero between them.
    """
    tl.static_assert(MEMBERS == 1 or SPLIT_K == 1, "groups that share a product have their sums whole")
    K: tl.constexpr = KERNEL_H * KERNEL_W * C
    STEPS: tl.constexpr = (K + BK * SPLIT_K - 1) // (BK * SPLIT_K)
    IS_EVEN_K: tl.constexpr = STEPS * BK * SPLIT_K == K
    COLUMN_TILES: tl.constexpr = (N + BN - 1) // BN
    SUM: tl.constexpr = tl.int32 if w_ptr.dtype.element_ty == tl.int8 else tl.float32
    NOTHING: tl.constexpr = 0 if w_ptr.dtype.element_ty == tl.int8 else 0.0
    tile, part = tl.program_id(0), tl.program_id(1)
    row_tile, column_tile = tile_place(tile, tl.cdiv(rows, BM), BATCH * COLUMN_TILES, GROUP_M)
    first_column, first_depth = column_tile * BN, part * (STEPS * BK)
    end, last_column = N, N - 1
    if BATCH > 1:
        product = column_tile // COLUMN_TILES
        first_column = product * N + column_tile % COLUMN_TILES * BN
        end, last_column = (product + 1) * N, (product + 1) * N - 1
    if PREFETCH:
        prefetch_weight(w_ptr, first_column, first_depth, BATCH * N, K, W_COLUMN, BN, STEPS * BK)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    m = row_tile * BM + tl.arange(0, BM)
    n = first_column + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    # a bit per tap of a row, whether it lies inside of the image: four tests in every step would cost more
    HAS_BITS: tl.constexpr = IS_PADDED and not IS_FOLDED and KERNEL_H * KERNEL_W < 32
    x_row, top, left, bits = _place_windows(
        x_ptr, m, rows, X_IMAGE, X_LINE, X_COLUMN, IN_H, IN_W, OUT_H, OUT_W, KERNEL_H, KERNEL_W,
        STRIDE_H, STRIDE_W, DILATION_H, DILATION_W, PAD_H, PAD_W, HAS_BITS,
    )  # fmt: skip
    if BATCH > 1:
        x_row += product * (C * X_CHANNEL)
    # columns past the edge read the last one, as rows do
    w_first = w_ptr + tl.minimum(n, last_column)[None, :] * W_COLUMN + (first_depth + inner)[:, None]
    w_tile = w_first  # [BK, BN]
    acc = tl.zeros((BM, BN), SUM)
    for step in range(STEPS):
        depth = first_depth + step * BK
        x = _load_window(
            x_row, top, left, bits, depth, inner,
            C, X_LINE, X_COLUMN, X_CHANNEL, IN_H, IN_W, KERNEL_H, KERNEL_W, DILATION_H, DILATION_W,
            IS_PADDED, HAS_BITS, IS_FOLDED, IS_PLANES, IS_EVEN_K, NOTHING,
        )  # fmt: skip
        if IS_EVEN_K:
            weight = tl.load(w_tile)
        else:
            weight = tl.load(w_tile, mask=(inner < W_COLUMN - depth)[:, None], other=NOTHING)
        if IS_UNSIGNED:
            x = (x ^ 0x80).to(tl.int8, bitcast=True)
        if IS_PROMOTED and STEPS > 1:
            acc += tl.dot(x, weight, out_dtype=SUM)
        else:
            acc = tl.dot(x, weight, acc, input_precision=PRECISION, out_dtype=SUM)
        w_tile += BK
    if HAS_ZERO:
        # of all parts of a sum, one is corrected
        zero = tl.where(part == 0, tl.load(zero_ptr).to(tl.int32) - (128 if IS_UNSIGNED else 0), 0)
        acc -= (zero * tl.load(sums_ptr + tl.minimum(n, last_column)))[None, :]
    if MEMBERS == 1:
        m = m[:, None]
        finish(
            acc, m, m < rows, first_column, pointers, parts_ptr, counters_ptr, tile, part,
            end, SPLIT_K, HALVES, EPILOGUE,
        )  # fmt: skip
    # infinity and NaN times a zero of the weight are NaN: such sums are made again, group by group
    elif tl.max(tl.where(acc == acc, 0, 1)) == 0:
        store_tile(acc, m[:, None], (m < rows)[:, None], first_column, pointers, end, EPILOGUE)
    else:
        for start in range(row_tile * BM, row_tile * BM + BM, FEW_ROWS):
            few = start + tl.arange(0, FEW_ROWS)
            x_few, top_few, left_few, bits_few = _place_windows(
                x_ptr, few, rows, X_IMAGE, X_LINE, X_COLUMN, IN_H, IN_W, OUT_H, OUT_W, KERNEL_H, KERNEL_W,
                STRIDE_H, STRIDE_W, DILATION_H, DILATION_W, PAD_H, PAD_W, HAS_BITS,
            )  # fmt: skip
            if BATCH > 1:
                x_few += product * (C * X_CHANNEL)
            alone = tl.zeros((FEW_ROWS, BN), SUM)
            # a number unknown to the compiler: unrolled, this rare case would be most of the code
            for turn in tl.range(MEMBERS * STEPS + tl.minimum(rows, 0), num_stages=1):
                member, from_depth = turn // STEPS, turn % STEPS * BK
                some_x = _load_window(
                    x_few, top_few, left_few, bits_few, from_depth, inner,
                    C, X_LINE, X_COLUMN, X_CHANNEL, IN_H, IN_W, KERNEL_H, KERNEL_W, DILATION_H, DILATION_W,
                    IS_PADDED, HAS_BITS, IS_FOLDED, IS_PLANES, IS_EVEN_K, NOTHING,
                )  # fmt: skip
                k = from_depth + inner
                channel = k // (KERNEL_H * KERNEL_W) if IS_PLANES else k % C
                some_x = tl.where((channel // (C // MEMBERS) == member)[None, :], some_x, NOTHING)
                is_depth = (inner < W_COLUMN - from_depth)[:, None]
                some_w = tl.load(w_first + from_depth, mask=is_depth, other=NOTHING)
                made = tl.dot(some_x, some_w, input_precision=PRECISION, out_dtype=SUM)
                alone += tl.where((n % N // (N // MEMBERS) == member)[None, :], made, NOTHING)
            store_tile(alone, few[:, None], (few < rows)[:, None], first_column, pointers, end, EPILOGUE)
