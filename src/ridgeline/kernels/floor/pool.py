"""Pooling over windows and over whole images. Windows that torch cannot take are gathered by strides."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Required, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from ridgeline.kernels.floor.conv import WindowAttrs, padded, steps_of, window_pads
from ridgeline.kernels.floor.dtypes import ends, widened
from ridgeline.kernels.floor.registry import floor, placed

_MAX_POOL: dict[int, Callable[..., Any]] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVG_POOL: dict[int, Callable[..., Any]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
_LEVELS = frozenset({torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2})
_TORCH_POOLS = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16})


@dataclass(frozen=True)
class Window:
    """A pooling window at known sizes. `beyond` is what ceil_mode adds after the padding."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    beyond: tuple[int, ...]

    @property
    def is_plain(self) -> bool:
        """Torch's pools take it: the padding is symmetric, within half the kernel, and ceil adds nothing."""
        fits = all(2 * b <= k for b, k in zip(self.before, self.kernel, strict=True))
        return fits and self.before == self.after and not any(self.beyond)

    def pad(self, x: Tensor, value: float) -> Tensor:
        ends = [a + b for a, b in zip(self.after, self.beyond, strict=True)]
        return padded(x, self.before, ends, value=value)

    def gather(self, x: Tensor) -> Tensor:
        """Windows of a padded `x`, each flat in the last axis."""
        rank = len(self.kernel)
        for d in range(rank):
            reach = (self.kernel[d] - 1) * self.dilations[d] + 1
            x = x.unfold(2 + d, reach, self.strides[d])[..., :: self.dilations[d]]
        return x.flatten(2 + rank)


class PoolAttrs(WindowAttrs, total=False):
    """What every pooling op says of its windows."""

    kernel_shape: Required[Sequence[int]]
    ceil_mode: int


def window_of(sizes: Sequence[int], attrs: PoolAttrs) -> Window:
    """The window of a pool over an image of these sizes."""
    kernel_shape = attrs["kernel_shape"]
    rank = len(kernel_shape)
    strides, dilations = steps_of(attrs, rank)
    before, after = window_pads(sizes, kernel_shape, attrs)
    beyond = [0] * rank
    for d in range(rank):
        free = sizes[d] + before[d] + after[d] - (kernel_shape[d] - 1) * dilations[d] - 1
        if attrs.get("ceil_mode") and free % strides[d]:
            steps = free // strides[d] + 1
            # a window that would start in the padding at the end is left out
            if steps * strides[d] < sizes[d] + before[d]:
                beyond[d] = steps * strides[d] - free
    return Window(tuple(kernel_shape), strides, dilations, tuple(before), tuple(after), tuple(beyond))


@floor("MaxPool")
def max_pool(
    x: Tensor,
    *,
    storage_order: int = 0,
    n_outputs: int = 1,
    **attrs: Unpack[PoolAttrs],
) -> tuple[Tensor, ...]:
    window = window_of(x.shape[2:], attrs)
    if n_outputs == 1 and x.dtype in _TORCH_POOLS:
        run = _MAX_POOL[len(window.kernel)]
        if window.is_plain:
            return (run(x, window.kernel, window.strides, window.before, window.dilations),)
        wide = window.pad(x, -float("inf"))
        return (run(wide, window.kernel, window.strides, 0, window.dilations),)
    if n_outputs == 1 and x.dtype in _LEVELS:
        # torch pools wide floats only, and float32 holds every level
        (made,) = max_pool(x.to(torch.float32), **attrs)
        least = torch.finfo(x.dtype).min if x.dtype.is_floating_point else ends(x.dtype)[0]
        return (made.clamp_(min=least).to(x.dtype),)
    taps = window.gather(window.pad(x, ends(x.dtype)[0]))
    values = taps.amax(-1)
    if n_outputs == 1:
        return (values,)
    # the first of the greatest, and padding is none of them
    is_inside = window.gather(window.pad(torch.ones_like(x[:1, :1], dtype=torch.uint8), 0)) > 0
    is_best = taps == values[..., None]
    is_best = is_best | torch.isnan(taps) if x.dtype.is_floating_point else is_best
    where = (is_best & is_inside).to(torch.uint8).argmax(-1)
    return values, _flat_indices(x, window, where, column_major=bool(storage_order))


