"""Boxes and grids: GridSample, AffineGrid, RoiAlign, MaxRoiPool."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ridgeline.kernels.floor.registry import floor


@floor("GridSample")
def grid_sample(
    x: Tensor, grid: Tensor, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Tensor:
    kind = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    if x.ndim in (4, 5) and not (kind == "bicubic" and x.ndim == 5):
        return F.grid_sample(x, grid.to(x.dtype), kind, padding_mode, bool(align_corners))
    return _sample_any(x, grid, align_corners=bool(align_corners), kind=kind, padding_mode=padding_mode)


def _sample_any(x: Tensor, grid: Tensor, *, align_corners: bool, kind: str, padding_mode: str) -> Tensor:
    """Any number of spatial axes, by a weighted sum over the corners of each sample's cell."""
    rank = x.ndim - 2
    flat = grid.reshape(grid.shape[0], -1, rank)
    total = x.new_zeros(*x.shape[:2], flat.shape[1])
    taps: list[list[tuple[Tensor, Tensor]]] = []
    for d in range(rank):
        size = x.shape[2 + d]
        # the grid's last axis counts from the innermost spatial axis outwards
        unit = flat[..., rank - 1 - d]
        at = (unit + 1) / 2 * (size - 1) if align_corners else ((unit + 1) * size - 1) / 2
        if padding_mode == "border" and kind != "bicubic":
            at = at.clamp(0, size - 1)
        elif padding_mode == "reflection" and kind != "bicubic":
            at = _reflected(at, size, align_corners)
        taps.append(_axis_taps(at, kind))
    for combination in itertools.product(*taps):
        weight = torch.ones_like(flat[..., 0])
        place = torch.zeros_like(weight, dtype=torch.int64)
        for d, (position, share) in enumerate(combination):
            size = x.shape[2 + d]
            if padding_mode == "reflection":
                position = _reflected(position.to(x.dtype), size, align_corners).round().long()
            is_inside = (position >= 0) & (position < size)
            weight = weight * (torch.where(is_inside, share, 0) if padding_mode == "zeros" else share)
            place = place * size + position.clamp(0, size - 1)
        picked = x.flatten(2).gather(2, place[:, None, :].expand(-1, x.shape[1], -1))
        total = total + picked * weight[:, None, :].to(x.dtype)
    return total.reshape(*x.shape[:2], *grid.shape[1:-1])


def _axis_taps(at: Tensor, kind: str) -> list[tuple[Tensor, Tensor]]:
    if kind == "nearest":
        return [(at.round().long(), torch.ones_like(at))]
    low = at.floor()
    part = at - low
    if kind == "bilinear":
        return [(low.long(), 1 - part), (low.long() + 1, part)]
    return [(low.long() + step, _cubic(part - step)) for step in (-1, 0, 1, 2)]


def _cubic(distance: Tensor) -> Tensor:
    a, d = -0.75, distance.abs()
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return torch.where(d <= 1, near, torch.where(d < 2, far, 0))


def _reflected(at: Tensor, size: int, align_corners: bool) -> Tensor:
    low, span = (0.0, float(size - 1)) if align_corners else (-0.5, float(size))
    if span == 0:
        return torch.zeros_like(at)
    folded = (at - low).remainder(2 * span)
    return (torch.minimum(folded, 2 * span - folded) + low).clamp(0, size - 1)


@floor("AffineGrid")
def affine_grid(theta: Tensor, size: Tensor, *, align_corners: int = 0) -> Tensor:
    return F.affine_grid(theta, size.tolist(), align_corners=bool(align_corners))


@floor("RoiAlign")
def roi_align(
    x: Tensor,
    rois: Tensor,
    batch_indices: Tensor,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Tensor:
    is_half_pixel = coordinate_transformation_mode == "half_pixel"
    made = []
    for box, image in zip(rois.tolist(), batch_indices.tolist(), strict=True):
        left, top, right, bottom = (edge * spatial_scale - 0.5 * is_half_pixel for edge in box)
        height, width = bottom - top, right - left
        if not is_half_pixel:
            height, width = max(height, 1.0), max(width, 1.0)
        rows = _bin_taps(top, height, output_height, x.shape[2], sampling_ratio, x)
        cols = _bin_taps(left, width, output_width, x.shape[3], sampling_ratio, x)
        made.append(_pooled_box(x[image], rows, cols, mode=mode))
    return torch.stack(made) if made else x.new_zeros(0, x.shape[1], output_height, output_width)


def _bin_taps(
    start: float, length: float, n_bins: int, size: int, sampling_ratio: int, x: Tensor
) -> tuple[Tensor, Tensor]:
    """Positions and weights of the two pixels around each sample: [bins, samples, 2] each."""
    step = length / n_bins
    n_samples = sampling_ratio if sampling_ratio > 0 else max(math.ceil(step), 0)
    bins = torch.arange(n_bins, dtype=x.dtype)[:, None] * step
    at = start + bins + (torch.arange(n_samples, dtype=x.dtype) + 0.5) * step / max(n_samples, 1)
    is_inside = (at >= -1) & (at <= size)
    low = at.clamp(min=0).floor().clamp(max=size - 1)
    part = torch.where(low >= size - 1, 0, at.clamp(min=0) - low)
    places = torch.stack([low, (low + 1).clamp(max=size - 1)], -1).long()
    weights = torch.stack([1 - part, part], -1) * is_inside[..., None]
    return places.to(x.device), weights.to(x)


def _pooled_box(
    image: Tensor, rows: tuple[Tensor, Tensor], cols: tuple[Tensor, Tensor], *, mode: str
) -> Tensor:
    (row_at, row_weight), (col_at, col_weight) = rows, cols
    picked = image[:, row_at][..., col_at]  # [C, bins, samples, 2, bins, samples, 2]
    shares = row_weight[:, :, :, None, None, None] * col_weight
    weighted = (picked * shares).permute(0, 1, 4, 2, 5, 3, 6)  # [C, bins, bins, samples, samples, 2, 2]
    if mode == "max":
        return weighted.flatten(3).amax(-1)
    n_samples = max(weighted.shape[3] * weighted.shape[4], 1)
    return weighted.flatten(3).sum(-1) / n_samples


def _bins(first: int, last: int, count: int, size: int) -> list[tuple[int, int]]:
    """Where each of the bins between two pixels begins and ends, inside an axis of `size` pixels."""
    step = max(last - first + 1, 1) / count
    edges = ((math.floor(i * step), math.ceil((i + 1) * step)) for i in range(count))
    return [(min(max(low + first, 0), size), min(max(high + first, 0), size)) for low, high in edges]


@floor("MaxRoiPool")
def max_roi_pool(
    x: Tensor, rois: Tensor, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0
) -> Tensor:
    height, width = x.shape[2:]
    result = x.new_zeros(rois.shape[0], x.shape[1], *pooled_shape)
    for n, (image, *box) in enumerate(rois.tolist()):
        left, top, right, bottom = (math.floor(edge * spatial_scale + 0.5) for edge in box)
        rows = _bins(top, bottom, pooled_shape[0], height)
        cols = _bins(left, right, pooled_shape[1], width)
        for (i, (r0, r1)), (j, (c0, c1)) in itertools.product(enumerate(rows), enumerate(cols)):
            if r1 > r0 and c1 > c0:
                result[n, :, i, j] = x[int(image), :, r0:r1, c0:c1].amax((1, 2))
    return result
