"""Ops that make a tensor out of a shape or a few numbers, and losses: constants, ranges, masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ridgeline.kernels.floor.dtypes import DTYPES, to_tensor
from ridgeline.kernels.floor.registry import floor


@floor("Constant", takes_strings=True)
def constant(
    *,
    value: np.ndarray | None = None,
    value_string: str | None = None,
    value_strings: Sequence[str] | None = None,
    value_float: float | None = None,
    value_floats: Sequence[float] | None = None,
    value_int: int | None = None,
    value_ints: Sequence[int] | None = None,
) -> Any:
    texts = value_string if value_string is not None else value_strings
    if texts is not None:
        return np.array(texts, object)
    if value is not None:
        return value if value.dtype.kind == "O" else to_tensor(value)
    floats = value_float if value_float is not None else value_floats
    if floats is not None:
        return torch.tensor(floats, dtype=torch.float32)
    return torch.tensor(value_int if value_int is not None else value_ints, dtype=torch.int64)


@floor("ConstantOfShape")
def constant_of_shape(shape: Tensor, *, value: np.ndarray | None = None) -> Tensor:
    fill = torch.zeros(1) if value is None else to_tensor(value)
    return fill.reshape(()).expand(shape.tolist()).clone()


@floor("Range")
def range_(start: Tensor, limit: Tensor, delta: Tensor, *, stash_type: int = 1) -> Tensor:
    first, last, step = (x.item() for x in (start, limit, delta))
    count = max(int(np.ceil((last - first) / step)), 0)
    wide = start.double() if start.dtype.is_floating_point else start
    steps = torch.arange(count, dtype=wide.dtype, device=start.device)
    return (wide + steps * step).to(start.dtype)


@floor("EyeLike")
def eye_like(x: Tensor, *, dtype: int | None = None, k: int = 0) -> Tensor:
    rows, cols = x.shape
    places = torch.arange(cols, device=x.device) - torch.arange(rows, device=x.device)[:, None]
    return (places == k).to(x.dtype if dtype is None else DTYPES[dtype])


@floor("Trilu")
def trilu(x: Tensor, k: Tensor | None = None, *, upper: int = 1) -> Tensor:
    diagonal = 0 if k is None else int(k.item())
    # torch wants the diagonal within the matrix's reach
    diagonal = max(-x.shape[-2] - 1, min(diagonal, x.shape[-1] + 1))
    return torch.triu(x, diagonal) if upper else torch.tril(x, diagonal)


def _reduced(loss: Tensor, weight: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / weight.sum()


@floor("NegativeLogLikelihoodLoss")
def nll_loss(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    is_ignored = (
        target == ignore_index if ignore_index is not None else torch.zeros_like(target, dtype=torch.bool)
    )
    labels = torch.where(is_ignored, 0, target).to(torch.int64)
    picked = x.gather(1, labels.unsqueeze(1)).squeeze(1)
    each = torch.ones_like(picked) if weight is None else weight[labels]
    each = torch.where(is_ignored, 0, each)
    return _reduced(-picked * each, each, reduction).to(x.dtype)


@floor("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(
    x: Tensor, target: Tensor, weight: Tensor | None = None, **attrs: Any
) -> tuple[Tensor, Tensor]:
    log_prob = F.log_softmax(x, dim=1)
    return nll_loss(log_prob, target, weight, **attrs), log_prob
