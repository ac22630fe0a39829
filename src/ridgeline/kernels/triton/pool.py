"""Pooling over windows of images in any layout: the greatest number, the mean, or a norm.

A thread may keep a block of neighbouring outputs in registers, so that each loaded value is used in every
window that contains it. Codes of 8 bits are compared as they are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


def pool_ref(
    x: Tensor, *, kind: str, made: Sequence[int], kernel: Sequence[int], stride: Sequence[int],
    dilation: Sequence[int], before: Sequence[int], counted_before: Sequence[int], counted: Sequence[int],
) -> Tensor:  # fmt: skip
    """Of every window the greatest number, the mean of the places that count, or a norm; place by place."""
    start = -math.inf if kind == "max" else 0.0
    value, count = x.new_full((*x.shape[:2], *made), start), x.new_zeros(made)
    for tap in itertools.product(*map(range, kernel)):
        part, is_inside, is_counted = x, torch.tensor(True), torch.tensor(True)
        for axis, size in enumerate(x.shape[2:]):
            at = torch.arange(made[axis]) * stride[axis] - before[axis] + tap[axis] * dilation[axis]
            part = part.index_select(2 + axis, at.clamp(0, size - 1))
            at = at.reshape(-1, *(1,) * (len(made) - 1 - axis))
            is_inside = is_inside & (at >= 0) & (at < size)
            from_first = at + counted_before[axis]
            is_counted = is_counted & (from_first >= 0) & (from_first < counted[axis])
        part = torch.where(is_inside, part, start)
        count = count + is_counted
        if kind == "max":
            value = torch.maximum(value, part)
        else:
            value = value + {"mean": part, "norm1": part.abs(), "norm2": part.square()}[kind]
    return value / count if kind == "mean" else value.sqrt() if kind == "norm2" else value


@triton.jit
def _join(value, x, KIND: tl.constexpr, PACKED: tl.constexpr):
    """A window's value after one more number. PACKED: two numbers of 16 bits at a time, where it has them."""
    if KIND == "mean":
        value = value + x.to(tl.float32)
    elif KIND == "norm1":
        value = value + tl.abs(x.to(tl.float32))
    elif KIND == "norm2":
        value = tl.fma(x.to(tl.float32), x.to(tl.float32), value)
    elif PACKED and value.dtype == tl.float16:
        value = tl.inline_asm_elementwise(
            "max.NaN.f16x2 $0, $1, $2;", "=r,r,r", [value, x.to(tl.float16)],
            dtype=tl.float16, is_pure=True, pack=2,
        )  # fmt: skip
    elif PACKED and value.dtype == tl.bfloat16:
        value = tl.inline_asm_elementwise(
            "max.NaN.bf16x2 $0, $1, $2;", "=r,r,r", [value, x], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    else:
        value = tl.maximum(value, x.to(value.dtype), propagate_nan=tl.PropagateNan.ALL)
    return value


@triton.jit
def _join_window(
    values, x, out: tl.constexpr, down: tl.constexpr, across: tl.constexpr,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
    KIND: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Joins x to output `out` if its window has a place `down` lines and `across` columns from its corner."""
    IS_LINE: tl.constexpr = down >= 0 and down % DILATION_H == 0 and down // DILATION_H < KERNEL_H
    IS_COLUMN: tl.constexpr = across >= 0 and across % DILATION_W == 0 and across // DILATION_W < KERNEL_W
    if IS_LINE and IS_COLUMN:
        # Triton has no starred tuples
        values = values[:out] + (_join(values[out], x, KIND, PACKED),) + values[out + 1 :]  # noqa: RUF005
    return values


@triton.jit
def _counted(first, SIZE: tl.constexpr, TAPS: tl.constexpr, DILATION: tl.constexpr):
    """How many of the TAPS places first, first + DILATION, … lie in 0 … SIZE - 1."""
    least = tl.maximum(DILATION - 1 - first, 0) // DILATION
    past = tl.minimum(tl.maximum(SIZE - first + DILATION - 1, 0) // DILATION, TAPS)
    return tl.maximum(past - least, 0)


@triton.jit
def pool(
    x_ptr, pointers, blocks,
    C: tl.constexpr, X_IMAGE: tl.constexpr, X_CHANNEL: tl.constexpr,
    X_DEPTH: tl.constexpr, X_LINE: tl.constexpr, X_COLUMN: tl.constexpr,
    IN_D: tl.constexpr, IN_H: tl.constexpr, IN_W: tl.constexpr,
    OUT_D: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr,
    KERNEL_D: tl.constexpr, KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr,
    STRIDE_D: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    DILATION_D: tl.constexpr, DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
    PAD_D: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    BEFORE_D: tl.constexpr, BEFORE_H: tl.constexpr, BEFORE_W: tl.constexpr,
    COUNTED_D: tl.constexpr, COUNTED_H: tl.constexpr, COUNTED_W: tl.constexpr,
    KIND: tl.constexpr, LEAST: tl.constexpr, IS_PADDED: tl.constexpr, IS_COUNTED: tl.constexpr,
    IS_LONG: tl.constexpr, IS_PLANES: tl.constexpr, CHANNEL_AXIS: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
    PACKED: tl.constexpr, PDL: tl.constexpr, EPILOGUE: tl.constexpr,
):  # fmt: skip
    """y[i, c, d, h, w] = epilogue(max, mean or norm of x[i, c] over the window from (d, h, w) · S - P on).

    A tile is positions by channels, or the other way round (CHANNEL_AXIS 0). Where channels are planes of
    their own in x and y (IS_PLANES), every one of them is an image of one channel, and the epilogue counts
    (i, c, d, h) as rows and w as columns. A mean is that of the places that count: COUNTED of them, from
    BEFORE the image on.
    """
    ELEMENT: tl.constexpr = x_ptr.dtype.element_ty
    IS_FLOAT8: tl.constexpr = ELEMENT.is_fp8()
    AXIS: tl.constexpr = CHANNEL_AXIS
    LINES: tl.constexpr = (OUT_H + HIGH - 1) // HIGH
    COLUMNS: tl.constexpr = (OUT_W + WIDE - 1) // WIDE
    PARTS: tl.constexpr = (C + BC - 1) // BC
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    # a block is HIGH x WIDE outputs
    block = tl.expand_dims(tl.program_id(0) // PARTS * BP + tl.arange(0, BP), AXIS)
    c = tl.expand_dims(tl.program_id(0) % PARTS * BC + tl.arange(0, BC), 1 - AXIS)
    image, d = block // (LINES * COLUMNS * OUT_D), block // (LINES * COLUMNS) % OUT_D
    line, column = block // COLUMNS % LINES * HIGH, block % COLUMNS * WIDE
    front, top, left = d * STRIDE_D - PAD_D, line * STRIDE_H - PAD_H, column * STRIDE_W - PAD_W
    corner = image.to(tl.int64) * X_IMAGE + (front * X_DEPTH + top * X_LINE + left * X_COLUMN)
    start = x_ptr + (corner + c * X_CHANNEL)
    is_block = block < blocks
    if KIND != "max":
        nothing = tl.zeros(start.shape, tl.float32)
    elif ELEMENT.is_int():
        nothing = tl.full(start.shape, LEAST, tl.int32)
    elif IS_FLOAT8:
        nothing = tl.full(start.shape, LEAST, tl.float16)
    elif PACKED:
        nothing = tl.full(start.shape, LEAST, ELEMENT)
    else:
        nothing = tl.full(start.shape, LEAST, tl.float32)
    values = ()
    for _ in tl.static_range(HIGH * WIDE):
        values = values + (nothing,)  # type: ignore[assignment]  # noqa: RUF005
    if IS_LONG:
        value = nothing
        for tap in tl.range(0, KERNEL_D * KERNEL_H * KERNEL_W, loop_unroll_factor=4):
            deep, down = tap // (KERNEL_H * KERNEL_W) * DILATION_D, tap // KERNEL_W % KERNEL_H * DILATION_H
            across = tap % KERNEL_W * DILATION_W
            inside = is_block
            if IS_PADDED:
                inside = inside & (front + deep >= 0) & (top + down >= 0) & (left + across >= 0)
                inside = inside & (front + deep < IN_D) & (top + down < IN_H) & (left + across < IN_W)
            at = start + (deep * X_DEPTH + down * X_LINE + across * X_COLUMN)
            x = tl.load(at, mask=inside & (c < C), other=LEAST)
            value = _join(value, x, KIND, PACKED)
        values = (value,)  # type: ignore[assignment]
    else:
        # every place under the block is loaded once and joined to each output whose window has it
        REACH_H: tl.constexpr = (HIGH - 1) * STRIDE_H + (KERNEL_H - 1) * DILATION_H + 1
        REACH_W: tl.constexpr = (WIDE - 1) * STRIDE_W + (KERNEL_W - 1) * DILATION_W + 1
        for deep in tl.static_range(0, KERNEL_D * DILATION_D, DILATION_D):
            for down in tl.static_range(0, REACH_H, DILATION_H if HIGH == 1 else 1):
                for across in tl.static_range(0, REACH_W, DILATION_W if WIDE == 1 else 1):
                    inside = is_block
                    if IS_PADDED:
                        inside = inside & (front + deep >= 0) & (top + down >= 0) & (left + across >= 0)
                        inside = inside & (front + deep < IN_D) & (top + down < IN_H) & (left + across < IN_W)
                    at = start + (deep * X_DEPTH + down * X_LINE + across * X_COLUMN)
                    x = tl.load(at, mask=inside & (c < C), other=LEAST)
                    for out in tl.static_range(HIGH * WIDE):
                        values = _join_window(
                            values, x, out, down - out // WIDE * STRIDE_H, across - out % WIDE * STRIDE_W,
                            KERNEL_H, KERNEL_W, DILATION_H, DILATION_W, KIND, PACKED,
                        )  # fmt: skip
    for out in tl.static_range(HIGH * WIDE):
        h, w, value = line + out // WIDE, column + out % WIDE, values[out]
        if KIND == "mean" and IS_COUNTED:
            count = _counted(front + BEFORE_D, COUNTED_D, KERNEL_D, DILATION_D)
            count *= _counted(h * STRIDE_H - PAD_H + BEFORE_H, COUNTED_H, KERNEL_H, DILATION_H)
            count *= _counted(w * STRIDE_W - PAD_W + BEFORE_W, COUNTED_W, KERNEL_W, DILATION_W)
            value *= 1.0 / count.to(tl.float32)
        elif KIND == "mean":
            value *= 1.0 / (KERNEL_D * KERNEL_H * KERNEL_W)
        elif KIND == "norm2":
            value = tl.sqrt_rn(value)
        if not ELEMENT.is_int():
            value = value.to(tl.float32)
        row = (image * OUT_D + d) * OUT_H + h
        mask = is_block & (h < OUT_H) & (w < OUT_W) & (c < C)
        if IS_PLANES:
            EPILOGUE(value, row, w, mask, pointers)
        else:
            EPILOGUE(value, row * OUT_W + w, c, mask, pointers)
