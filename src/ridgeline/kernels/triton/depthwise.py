"""Depthwise convolution: every channel has its own window, and a thread loads neighbouring channels at once.

A thread keeps a block of neighbouring outputs in registers, so each loaded value is used in every window
that contains it. Small windows are written out whole; of larger ones a loop takes line after line.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ridgeline.kernels.triton.tiles import prefetch_weight

# small windows, and those of long lines, are kept in registers up to this many taps; more come from the cache
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


@triton.jit
def _load_line(w_line, is_channel, C: tl.constexpr, KERNEL_W: tl.constexpr, IS_EVEN_C: tl.constexpr):
    """The weights of one line of the window."""
    weights = ()
    for tap in tl.static_range(KERNEL_W):
        w = tl.load(w_line + tap * C) if IS_EVEN_C else tl.load(w_line + tap * C, mask=is_channel, other=0.0)
        weights = weights + (w,)  # type: ignore[assignment]  # noqa: RUF005
    return weights


@triton.jit
def _add_line(
    sums, weights, x_line, left, is_line, is_channel,
    FIRST: tl.constexpr, LAST: tl.constexpr, WIDE: tl.constexpr, X_COLUMN: tl.constexpr,
    IN_W: tl.constexpr, OUT_W: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_W: tl.constexpr,
    DILATION_W: tl.constexpr, PAD_W: tl.constexpr, IS_EVEN_C: tl.constexpr,
):  # fmt: skip
    """Adds a line of x to the outputs of lines FIRST to LAST; `weights` has the line of FIRST first."""
    MOST_LEFT: tl.constexpr = (OUT_W + WIDE - 1) // WIDE * WIDE * STRIDE_W - WIDE * STRIDE_W - PAD_W
    for across in tl.static_range((WIDE - 1) * STRIDE_W + (KERNEL_W - 1) * DILATION_W + 1):
        # most columns lie inside of the image for every block, others are tested on the side they may leave
        inside = is_line
        if across < PAD_W:
            inside = inside & (left >= -across)
        if MOST_LEFT + across >= IN_W:
            inside = inside & (left < IN_W - across)
        inside = inside[:, None]
        if not IS_EVEN_C:
            inside = inside & is_channel
        x = tl.load(x_line + across * X_COLUMN, mask=inside, other=0.0).to(tl.float32)
        for out in tl.static_range(WIDE):
            # a window has a tap there; a constant would need a name per turn
            if (
                across >= out * STRIDE_W
                and (across - out * STRIDE_W) % DILATION_W == 0
                and (across - out * STRIDE_W) // DILATION_W < KERNEL_W
            ):
                for row in tl.static_range(FIRST, LAST + 1):
                    w = weights[(row - FIRST) * KERNEL_W + (across - out * STRIDE_W) // DILATION_W]
                    made = tl.fma(x, w, sums[row * WIDE + out])
                    sums = sums[: row * WIDE + out] + (made,) + sums[row * WIDE + out + 1 :]  # noqa: RUF005
    return sums


@triton.jit
def depthwise_lines(
    x_ptr, w_ptr, pointers, images,
    C: tl.constexpr,
    X_IMAGE: tl.constexpr, X_LINE: tl.constexpr, X_COLUMN: tl.constexpr, X_CHANNEL: tl.constexpr,
    IN_H: tl.constexpr, IN_W: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    TOGETHER: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
    PDL: tl.constexpr, EPILOGUE: tl.constexpr,
):  # fmt: skip
    """The same for larger windows: line by line, so that the weights of a line fit in registers.

    Lines are a loop of the machine, TOGETHER of them a turn. A line of x is loaded once for all HIGH lines
    of outputs whose windows contain it; each has its own line of the window, and the next one takes it over.
    """
    IS_EVEN_C: tl.constexpr = C % BC == 0
    LINES: tl.constexpr = (OUT_H + HIGH - 1) // HIGH
    COLUMNS: tl.constexpr = (OUT_W + WIDE - 1) // WIDE
    block = tl.program_id(0) * BP + tl.arange(0, BP)  # [BP], a block of HIGH x WIDE outputs each
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    is_channel = (c < C)[None, :]
    # of the shape of x, so that a thread has the weights of its own channels
    w_line = tl.broadcast_to(w_ptr + c[None, :], (BP, BC))
    if PDL:
        TAPS: tl.constexpr = KERNEL_H * KERNEL_W
        prefetch_weight(w_ptr, 0, tl.program_id(1) * BC, TAPS, C, C, TAPS, BC)
        gdc_wait()
        gdc_launch_dependents()
    image, line, column = block // (LINES * COLUMNS), block // COLUMNS % LINES * HIGH, block % COLUMNS * WIDE
    is_image = image < images
    top, left = line * STRIDE_H - PAD_H, column * STRIDE_W - PAD_W
    x_line = x_ptr + image.to(tl.int64)[:, None] * X_IMAGE + c[None, :] * X_CHANNEL
    x_line = x_line + (top * X_LINE + left * X_COLUMN)[:, None]
    sums = ()
    for _ in tl.static_range(HIGH * WIDE):
        sums = sums + (tl.zeros((BP, BC), tl.float32),)  # type: ignore[assignment]  # noqa: RUF005
    older = ()  # weights of the lines before
    # lines that the window of the last line of outputs does not reach
    for down in tl.static_range(HIGH - 1):
        older = _load_line(w_line + down * (KERNEL_W * C), is_channel, C, KERNEL_W, IS_EVEN_C) + older
        is_line = is_image & (top + down >= 0) & (top + down < IN_H)
        sums = _add_line(
            sums, older, x_line + down * X_LINE, left, is_line, is_channel,
            0, down, WIDE, X_COLUMN, IN_W, OUT_W, KERNEL_W, STRIDE_W, DILATION_W, PAD_W, IS_EVEN_C,
        )  # fmt: skip
    for down in tl.range(HIGH - 1, KERNEL_H, loop_unroll_factor=TOGETHER):
        weights = _load_line(w_line + down * (KERNEL_W * C), is_channel, C, KERNEL_W, IS_EVEN_C) + older
        at = top + down * DILATION_H
        is_line = is_image & (at >= 0) & (at < IN_H)
        sums = _add_line(
            sums, weights, x_line + down * (X_LINE * DILATION_H), left, is_line, is_channel,
            0, HIGH - 1, WIDE, X_COLUMN, IN_W, OUT_W, KERNEL_W, STRIDE_W, DILATION_W, PAD_W, IS_EVEN_C,
        )  # fmt: skip
        older = weights[: (HIGH - 1) * KERNEL_W]
    # lines that the window of the first line of outputs does not reach
    for past in tl.static_range(HIGH - 1):
        at = top + KERNEL_H + past
        is_line = is_image & (at >= 0) & (at < IN_H)
        sums = _add_line(
            sums, older, x_line + (KERNEL_H + past) * X_LINE, left, is_line, is_channel,
            past + 1, HIGH - 1, WIDE, X_COLUMN, IN_W, OUT_W, KERNEL_W, STRIDE_W, DILATION_W, PAD_W, IS_EVEN_C,
        )  # fmt: skip
    for out in tl.static_range(HIGH * WIDE):
        at_h, at_w = line + out // WIDE, column + out % WIDE
        mask = (is_image & (at_h < OUT_H) & (at_w < OUT_W))[:, None] & is_channel
        m = (image * OUT_H + at_h) * OUT_W + at_w
        EPILOGUE(sums[out], m[:, None], c[None, :], mask, pointers)
