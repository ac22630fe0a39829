"""Max pooling over channels-last images, of any type: floats, halves, and codes of 8 bits as they are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


def max_pool_ref(
    x: Tensor, *, kernel: Sequence[int], stride: Sequence[int], pads: Sequence[int], dilation: Sequence[int]
) -> Tensor:
    """The greatest number of every window; `pads` are (top, left, bottom, right), and never the greatest."""
    top, left, bottom, right = pads
    padded = F.pad(x, (left, right, top, bottom), value=-torch.inf)
    return F.max_pool2d(padded, tuple(kernel), tuple(stride), 0, tuple(dilation))


@triton.jit
def max_pool(
    x_ptr, y_ptr, positions,
    C: tl.constexpr, IN_H: tl.constexpr, IN_W: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    LEAST: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """y[p, c] = max over the window of x; a NaN in it stays. Grid: blocks of positions, blocks of channels.

    Numbers of 8 and 16 bits are compared in float32, which holds all of them. LEAST is the least of the type.
    """
    NOTHING: tl.constexpr = 0 if x_ptr.dtype.element_ty.is_int() else 0.0
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    column = p % OUT_W * STRIDE_W - PAD_W
    line = p // OUT_W % OUT_H * STRIDE_H - PAD_H
    image = (p // (OUT_W * OUT_H)).to(tl.int64) * (IN_H * IN_W * C)
    best = tl.full((BP, BC), LEAST, tl.float32)
    for row in tl.static_range(KERNEL_H):
        for place in tl.static_range(KERNEL_W):
            h, w = line + row * DILATION_H, column + place * DILATION_W
            inside = (p < positions) & (h >= 0) & (h < IN_H) & (w >= 0) & (w < IN_W)
            at = x_ptr + (image + (h * IN_W + w) * C)[:, None] + c[None, :]
            mask = inside[:, None] & (c < C)[None, :]
            found = tl.load(at, mask=mask, other=NOTHING).to(tl.float32)
            found = tl.where(mask, found, LEAST)
            best = tl.maximum(best, found, propagate_nan=tl.PropagateNan.ALL)
    to = y_ptr + p.to(tl.int64)[:, None] * C + c[None, :]
    tl.store(to, best.to(y_ptr.dtype.element_ty), mask=(p < positions)[:, None] & (c < C)[None, :])
