"""Reductions, softmaxes, arg-reductions and running sums. Half types are summed in float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ridgeline.kernels.floor.dtypes import ends, widened
from ridgeline.kernels.floor.integers import in_order, through_int64
from ridgeline.kernels.floor.pointwise import absolute
from ridgeline.kernels.floor.registry import floor, placed

Reduction = Callable[[Tensor, tuple[int, ...], bool], Tensor]


def _reduction(
    key: str,
    function: Reduction,
    *,
    before: Callable[[Tensor], Tensor] | None = None,
    into: Callable[..., Tensor] | None = None,
) -> None:
    """An ONNX Reduce*: axes as an input, `noop_with_empty_axes`, fp32 state.

    `before` maps each element; `into` is torch's own reduction of the same meaning, with an `out=`.
    """

    def run(
        x: Tensor,
        axes: Tensor | None = None,
        *,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
        out: Tensor | None = None,
    ) -> Tensor:
        along = () if axes is None else tuple(axes.tolist())
        if not along and noop_with_empty_axes:
            return placed((before(widened(x)) if before else x).to(x.dtype), out)
        if out is not None and into and along and x.numel() and x.dtype in (torch.float32, torch.float64):
            return into(x, along, keepdim=bool(keepdims), out=out)
        made = function(widened(x), along or tuple(range(x.ndim)), bool(keepdims))
        return placed(made.to(x.dtype), out)

    floor(key)(run)


def _prod(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    for axis in sorted((axis % x.ndim for axis in axes), reverse=True):
        x = x.prod(axis, keepdim=keepdims)
    return x


def _mean(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    if x.dtype.is_floating_point:
        return x.mean(axes, keepdim=keepdims)
    # the sum wraps in its own type, and the quotient is a double's, as in the onnx reference
    return (_sum(x, axes, keepdims).double() / math.prod(x.shape[axis] for axis in axes)).trunc()


@in_order
def _extreme(x: Tensor, axes: tuple[int, ...], keepdims: bool, *, greatest: bool) -> Tensor:
    if any(x.shape[axis] == 0 for axis in axes):
        shape = [1 if axis in {a % x.ndim for a in axes} else size for axis, size in enumerate(x.shape)]
        empty = x.new_full(shape, ends(x.dtype)[0 if greatest else 1])
        return empty if keepdims else empty.squeeze(axes)
    return (torch.amax if greatest else torch.amin)(x, axes, keepdim=keepdims)


def _log_sum_exp(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    return torch.logsumexp(_float(x), axes, keepdim=keepdims)


def _float(x: Tensor) -> Tensor:
    return x if x.dtype.is_floating_point else x.double()


@through_int64
def _sum(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    return x.sum(axes, keepdim=keepdims, dtype=x.dtype)


_square = through_int64(torch.square)

_reduction("ReduceSum", _sum, into=torch.sum)
_reduction("ReduceMean", _mean, into=torch.mean)
_reduction("ReduceProd", _prod)
_reduction("ReduceMax", lambda x, axes, keep: _extreme(x, axes, keep, greatest=True), into=torch.amax)
_reduction("ReduceMin", lambda x, axes, keep: _extreme(x, axes, keep, greatest=False), into=torch.amin)
_reduction("ReduceL1", lambda x, axes, keep: _sum(absolute(x), axes, keep), before=absolute)
_reduction("ReduceL2", lambda x, axes, keep: _float(_sum(_square(x), axes, keep)).sqrt(),
           before=lambda x: _float(_square(x)).sqrt())  # fmt: skip
_reduction("ReduceSumSquare", lambda x, axes, keep: _sum(_square(x), axes, keep), before=_square)
_reduction("ReduceLogSum", lambda x, axes, keep: _float(_sum(x, axes, keep)).log(), before=torch.log)
_reduction("ReduceLogSumExp", _log_sum_exp)


@floor("Softmax")
def softmax(x: Tensor, *, axis: int = -1, out: Tensor | None = None) -> Tensor:
    return torch.softmax(x, axis, out=out)


@floor("LogSoftmax")
def log_softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    return torch.log_softmax(x, axis)


@floor("Hardmax")
def hardmax(x: Tensor, *, axis: int = -1) -> Tensor:
    if not x.numel():
        return x.clone()
    return torch.zeros_like(x).scatter(axis, arg_max(x, axis=axis), 1)


def _arg_extreme(
    x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0, extreme: Callable[..., Tensor]
) -> Tensor:
    if select_last_index:
        flipped = _arg_extreme(x.flip(axis), axis=axis, keepdims=keepdims, extreme=extreme)
        return x.shape[axis] - 1 - flipped
    # torch.argmax promises no particular one among equals; the comparison does
    best = extreme(x, axis, keepdim=True)
    # a NaN is the best of its row, and equals nothing
    is_best = (x == best) | torch.isnan(x) if x.dtype.is_floating_point else x == best
    return is_best.to(torch.uint8).argmax(axis, keepdim=bool(keepdims))


arg_max = floor("ArgMax")(partial(_arg_extreme, extreme=torch.amax))
floor("ArgMin")(partial(_arg_extreme, extreme=torch.amin))


def _running(
    x: Tensor,
    axis: Tensor,
    *,
    exclusive: int = 0,
    reverse: int = 0,
    start: int,
    function: Callable[..., Tensor],
) -> Tensor:
    along = int(axis.item())
    if reverse:
        x = x.flip(along)
    if exclusive and x.shape[along]:
        first = torch.full_like(x.narrow(along, 0, 1), start)
        x = torch.cat([first, x.narrow(along, 0, x.shape[along] - 1)], dim=along)
    result = function(widened(x), along).to(x.dtype)
    return result.flip(along) if reverse else result


floor("CumSum")(partial(_running, start=0, function=torch.cumsum))
floor("CumProd")(partial(_running, start=1, function=torch.cumprod))


@floor("LpNormalization")
def lp_normalization(x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    wide = widened(x)
    norm = torch.linalg.vector_norm(wide, p, dim=axis, keepdim=True)
    return torch.where(norm == 0, 0, wide / norm).to(x.dtype)
