"""Ops that look up or place elements by index: gather, scatter, one-hot, top-k, unique, non-zero."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ridgeline.kernels.floor.dtypes import no_torch_type
from ridgeline.kernels.floor.integers import THIN_UNSIGNED, ordered, unordered
from ridgeline.kernels.floor.registry import floor, placed

_REDUCE = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _wrapped(indices: Tensor, size: int) -> Tensor:
    """Indices below zero count from the end."""
    indices = indices.to(torch.int64)
    return torch.where(indices < 0, indices + size, indices)


@floor("Gather", why_not=no_torch_type)
def gather(x: Tensor, indices: Tensor, *, axis: int = 0, out: Tensor | None = None) -> Tensor:
    axis %= x.ndim
    if indices.ndim == 0 and indices.is_cpu:
        return placed(x.select(axis, int(indices.item())), out)
    rows = _wrapped(indices, x.shape[axis]).reshape(-1)
    if out is not None and axis == 0 and indices.ndim and out.is_contiguous():
        torch.index_select(x, 0, rows, out=out.view(indices.numel(), *x.shape[1:]))
        return out
    taken = x.index_select(axis, rows)
    return placed(taken.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])), out)


@floor("GatherElements")
def gather_elements(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    return torch.gather(x, axis, _wrapped(indices, x.shape[axis]))


def _flat_positions(indices: Tensor, sizes: Sequence[int]) -> Tensor:
    """The last axis holds coordinates: their position in row-major order."""
    flat = torch.zeros(indices.shape[:-1], dtype=torch.int64, device=indices.device)
    for i, size in enumerate(sizes):
        flat = flat * size + _wrapped(indices[..., i], size)
    return flat


@floor("GatherND")
def gather_nd(x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    depth = indices.shape[-1]
    batch, picked, rest = (
        x.shape[:batch_dims],
        x.shape[batch_dims : batch_dims + depth],
        x.shape[batch_dims + depth :],
    )
    n_batch, n_picked = batch.numel(), picked.numel()
    flat = _flat_positions(indices, picked).reshape(n_batch, -1)
    flat = flat + torch.arange(n_batch, device=x.device)[:, None] * n_picked
    rows = x.reshape(n_batch * n_picked, *rest).index_select(0, flat.flatten())
    return rows.reshape((*indices.shape[:-1], *rest))


@floor("ScatterElements")
def scatter_elements(
    x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none"
) -> Tensor:
    where = _wrapped(indices, x.shape[axis])
    if reduction == "none":
        return x.scatter(axis, where, updates)
    return x.scatter_reduce(axis, where, updates, _REDUCE[reduction])


floor("Scatter")(scatter_elements)


@floor("ScatterND")
def scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    depth = indices.shape[-1]
    flat = _flat_positions(indices, x.shape[:depth]).flatten()
    rest = x.shape[depth:]
    rows = x.reshape(-1, *rest).clone()
    parts = updates.reshape(-1, *rest)
    if reduction == "none":
        rows[flat] = parts
    else:
        spread = flat.reshape(-1, *(1,) * len(rest)).expand(parts.shape)
        rows.scatter_reduce_(0, spread, parts, _REDUCE[reduction])
    return rows.reshape(x.shape)


@floor("TensorScatter")
def tensor_scatter(
    cache: Tensor,
    update: Tensor,
    write_indices: Tensor | None = None,
    *,
    mode: str = "linear",
    axis: int = -2,
) -> Tensor:
    axis %= cache.ndim
    steps = torch.arange(update.shape[axis], device=cache.device)
    start = torch.zeros(cache.shape[0], dtype=torch.int64) if write_indices is None else write_indices
    where = start.to(cache.device)[:, None] + steps  # [batch, steps]
    if mode == "circular":
        where = where % cache.shape[axis]
    shape = [1] * cache.ndim
    shape[0], shape[axis] = where.shape
    return cache.scatter(axis, where.reshape(shape).expand(update.shape), update)


@floor("Compress")
def compress(x: Tensor, condition: Tensor, *, axis: int | None = None) -> Tensor:
    chosen = condition.nonzero().flatten()
    return x.flatten().index_select(0, chosen) if axis is None else x.index_select(axis, chosen)


@floor("NonZero")
def non_zero(x: Tensor) -> Tensor:
    return (x if x.ndim else x[None]).nonzero().T.contiguous()


@floor("OneHot")
def one_hot(indices: Tensor, depth: Tensor, values: Tensor, *, axis: int = -1) -> Tensor:
    size = int(depth.item())
    axis = axis + indices.ndim + 1 if axis < 0 else axis
    where = _wrapped(indices, size).unsqueeze(axis)
    classes = torch.arange(size, device=indices.device).reshape(-1, *(1,) * (indices.ndim - axis))
    return torch.where(where == classes, values[1], values[0])


@floor("TopK")
def top_k(
    x: Tensor, k: Tensor, *, axis: int = -1, largest: int = 1, sorted: int = 1
) -> tuple[Tensor, Tensor]:
    count = int(k.item())
    if x.is_cpu and x.dtype == torch.float32 and 0 < 4 * count < x.shape[axis]:
        found = torch.topk(x, count, dim=axis, largest=bool(largest))
        if _has_no_ties(x, found.values, axis, largest=bool(largest)):
            return found.values, found.indices
    keys = ordered(x) if x.dtype in THIN_UNSIGNED else x
    # the lower index comes first among equals, which torch.topk does not promise
    values, indices = torch.sort(keys, dim=axis, descending=bool(largest), stable=True)
    values = values.narrow(axis, 0, count)
    return unordered(values, x.dtype) if x.dtype in THIN_UNSIGNED else values, indices.narrow(axis, 0, count)


def _has_no_ties(x: Tensor, top: Tensor, axis: int, *, largest: bool) -> bool:
    """Whether the chosen values, sorted, differ from each other and from all that were left out."""
    count = top.shape[axis]
    edge = top.narrow(axis, count - 1, 1)
    within = (x >= edge if largest else x <= edge).sum(axis)
    neighbours = top.narrow(axis, 0, count - 1) == top.narrow(axis, 1, count - 1)
    return bool((within == count).all()) and not bool(neighbours.any())


@floor("Unique")
def unique(x: Tensor, *, axis: int | None = None, sorted: int = 1, n_outputs: int = 4) -> tuple[Tensor, ...]:
    values, inverse, counts = torch.unique(x, sorted=True, return_inverse=True, return_counts=True, dim=axis)
    n = counts.numel()
    inverse = inverse.flatten()
    first = torch.full((n,), inverse.numel(), dtype=torch.int64, device=x.device)
    first = first.scatter_reduce(0, inverse, torch.arange(inverse.numel(), device=x.device), "amin")
    if not sorted:
        order = first.argsort()
        rank = torch.empty_like(order)
        rank[order] = torch.arange(n, device=x.device)
        values, first, counts = values.index_select(axis or 0, order), first[order], counts[order]
        inverse = rank[inverse]
    return (values, first, inverse, counts)[:n_outputs]
