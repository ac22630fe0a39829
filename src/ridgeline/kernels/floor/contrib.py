"""ONNX Runtime's fused ops (domain com.microsoft) that turn up in optimised models."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ridgeline.kernels.floor.conv import conv
from ridgeline.kernels.floor.dtypes import widened
from ridgeline.kernels.floor.norm import layer_normalization, rms_normalization
from ridgeline.kernels.floor.quant import dequantize_linear, quantize_linear
from ridgeline.kernels.floor.registry import floor


@floor("com.microsoft::FusedMatMul")
def fused_matmul(
    a: Tensor,
    b: Tensor,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Tensor:
    # a batch transpose moves the first axis next to the matrix
    left = a.movedim(0, -2) if transBatchA else a
    right = b.movedim(0, -2) if transBatchB else b
    left = left.transpose(-1, -2) if transA and a.ndim > 1 else left
    right = right.transpose(-1, -2) if transB and b.ndim > 1 else right
    product = torch.matmul(left, right)
    return product if alpha == 1 else product * alpha


_FUSED_ACTIVATIONS: dict[str, Any] = {
    "": lambda x, params: x,
    "Relu": lambda x, params: x.relu_(),
    "Sigmoid": lambda x, params: x.sigmoid_(),
    "Tanh": lambda x, params: x.tanh_(),
    "LeakyRelu": lambda x, params: F.leaky_relu(x, params[0]),
    "Clip": lambda x, params: x.clamp_(params[0], params[1]),
    "HardSigmoid": lambda x, params: x.mul_(params[0]).add_(params[1]).clamp_(0, 1),
}


@floor("com.microsoft::FusedConv")
def fused_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    addend: Tensor | None = None,
    *,
    activation: str = "",
    activation_params: Any = (),
    **attrs: Any,
) -> Tensor:
    result = conv(x, weight, bias, **attrs)
    result = result if addend is None else result.add_(addend)
    activated: Tensor = _FUSED_ACTIVATIONS[activation](result, activation_params)
    return activated


@floor("com.microsoft::Gelu")
@floor("com.microsoft::BiasGelu")
def bias_gelu(x: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.gelu(x if bias is None else x + bias)


@floor("com.microsoft::FastGelu")
def fast_gelu(x: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.gelu(x if bias is None else x + bias, approximate="tanh")


@floor("com.microsoft::QuickGelu")
def quick_gelu(x: Tensor, *, alpha: float = 1.702) -> Tensor:
    return x * torch.sigmoid(alpha * x)


def _skipped(x: Tensor, skip: Tensor, bias: Tensor | None) -> Tensor:
    total = widened(x) + skip
    return (total if bias is None else total + bias).to(x.dtype)


@floor("com.microsoft::SkipLayerNormalization")
def skip_layer_normalization(
    x: Tensor,
    skip: Tensor,
    gamma: Tensor,
    beta: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
) -> tuple[Tensor | None, ...]:
    total = _skipped(x, skip, bias)
    return layer_normalization(total, gamma, beta, epsilon=epsilon)[0], None, None, total


@floor("com.microsoft::SkipSimplifiedLayerNormalization")
def skip_simplified_layer_normalization(
    x: Tensor, skip: Tensor, gamma: Tensor, bias: Tensor | None = None, *, epsilon: float = 1e-12
) -> tuple[Tensor | None, ...]:
    total = _skipped(x, skip, bias)
    return rms_normalization(total, gamma, epsilon=epsilon), None, None, total


floor("SimplifiedLayerNormalization")(rms_normalization)
floor("com.microsoft::QuantizeLinear")(quantize_linear)
floor("com.microsoft::DequantizeLinear")(dequantize_linear)
