"""Convolutions in one, two and three dimensions, and how ONNX spells their padding."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypedDict, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from ridgeline.kernels.floor.registry import floor

_CONV: dict[int, Callable[..., Any]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_CONV_TRANSPOSE: dict[int, Callable[..., Any]] = {
    1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d,
}  # fmt: skip


class WindowAttrs(TypedDict, total=False):
    """How a window moves over an image."""

    auto_pad: str
    dilations: Sequence[int] | None
    pads: Sequence[int] | None
    strides: Sequence[int] | None


def steps_of(attrs: WindowAttrs, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Strides and dilations, one of each per spatial axis."""
    return tuple(attrs.get("strides") or (1,) * rank), tuple(attrs.get("dilations") or (1,) * rank)


def window_pads(
    sizes: Sequence[int], kernel: Sequence[int], attrs: WindowAttrs
) -> tuple[list[int], list[int]]:
    """Padding before and after each spatial axis."""
    pads, auto_pad = attrs.get("pads"), attrs.get("auto_pad", "NOTSET")
    rank = len(sizes)
    if auto_pad in ("NOTSET", ""):
        explicit = list(pads) if pads is not None else [0] * (2 * rank)
        return explicit[:rank], explicit[rank:]
    if auto_pad == "VALID":
        return [0] * rank, [0] * rank
    before, after = [], []
    strides, dilations = steps_of(attrs, rank)
    for size, taps, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        total = max((math.ceil(size / stride) - 1) * stride + (taps - 1) * dilation + 1 - size, 0)
        small, large = total // 2, total - total // 2
        before.append(large if auto_pad == "SAME_LOWER" else small)
        after.append(small if auto_pad == "SAME_LOWER" else large)
    return before, after


def padded(x: Tensor, before: Sequence[int], after: Sequence[int], *, value: float = 0.0) -> Tensor:
    """`x` with its trailing axes padded; a negative amount crops."""
    flat = [amount for pair in zip(reversed(before), reversed(after), strict=True) for amount in pair]
    return F.pad(x, flat, value=value) if any(flat) else x


@floor("Conv")
def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    **attrs: Unpack[WindowAttrs],
) -> Tensor:
    rank = x.ndim - 2
    strides, dilations = steps_of(attrs, rank)
    before, after = window_pads(x.shape[2:], weight.shape[2:], attrs)
    if before != after:
        x, before = padded(x, before, after), [0] * rank
    result: Tensor = _CONV[rank](x, weight, bias, strides, tuple(before), dilations, group)
    return result


@floor("ConvTranspose")
def conv_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    **attrs: Unpack[WindowAttrs],
) -> Tensor:
    rank = x.ndim - 2
    strides, dilations = steps_of(attrs, rank)
    pads, auto_pad = attrs.get("pads"), attrs.get("auto_pad", "NOTSET")
    extra = list(output_padding or [0] * rank)
    before = list(pads[:rank]) if pads is not None else [0] * rank
    after = list(pads[rank:]) if pads is not None else [0] * rank
    wanted = list(output_shape[-rank:]) if output_shape is not None else None
    if wanted is None and auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [size * stride for size, stride in zip(x.shape[2:], strides, strict=True)]
    if wanted is not None:
        for d in range(rank):
            reach = (x.shape[2 + d] - 1) * strides[d] + (weight.shape[2 + d] - 1) * dilations[d] + 1
            total = reach + extra[d] - wanted[d]
            if output_shape is None:  # SAME takes nothing away where the kernel is smaller than the stride
                total = max(total, 0)
            # an odd element too many is cut at the start, unless SAME_UPPER asks for the end
            before[d] = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
            after[d] = total - before[d]
    run = _CONV_TRANSPOSE[rank]
    is_native = before == after and min(before) >= 0
    if is_native and all(e < max(s, d) for e, s, d in zip(extra, strides, dilations, strict=True)):
        result: Tensor = run(x, weight, bias, strides, tuple(before), tuple(extra), group, dilations)
        return result
    full = run(x, weight, None, strides, 0, 0, group, dilations)
    result = padded(full, [-b for b in before], [e - a for e, a in zip(extra, after, strict=True)])
    return result if bias is None else result + bias.reshape(-1, *(1,) * rank)


@floor("DeformConv")
def deform_conv(
    x: Tensor,
    weight: Tensor,
    offset: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    dilations: Sequence[int] = (1, 1),
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    offset_group: int = 1,
    pads: Sequence[int] = (0, 0, 0, 0),
    strides: Sequence[int] = (1, 1),
) -> Tensor:
    n, channels, height, width = x.shape
    out_channels, _, kh, kw = weight.shape
    oh, ow = offset.shape[2:]
    shift = offset.reshape(n, offset_group, kh, kw, 2, oh, ow)
    rows = (torch.arange(oh) * strides[0] - pads[0]).reshape(1, 1, oh, 1)
    cols = (torch.arange(ow) * strides[1] - pads[1]).reshape(1, 1, 1, ow)
    rows = rows + (torch.arange(kh) * dilations[0]).reshape(kh, 1, 1, 1)
    cols = cols + (torch.arange(kw) * dilations[1]).reshape(1, kw, 1, 1)
    at = torch.stack([cols.to(x.device) + shift[:, :, :, :, 1], rows.to(x.device) + shift[:, :, :, :, 0]], -1)
    # pixel i is at (2 i + 1) / size - 1 when corners are not aligned, which also holds for one pixel
    # in float64: a place between pixels, told as a share of the image, loses its last bits in float32
    scale = torch.tensor([width, height], dtype=torch.float64, device=x.device)
    grid = ((2 * at.double() + 1) / scale - 1).reshape(n * offset_group, kh * kw * oh, ow, 2)
    pixels = x.double().reshape(n * offset_group, channels // offset_group, height, width)
    picked = F.grid_sample(pixels, grid, align_corners=False).to(x.dtype)
    picked = picked.reshape(n, offset_group, channels // offset_group, kh * kw, oh * ow)
    if mask is not None:
        picked = picked * mask.reshape(n, offset_group, 1, kh * kw, oh * ow)
    columns = picked.reshape(n, group, channels // group * kh * kw, oh * ow)
    kernels = weight.reshape(group, out_channels // group, -1)
    result = torch.matmul(kernels, columns).reshape(n, out_channels, oh, ow)
    return result if bias is None else result + bias.reshape(-1, 1, 1)


@floor("CausalConvWithState")
def causal_conv_with_state(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    past_state: Tensor | None = None,
    *,
    activation: str = "none",
) -> tuple[Tensor, Tensor]:
    reach = weight.shape[2] - 1
    past = x.new_zeros(*x.shape[:2], reach) if past_state is None else past_state
    joined = torch.cat([past, x], dim=2)
    result = F.conv1d(joined, weight, bias, groups=x.shape[1])
    if activation in ("silu", "swish"):
        result = F.silu(result)
    return result, joined[:, :, joined.shape[2] - reach :]
