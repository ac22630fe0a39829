"""Normalisations. Means and variances of half types are kept in float32."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ridgeline.kernels.floor.dtypes import DTYPES, widened
from ridgeline.kernels.floor.registry import floor


def _overflows(inv_std: Tensor) -> bool:
    """Whether the squares of a row overflowed: torch's running sums then give NaN where the formula gives 0.

    Not checked on a GPU, since reading the result would wait for it.
    """
    return inv_std.is_cpu and not bool(torch.isfinite(inv_std).all())


def _normalized(x: Tensor, axes: tuple[int, ...], epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """The normalised rows, their means and inverse deviations, computed step by step by the formula."""
    mean = x.mean(axes, keepdim=True)
    centred = x - mean
    inv_std = (centred.square().mean(axes, keepdim=True) + epsilon).sqrt().reciprocal()
    return centred * inv_std, mean, inv_std


def _fits(x: Tensor, shape: torch.Size, *parameters: Tensor | None) -> bool:
    """Whether torch's own function takes this scale and bias."""
    return all(p is None or (p.shape == shape and p.dtype == x.dtype) for p in parameters)


def layer_normalization(
    x: Tensor,
    scale: Tensor | None,
    bias: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    n_outputs: int = 1,
) -> tuple[Tensor, ...]:
    shape = x.shape[axis:] if axis else x.shape
    if n_outputs == 1 and _fits(x, shape, scale, bias):
        y, _, inv_std = torch.native_layer_norm(x, shape, scale, bias, epsilon)
        if not _overflows(inv_std):
            return (y,)
    wide = x.to(DTYPES[stash_type]) if x.dtype != torch.float64 else x
    y, mean, inv_std = torch.native_layer_norm(wide, shape, None, None, epsilon)
    if _overflows(inv_std):
        y, mean, inv_std = _normalized(wide, tuple(range(x.ndim - len(shape), x.ndim)), epsilon)
    y = y.to(x.dtype)
    y = y if scale is None else y * scale
    return y if bias is None else y + bias, mean, inv_std


def _layer_normalization_out(
    x: Tensor,
    scale: Tensor | None,
    bias: Tensor | None = None,
    *,
    out: Sequence[Tensor],
    axis: int = -1,
    epsilon: float = 1e-5,
    **attrs: int,
) -> None:
    shape = x.shape[axis:] if axis else x.shape
    is_wide = x.dtype in (torch.float32, torch.float64)
    is_plain = is_wide and len(out) == 1 and x.is_contiguous() and out[0].is_contiguous()
    if is_plain and _fits(x, shape, scale, bias):
        rows = (*x.shape[: x.ndim - len(shape)], *(1,) * len(shape))
        mean, inv_std = x.new_empty(rows), x.new_empty(rows)
        torch.ops.aten.native_layer_norm.out(
            x, list(shape), scale, bias, epsilon, out0=out[0], out1=mean, out2=inv_std
        )
        if not _overflows(inv_std):
            return
    made = layer_normalization(x, scale, bias, axis=axis, epsilon=epsilon, n_outputs=len(out), **attrs)
    for target, source in zip(out, made, strict=False):
        target.copy_(source)


floor("LayerNormalization", out=_layer_normalization_out)(layer_normalization)


@floor("RMSNormalization")
def rms_normalization(
    x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:
    along = tuple(range(axis % x.ndim, x.ndim))
    wide = widened(x)
    inverse = torch.rsqrt(wide.square().mean(along, keepdim=True) + epsilon)
    return (wide * inverse).to(x.dtype) * scale


@floor("BatchNormalization")
def batch_normalization(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> tuple[Tensor, ...]:
    wide = widened(x)
    used = (mean, var)
    if training_mode:
        along = tuple(axis for axis in range(x.ndim) if axis != 1)
        used = (wide.mean(along), wide.var(along, unbiased=False))
    elif mean.dtype == x.dtype == scale.dtype:
        return (F.batch_norm(x, mean, var, scale, bias, False, 0.0, epsilon),)
    here_mean, here_var, gain, shift = (p.to(wide.dtype) for p in (*used, scale, bias))
    y = F.batch_norm(wide, here_mean, here_var, gain, shift, False, 0.0, epsilon).to(x.dtype)
    if not training_mode:
        return (y,)
    kept = (
        old * momentum + new.to(old.dtype) * (1 - momentum)
        for old, new in ((mean, here_mean), (var, here_var))
    )
    return (y, *kept)


@floor("InstanceNormalization")
def instance_normalization(x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    return _group_norm(x, x.shape[1], scale, bias, epsilon)


@floor("GroupNormalization")
def group_normalization(
    x: Tensor, scale: Tensor, bias: Tensor, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:
    return _group_norm(x, num_groups, scale, bias, epsilon)


def _group_norm(x: Tensor, groups: int, scale: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    n, channels, *sizes = x.shape
    if not x.numel():
        return x.clone()
    # torch's own group norm multiplies before it subtracts the mean, which cancels where that is large
    wide = widened(x).reshape(n, groups, -1)
    normed = _normalized(wide, (2,), epsilon)[0].reshape(x.shape)
    gain, shift = (v.to(wide.dtype).reshape(1, channels, *(1,) * len(sizes)) for v in (scale, bias))
    return (normed * gain + shift).to(x.dtype)


@floor("LRN")
def local_response_normalization(
    x: Tensor, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> Tensor:
    before = (size - 1) // 2
    squares = widened(x).square().flatten(2) if x.ndim > 2 else widened(x).square().unsqueeze(2)
    near = F.pad(squares, (0, 0, before, size - 1 - before)).unfold(1, size, 1).sum(-1).reshape(x.shape)
    return (x / (bias + alpha / size * near) ** beta).to(x.dtype)


@floor("MeanVarianceNormalization")
def mean_variance_normalization(x: Tensor, *, axes: Sequence[int] = (0, 2, 3)) -> Tensor:
    wide = widened(x)
    var, mean = torch.var_mean(wide, tuple(axes), unbiased=False, keepdim=True)
    # ONNX defines the variance by the mean of squares, which may leave the range where the variance does not
    squares = wide.square().mean(tuple(axes), keepdim=True)
    var = torch.where(torch.isfinite(squares), var, squares - mean.square())
    return ((wide - mean) / (var.sqrt() + 1e-9)).to(x.dtype)