def _flat_indices(x: Tensor, window: Window, where: Tensor, *, column_major: bool) -> Tensor:
    """Positions in the whole unpadded tensor of each window's greatest element."""
    rank = len(window.kernel)
    coords: list[Tensor] = []
    rest = where
    for d in reversed(range(rank)):
        tap, rest = rest % window.kernel[d], rest // window.kernel[d]
        start = torch.arange(where.shape[2 + d], device=x.device) * window.strides[d] - window.before[d]
        start = start.reshape(-1, *(1,) * (rank - 1 - d))
        coords.insert(0, start + tap * window.dilations[d])
    order = range(rank)
    flat = torch.zeros_like(where)
    for d in reversed(order) if column_major else order:
        flat = flat * x.shape[2 + d] + coords[d]
    planes = torch.arange(x.shape[0] * x.shape[1], device=x.device) * math.prod(x.shape[2:])
    return flat + planes.reshape(x.shape[0], x.shape[1], *(1,) * rank)


@floor("AveragePool")
def average_pool(
    x: Tensor,
    *,
    count_include_pad: int = 0,
    **attrs: Unpack[PoolAttrs],
) -> Tensor:
    window = window_of(x.shape[2:], attrs)
    if window.is_plain and set(window.dilations) == {1} and x.dtype in _TORCH_POOLS:
        result: Tensor = _AVG_POOL[len(window.kernel)](
            x, window.kernel, window.strides, window.before, False, bool(count_include_pad)
        )
        return result
    total = window.gather(window.pad(widened(x), 0)).sum(-1)
    ones = torch.ones(1, 1, *x.shape[2:], dtype=total.dtype, device=x.device)
    counted = padded(ones, window.before, window.after, value=float(bool(count_include_pad)))
    counted = padded(counted, [0] * len(window.beyond), window.beyond)
    return (total / window.gather(counted).sum(-1)).to(x.dtype)


@floor("LpPool")
def lp_pool(
    x: Tensor,
    *,
    p: int = 2,
    **attrs: Unpack[PoolAttrs],
) -> Tensor:
    window = window_of(x.shape[2:], attrs)
    norm: Tensor = torch.linalg.vector_norm(window.gather(window.pad(widened(x), 0)), p, dim=-1)
    return norm.to(x.dtype)


@floor("MaxUnpool")
def max_unpool(
    x: Tensor,
    indices: Tensor,
    output_shape: Tensor | None = None,
    *,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    rank = len(kernel_shape)
    strides, pads = strides or [1] * rank, pads or [0] * (2 * rank)
    spatial = [
        (x.shape[2 + d] - 1) * strides[d] - pads[d] - pads[d + rank] + kernel_shape[d] for d in range(rank)
    ]
    # indices count in the tensor that was pooled, whose shape a given output_shape only encloses
    result = x.new_zeros(*x.shape[:2], *spatial)
    result.view(-1)[indices.flatten()] = x.flatten()
    if output_shape is None:
        return result
    sizes = output_shape.tolist()
    return padded(result, [0] * rank, [sizes[2 + d] - spatial[d] for d in range(rank)])


def _spatial(x: Tensor) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


@floor("GlobalAveragePool")
def global_average_pool(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    if out is not None and x.dtype in (torch.float32, torch.float64):
        return torch.mean(x, _spatial(x), keepdim=True, out=out)
    return placed(widened(x).mean(_spatial(x), keepdim=True).to(x.dtype), out)


@floor("GlobalMaxPool")
def global_max_pool(x: Tensor) -> Tensor:
    return x.amax(_spatial(x), keepdim=True)


@floor("GlobalLpPool")
def global_lp_pool(x: Tensor, *, p: int = 2) -> Tensor:
    total = widened(x).abs().pow(p).sum(_spatial(x), keepdim=True)
    return total.pow(1 / p).to(x.dtype)
