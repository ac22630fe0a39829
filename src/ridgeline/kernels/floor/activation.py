"""Activations: pointwise maps with parameters and the gated forms."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ridgeline.kernels.floor.registry import floor

Outs = Sequence[Tensor]


def _relu_out(x: Tensor, *, out: Outs) -> None:
    torch.clamp_min(x, 0, out=out[0])


floor("Relu", out=_relu_out)(torch.relu)


def _leaky_relu_out(x: Tensor, *, out: Outs, alpha: float = 0.01) -> None:
    torch.ops.aten.leaky_relu.out(x, alpha, out=out[0])


@floor("LeakyRelu", out=_leaky_relu_out)
def leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Tensor:
    return F.leaky_relu(x, alpha)


@floor("PRelu")
def prelu(x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x < 0, x * slope, x)


@floor("Elu")
def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return F.elu(x, alpha)


@floor("Celu")
def celu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return F.celu(x, alpha)


@floor("Selu")
def selu(
    x: Tensor, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875
) -> Tensor:
    return F.elu(x, alpha) * gamma


def _is_torch_hard_sigmoid(x: Tensor, alpha: float, beta: float) -> bool:
    """Torch's one-pass form has a slope of 1/6, which a float32 attribute meets only to float32 precision."""
    return beta == 0.5 and abs(alpha - 1 / 6) < 1e-7 and x.dtype != torch.float64


def _hard_sigmoid_out(x: Tensor, *, out: Outs, alpha: float = 0.2, beta: float = 0.5) -> None:
    if _is_torch_hard_sigmoid(x, alpha, beta):
        torch.ops.aten.hardsigmoid.out(x, out=out[0])
    else:
        torch.mul(x, alpha, out=out[0])
        out[0].add_(beta).clamp_(0, 1)


@floor("HardSigmoid", out=_hard_sigmoid_out)
def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    if _is_torch_hard_sigmoid(x, alpha, beta):
        return F.hardsigmoid(x)
    return (x * alpha + beta).clamp_(0, 1)


def _hard_swish_out(x: Tensor, *, out: Outs) -> None:
    torch.where(x >= 3, x, F.hardswish(x), out=out[0])


@floor("HardSwish", out=_hard_swish_out)
def hard_swish(x: Tensor) -> Tensor:
    # torch's squares overflow
    return torch.where(x >= 3, x, F.hardswish(x))


@floor("ThresholdedRelu")
def thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return torch.where(x > alpha, x, 0)


@floor("Shrink")
def shrink(x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    low = torch.where(x < -lambd, x + bias, 0)
    return torch.where(x > lambd, x - bias, low).to(x.dtype)


# from here on Gelu is x to the last digit of a double; torch's products overflow further on
_GELU_IS_X = 16


def _gelu_out(x: Tensor, *, out: Outs, approximate: str = "none") -> None:
    torch.where(x > _GELU_IS_X, x, F.gelu(x, approximate=approximate), out=out[0])


@floor("Gelu", out=_gelu_out)
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return torch.where(x > _GELU_IS_X, x, F.gelu(x, approximate=approximate))


@floor("Swish")
def swish(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return F.silu(x) if alpha == 1.0 else x * torch.sigmoid(alpha * x)


@floor("Mish")
def mish(x: Tensor) -> Tensor:
    return F.mish(x)


@floor("Softplus")
def softplus(x: Tensor) -> Tensor:
    # torch's threshold of 20 drops exp(-20), which float64 can still see
    return F.softplus(x, threshold=40)


@floor("Softsign")
def softsign(x: Tensor) -> Tensor:
    return F.softsign(x)
