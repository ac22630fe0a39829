"""Activations: pointwise maps with parameters and the gated forms."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ridgeline.kernels.floor.registry import floor

# torch's functions whose parameters have ONNX's names and defaults
_PLAIN: dict[str, Callable[..., Tensor]] = {
    "Elu": F.elu, "Celu": F.celu, "Mish": F.mish, "Softsign": F.softsign,
}  # fmt: skip
for _key, _function in _PLAIN.items():
    floor(_key)(_function)


@floor("Relu")
def relu(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    return torch.relu(x) if out is None else torch.clamp_min(x, 0, out=out)


@floor("LeakyRelu")
def leaky_relu(x: Tensor, *, alpha: float = 0.01, out: Tensor | None = None) -> Tensor:
    if out is None:
        return F.leaky_relu(x, alpha)
    return torch.ops.aten.leaky_relu.out(x, alpha, out=out)  # type: ignore[no-any-return]


@floor("PRelu")
def prelu(x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x < 0, x * slope, x)


@floor("Selu")
def selu(
    x: Tensor, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875
) -> Tensor:
    return F.elu(x, alpha) * gamma


@floor("HardSigmoid")
def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5, out: Tensor | None = None) -> Tensor:
    # torch's one-pass form has a slope of 1/6, which a float32 attribute meets only to float32 precision
    if beta != 0.5 or abs(alpha - 1 / 6) >= 1e-7 or x.dtype == torch.float64:
        return torch.mul(x, alpha, out=out).add_(beta).clamp_(0, 1)
    if out is None:
        return F.hardsigmoid(x)
    return torch.ops.aten.hardsigmoid.out(x, out=out)  # type: ignore[no-any-return]


@floor("HardSwish")
def hard_swish(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    # torch's squares overflow
    return torch.where(x >= 3, x, F.hardswish(x), out=out)


@floor("ThresholdedRelu")
def thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return torch.where(x > alpha, x, 0)


@floor("Shrink")
def shrink(x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    low = torch.where(x < -lambd, x + bias, 0)
    return torch.where(x > lambd, x - bias, low).to(x.dtype)


# from here on Gelu is x to the last digit of a double; torch's products overflow further on
_GELU_IS_X = 16


@floor("Gelu")
def gelu(x: Tensor, *, approximate: str = "none", out: Tensor | None = None) -> Tensor:
    return torch.where(x > _GELU_IS_X, x, F.gelu(x, approximate=approximate), out=out)


@floor("Swish")
def swish(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return F.silu(x) if alpha == 1.0 else x * torch.sigmoid(alpha * x)


@floor("Softplus")
def softplus(x: Tensor) -> Tensor:
    # torch's threshold of 20 drops exp(-20), which float64 can still see
    return F.softplus(x, threshold=40)
