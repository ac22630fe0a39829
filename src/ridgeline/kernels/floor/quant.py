"""Quantised numbers: to and from scales and zero points, and the integer products built on them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ridgeline.kernels.elements import SUB_BYTE
from ridgeline.kernels.floor.conv import conv
from ridgeline.kernels.floor.dtypes import DTYPES, no_torch_type
from ridgeline.kernels.floor.pointwise import convert
from ridgeline.kernels.floor.registry import floor
from ridgeline.kernels.floor.sub_byte import bounds, closed, opened


def _aligned(parameter: Tensor, x: Tensor, *, axis: int, block_size: int) -> Tensor:
    """A scale or zero point that broadcasts over `x`: for all of it, per slice of `axis`, or per block."""
    if parameter.numel() == 1:
        return parameter.reshape(())
    if not block_size:
        shape = [1] * x.ndim
        shape[axis] = parameter.numel()
        return parameter.reshape(shape)
    return parameter.repeat_interleave(block_size, axis).narrow(axis, 0, x.shape[axis])


@floor("QuantizeLinear", why_not=no_torch_type)
def quantize_linear(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Tensor:
    dtype = DTYPES[output_dtype] if output_dtype else torch.uint8
    dtype = dtype if zero_point is None else zero_point.dtype
    step = _aligned(scale, x, axis=axis, block_size=block_size)
    wide = DTYPES[precision] if precision else torch.float32
    levels = x.to(wide) / step.to(wide)
    if dtype.is_floating_point:
        return convert(levels, dtype, saturate=saturate)
    levels = levels.round()
    if zero_point is not None:
        # int64 does not convert to unsigned 16 bits and back in every torch: floats do
        zero = opened(zero_point).to(torch.int64)
        levels = levels + _aligned(zero, x, axis=axis, block_size=block_size).to(wide)
    low, high = bounds(dtype)
    # a NaN becomes the least level, as in ONNX Runtime
    levels = levels.nan_to_num_(nan=float(low)).clamp(low, high).to(torch.int32)
    return closed(levels, dtype) if dtype in SUB_BYTE else levels.to(dtype)


@floor("DequantizeLinear", why_not=no_torch_type)
def dequantize_linear(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Tensor:
    levels = opened(x).to(torch.float32)
    if zero_point is not None and not zero_point.dtype.is_floating_point:
        levels = levels - _aligned(opened(zero_point).to(torch.float32), x, axis=axis, block_size=block_size)
    result = levels * _aligned(scale, x, axis=axis, block_size=block_size).to(torch.float32)
    return result.to(DTYPES[output_dtype] if output_dtype else scale.dtype)


@floor("DynamicQuantizeLinear")
def dynamic_quantize_linear(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if not x.numel():
        return x.to(torch.uint8), x.new_ones(()), torch.zeros((), dtype=torch.uint8, device=x.device)
    low, high = x.amin().clamp(max=0), x.amax().clamp(min=0)
    scale = torch.where(high == low, 1.0, (high - low) / 255)
    zero = (-low / scale).clamp(0, 255).round()
    levels = ((x / scale).round() + zero).clamp(0, 255)
    return levels.to(torch.uint8), scale, zero.to(torch.uint8)


def _centred(x: Tensor, zero_point: Tensor | None, *, axis: int) -> Tensor:
    """int32 levels around zero; a vector of zero points lies along `axis`."""
    levels = x.to(torch.int32)
    if zero_point is None:
        return levels
    zero = zero_point.to(torch.int32)
    is_vector = zero.ndim < 2 or zero.numel() == 1
    return levels - (_aligned(zero, x, axis=axis, block_size=0) if is_vector else zero)


@floor("MatMulInteger")
def matmul_integer(
    a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    return torch.matmul(_centred(a, a_zero, axis=-2 if a.ndim > 1 else 0), _centred(b, b_zero, axis=-1))


def _levels_conv(
    x: Tensor, x_zero: Tensor | None, weight: Tensor, w_zero: Tensor | None, bias: Tensor | None, attrs: Any
) -> Tensor:
    """Torch has no integer convolution; in double every sum below 2^53 is exact."""
    centred = _centred(x, x_zero, axis=1).double(), _centred(weight, w_zero, axis=0).double()
    return conv(*centred, None if bias is None else bias.double(), **attrs)


@floor("ConvInteger")
def conv_integer(
    x: Tensor, weight: Tensor, x_zero: Tensor | None = None, w_zero: Tensor | None = None, **attrs: Any
) -> Tensor:
    return _levels_conv(x, x_zero, weight, w_zero, None, attrs).to(torch.int32)


def _requantized(levels: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    shifted = (levels * scale).round() + zero_point.to(torch.float64)
    return shifted.clamp(*bounds(zero_point.dtype)).to(zero_point.dtype)


@floor("QLinearMatMul")
def qlinear_matmul(
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
) -> Tensor:
    row_scale = a_scale.reshape(-1, 1) if a_scale.numel() > 1 else a_scale.reshape(())
    column_scale = b_scale if b_scale.numel() > 1 else b_scale.reshape(())
    levels = torch.matmul(_centred(a, a_zero, axis=-2), _centred(b, b_zero, axis=-1))
    return _requantized(levels.double(), row_scale.double() * column_scale / y_scale, y_zero)


@floor("QLinearConv")
def qlinear_conv(
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    weight: Tensor,
    w_scale: Tensor,
    w_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    bias: Tensor | None = None,
    **attrs: Any,
) -> Tensor:
    levels = _levels_conv(x, x_zero, weight, w_zero, bias, attrs)
    per_channel = (x_scale.double() * w_scale / y_scale).reshape(-1, *(1,) * (x.ndim - 2))
    return _requantized(levels, per_channel, y_zero)
