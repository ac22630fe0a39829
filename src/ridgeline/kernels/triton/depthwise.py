"""Depthwise convolution: every channel has its own window, and a thread loads neighbouring channels at once.

A thread keeps a block of neighbouring outputs in registers, so each loaded value is used in every window
that contains it.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# windows with at most this many taps keep their weights in registers; others read them from the cache
HELD_TAPS = tl.constexpr(25)


@triton.jit
def _add_tap(
    sums, x, weights, w_tile, is_channel, C: tl.constexpr,
    out: tl.constexpr, down: tl.constexpr, across: tl.constexpr,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
):  # fmt: skip
    """Adds x to output `out` if its window has a tap `down` lines and `across` columns from its corner."""
    IS_LINE: tl.constexpr = down >= 0 and down % DILATION_H == 0 and down // DILATION_H < KERNEL_H
    IS_COLUMN: tl.constexpr = across >= 0 and across % DILATION_W == 0 and across // DILATION_W < KERNEL_W
    if IS_LINE and IS_COLUMN:
        TAP: tl.constexpr = down // DILATION_H * KERNEL_W + across // DILATION_W
        if KERNEL_H * KERNEL_W <= HELD_TAPS:
            w = weights[TAP]
        else:
            w = tl.load(w_tile + TAP * C, mask=is_channel, other=0.0)
        # Triton has no starred tuples
        sums = sums[:out] + (sums[out] + x * w.to(tl.float32),) + sums[out + 1 :]  # noqa: RUF005
    return sums


@triton.jit
def depthwise(
    x_ptr, w_ptr, pointers, images,
    C: tl.constexpr,
    X_IMAGE: tl.constexpr, X_LINE: tl.constexpr, X_COLUMN: tl.constexpr, X_CHANNEL: tl.constexpr,
    IN_H: tl.constexpr, IN_W: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    IS_PADDED: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
    PDL: tl.constexpr, EPILOGUE: tl.constexpr,
):  # fmt: skip
    """y[(i, h, w), c] = epilogue(Σ_{r, s} x[i, h·S + r·D - P, w·S + s·D - P, c] · w[r, s, c])."""
    LINES: tl.constexpr = (OUT_H + HIGH - 1) // HIGH
    COLUMNS: tl.constexpr = (OUT_W + WIDE - 1) // WIDE
    block = tl.program_id(0) * BP + tl.arange(0, BP)  # [BP], a block of HIGH x WIDE outputs each
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    is_channel = (c < C)[None, :]
    w_tile = w_ptr + c[None, :]  # [1, BC]
    weights = ()
    if KERNEL_H * KERNEL_W <= HELD_TAPS:
        for tap in tl.static_range(KERNEL_H * KERNEL_W):
            w = tl.load(w_tile + tap * C, mask=is_channel, other=0.0)
            weights = weights + (w,)  # type: ignore[assignment]  # noqa: RUF005
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    image, line, column = block // (LINES * COLUMNS), block // COLUMNS % LINES * HIGH, block % COLUMNS * WIDE
    is_image = image < images
    top, left = line * STRIDE_H - PAD_H, column * STRIDE_W - PAD_W
    start = x_ptr + image.to(tl.int64)[:, None] * X_IMAGE + c[None, :] * X_CHANNEL
    start = start + (top * X_LINE + left * X_COLUMN)[:, None]
    sums = ()
    for _ in tl.static_range(HIGH * WIDE):
        sums = sums + (tl.zeros((BP, BC), tl.float32),)  # type: ignore[assignment]  # noqa: RUF005
    # every position under the block is loaded once and added to each output whose window contains it
    for down in tl.static_range((HIGH - 1) * STRIDE_H + (KERNEL_H - 1) * DILATION_H + 1):
        for across in tl.static_range((WIDE - 1) * STRIDE_W + (KERNEL_W - 1) * DILATION_W + 1):
            at_h, at_w = top + down, left + across
            inside = is_image & (at_h < IN_H) & (at_w < IN_W)
            if IS_PADDED:
                inside = inside & (at_h >= 0) & (at_w >= 0)
            inside = inside[:, None] & is_channel
            x = tl.load(start + (down * X_LINE + across * X_COLUMN), mask=inside, other=0.0).to(tl.float32)
            for out in tl.static_range(HIGH * WIDE):
                sums = _add_tap(
                    sums, x, weights, w_tile, is_channel, C,
                    out, down - out // WIDE * STRIDE_H, across - out % WIDE * STRIDE_W,
                    KERNEL_H, KERNEL_W, DILATION_H, DILATION_W,
                )  # fmt: skip
    for out in tl.static_range(HIGH * WIDE):
        at_h, at_w = line + out // WIDE, column + out % WIDE
        mask = (is_image & (at_h < OUT_H) & (at_w < OUT_W))[:, None] & is_channel
        m = (image * OUT_H + at_h) * OUT_W + at_w
        EPILOGUE(sums[out], m[:, None], c[None, :], mask, pointers)
