"""Ops that move or rename elements without computing: reshape, transpose, slice, pad, concat, split."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ridgeline.ir.moves import cut_places
from ridgeline.kernels.floor.dtypes import no_torch_type
from ridgeline.kernels.floor.registry import copies, floor

Outs = Sequence[Tensor]


def _identity(x: Tensor) -> Tensor:
    return x


floor("Identity", view=True, out=copies(_identity), takes_strings=True)(_identity)


def reshape(x: Tensor, shape: Tensor, *, allowzero: int = 0) -> Tensor:
    sizes = shape.tolist()
    if not allowzero:
        sizes = [x.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)]
    if x.numel() == 0 and -1 in sizes:
        # torch calls -1 ambiguous beside a 0: work it out from the other axes
        known = math.prod(size for size in sizes if size != -1)
        sizes = [(x.numel() // known if known else 0) if size == -1 else size for size in sizes]
    return x.reshape(sizes)


def squeeze(x: Tensor, axes: Tensor | None = None) -> Tensor:
    return x.squeeze() if axes is None else x.squeeze(tuple(axes.reshape(-1).tolist()))


def unsqueeze(x: Tensor, axes: Tensor) -> Tensor:
    rank = x.ndim + axes.numel()
    for axis in sorted(axis % rank for axis in axes.reshape(-1).tolist()):
        x = x.unsqueeze(axis)
    return x


def flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    split = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:split]), math.prod(x.shape[split:]))


_VIEWS: dict[str, Callable[..., Tensor]] = {
    "Reshape": reshape, "Squeeze": squeeze, "Unsqueeze": unsqueeze, "Flatten": flatten,
}  # fmt: skip
for _key, _run in _VIEWS.items():
    floor(_key, view=True, out=copies(_run), why_not=no_torch_type)(_run)


def transpose(x: Tensor, *, perm: Sequence[int] | None = None) -> Tensor:
    return x.permute(tuple(perm) if perm is not None else tuple(reversed(range(x.ndim))))


floor("Transpose", out=copies(transpose), why_not=no_torch_type)(transpose)


def expand(x: Tensor, shape: Tensor) -> Tensor:
    wanted = shape.tolist()
    rank = max(x.ndim, len(wanted))
    have, wanted = [1] * (rank - x.ndim) + list(x.shape), [1] * (rank - len(wanted)) + wanted
    return x.expand([a if b == 1 else b for a, b in zip(have, wanted, strict=True)])


floor("Expand", out=copies(expand), why_not=no_torch_type)(expand)


@floor("Tile")
def tile(x: Tensor, repeats: Tensor) -> Tensor:
    return x.repeat(repeats.tolist())


@floor("Concat", why_not=no_torch_type)
def concat(*inputs: Tensor, axis: int, out: Tensor | None = None) -> Tensor:
    return torch.cat(inputs, dim=axis, out=out)


def split(
    x: Tensor,
    sizes: Tensor | None = None,
    *,
    axis: int = 0,
    num_outputs: int | None = None,
    n_outputs: int = 1,
) -> tuple[Tensor, ...]:
    if sizes is not None:
        return x.split_with_sizes(sizes.tolist(), axis)
    count = num_outputs or n_outputs
    total = x.shape[axis]
    chunk = -(-total // count)
    return x.split_with_sizes([min(chunk, max(total - chunk * i, 0)) for i in range(count)], axis)


def _split_out(x: Tensor, sizes: Tensor | None = None, *, out: Outs, **attrs: Any) -> None:
    for target, part in zip(out, split(x, sizes, n_outputs=len(out), **attrs), strict=True):
        target.copy_(part)


floor("Split", out=_split_out, why_not=no_torch_type)(split)


def slice_(
    x: Tensor, starts: Tensor, ends: Tensor, axes: Tensor | None = None, steps: Tensor | None = None
) -> Tensor:
    bounds = [[] if bound is None else bound.tolist() for bound in (starts, ends, axes, steps)]
    for axis, places in cut_places(x.shape, *bounds).items():
        if not places:
            x = x.narrow(axis, 0, 0)
            continue
        ends_at = sorted((places[0], places[-1]))
        x = _along(x, axis, slice(ends_at[0], ends_at[1] + 1, abs(places.step)))
        x = x.flip(axis) if places.step < 0 else x
    return x


def _along(x: Tensor, axis: int, part: slice) -> Tensor:
    return x[(*(slice(None),) * (axis % x.ndim), part)]


floor("Slice", out=copies(slice_), why_not=no_torch_type)(slice_)


@floor("Pad")
def pad(
    x: Tensor,
    pads: Tensor,
    constant_value: Tensor | None = None,
    axes: Tensor | None = None,
    *,
    mode: str = "constant",
) -> Tensor:
    along = list(range(x.ndim)) if axes is None else [axis % x.ndim for axis in axes.tolist()]
    amounts = pads.tolist()
    before, after = [0] * x.ndim, [0] * x.ndim
    for i, axis in enumerate(along):
        before[axis], after[axis] = amounts[i], amounts[i + len(along)]
    # what is cut away is not there to be repeated
    for axis, (low, high) in enumerate(zip(before, after, strict=True)):
        start, stop = max(-low, 0), x.shape[axis] - max(-high, 0)
        x = x.narrow(axis, min(start, x.shape[axis]), max(stop - start, 0))
    before, after = [max(n, 0) for n in before], [max(n, 0) for n in after]
    if mode == "constant":
        return _filled(x, before, after, constant_value)
    for axis, (low, high) in enumerate(zip(before, after, strict=True)):
        if low or high:
            x = x.index_select(axis, _source_of_padding(x.shape[axis], low, high, mode).to(x.device))
    return x


def _filled(x: Tensor, before: Sequence[int], after: Sequence[int], value: Tensor | None) -> Tensor:
    is_zero = value is None or value.numel() == 0
    if is_zero or x.dtype.is_floating_point:
        flat = [amount for axis in reversed(range(x.ndim)) for amount in (before[axis], after[axis])]
        return F.pad(x, flat, value=0 if is_zero or value is None else value.item())
    # F.pad takes its value through a double, which holds no large int64
    assert value is not None, "a value that is absent is zero"
    sizes = [sum(parts) for parts in zip(before, x.shape, after, strict=True)]
    made = value.to(x.device).reshape((1,) * x.ndim).expand(sizes).clone()
    made[tuple(slice(low, low + size) for low, size in zip(before, x.shape, strict=True))] = x
    return made


def _source_of_padding(size: int, before: int, after: int, mode: str) -> Tensor:
    """For each position of the padded axis, the position in the input that it repeats."""
    position = torch.arange(-before, size + after)
    if mode == "wrap":
        return position % size
    if mode == "edge" or size == 1:
        return position.clamp(0, size - 1)
    period = 2 * (size - 1)
    folded = position % period
    return torch.minimum(folded, period - folded)


@floor("CenterCropPad")
def center_crop_pad(x: Tensor, shape: Tensor, *, axes: Sequence[int] | None = None) -> Tensor:
    flat = [0] * (2 * x.ndim)
    for axis, size in zip(range(x.ndim) if axes is None else axes, shape.tolist(), strict=True):
        extra = size - x.shape[axis]
        before = extra // 2 if extra >= 0 else -(-extra // 2)
        last_first = 2 * (x.ndim - 1 - axis % x.ndim)
        flat[last_first], flat[last_first + 1] = before, extra - before
    return F.pad(x, flat)


@floor("DepthToSpace")
def depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    if mode == "CRD":
        return F.pixel_shuffle(x, blocksize)
    n, c, h, w = x.shape
    parts = x.reshape(n, blocksize, blocksize, c // blocksize**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return parts.reshape(n, c // blocksize**2, h * blocksize, w * blocksize)


@floor("SpaceToDepth")
def space_to_depth(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    if mode == "CRD":
        return F.pixel_unshuffle(x, blocksize)
    n, c, h, w = x.shape
    parts = x.reshape(n, c, h // blocksize, blocksize, w // blocksize, blocksize).permute(0, 3, 5, 1, 2, 4)
    return parts.reshape(n, c * blocksize**2, h // blocksize, w // blocksize)


@floor("ReverseSequence")
def reverse_sequence(x: Tensor, lengths: Tensor, *, batch_axis: int = 1, time_axis: int = 0) -> Tensor:
    moved = x.movedim((time_axis, batch_axis), (0, 1))
    steps = torch.arange(moved.shape[0], device=x.device)[:, None]
    source = torch.where(steps < lengths, lengths - 1 - steps, steps)
    rows = torch.arange(moved.shape[1], device=x.device)
    return moved[source, rows].movedim((0, 1), (time_axis, batch_axis))


@floor("Col2Im")
def col2im(
    x: Tensor,
    image_shape: Tensor,
    block_shape: Tensor,
    *,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    image, block = image_shape.tolist(), block_shape.tolist()
    rank = len(image)
    dilations, strides, pads = dilations or [1] * rank, strides or [1] * rank, pads or [0] * (2 * rank)
    padded = [image[d] + pads[d] + pads[d + rank] for d in range(rank)]
    # where each element of each block lands in the flat padded image
    target = torch.zeros(1, 1, dtype=torch.int64)  # [block elements, blocks]
    for d in range(rank):
        taps = torch.arange(block[d]) * dilations[d]
        starts = torch.arange(0, padded[d] - (block[d] - 1) * dilations[d], strides[d])
        here = taps[:, None] + starts[None, :]
        target = (target[:, None, :, None] * padded[d] + here[None, :, None, :]).flatten(0, 1).flatten(-2)
    n, channels = x.shape[0], x.shape[1] // target.shape[0]
    flat = x.new_zeros(n, channels, math.prod(padded))
    flat.index_add_(2, target.flatten().to(x.device), x.reshape(n, channels, -1))
    result = flat.reshape(n, channels, *padded)
    for d in range(rank):
        result = result.narrow(2 + d, pads[d], image[d])
    return result


@floor("Shape")
def shape_of(x: Tensor, *, start: int = 0, end: int | None = None) -> Tensor:
    return torch.tensor(x.shape[start:end], dtype=torch.int64)


@floor("Size")
def size_of(x: Tensor) -> Tensor:
    return torch.tensor(x.numel(), dtype=torch.int64)
