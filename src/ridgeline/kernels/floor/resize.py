"""Resize in every mode: each axis on its own, from taps and weights worked out on the host.

Torch's interpolate takes the cases it shares with ONNX; the rest are products with small matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ridgeline.kernels.floor.dtypes import widened
from ridgeline.kernels.floor.registry import floor


@dataclass(frozen=True)
class Axis:
    """How one axis is resized. `scale` is as given, which `out_size / size` only approximates."""

    size: int
    out_size: int
    scale: float
    roi: tuple[float, float]
    coordinates: str

    def source(self) -> np.ndarray:
        """Where each output position lies on the input axis."""
        at, length = np.arange(self.out_size, dtype=np.float64), self.scale * self.size
        if self.coordinates == "asymmetric":
            return at / self.scale
        if self.coordinates == "align_corners":
            return np.zeros_like(at) if length == 1 else at * (self.size - 1) / (length - 1)
        if self.coordinates == "tf_crop_and_resize":
            low, high = self.roi
            span = (high - low) * (self.size - 1)
            return low * (self.size - 1) + (
                np.full_like(at, span / 2) if length == 1 else at * span / (length - 1)
            )
        if self.coordinates == "pytorch_half_pixel" and length == 1:
            return np.zeros_like(at)
        if self.coordinates == "tf_half_pixel_for_nn":  # of opsets 11 and 12
            return (at + 0.5) / self.scale
        half_pixel = (at + 0.5) / self.scale - 0.5
        if self.coordinates == "half_pixel_symmetric":
            return half_pixel + self.size / 2 * (1 - self.out_size / length)
        return half_pixel


def _nearest(at: np.ndarray, nearest_mode: str) -> np.ndarray:
    if nearest_mode == "round_prefer_floor":
        at = np.ceil(at - 0.5)
    elif nearest_mode == "round_prefer_ceil":
        at = np.floor(at + 0.5)
    elif nearest_mode == "ceil":
        at = np.ceil(at)
    whole: np.ndarray = np.floor(at).astype(np.int64)
    return whole


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    d: np.ndarray = np.abs(distance)
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _taps(
    axis: Axis, at: np.ndarray, *, mode: str, antialias: int, cubic_a: float
) -> tuple[np.ndarray, np.ndarray]:
    """Input positions (which may lie outside) and their weights: [out_size, taps] each."""
    reach = 1 if mode == "linear" else 2
    shrink = min(axis.scale, 1.0) if antialias else 1.0
    first = int(np.floor(-reach / shrink) + 1)
    steps = np.arange(first, 2 - first)
    # the pixel left of a whole coordinate is its floor, as in the specification's ratio of 1
    left = np.ceil(at).astype(np.int64) - 1
    distance = (steps[None, :] - (at - left)[:, None]) * shrink
    weights = _cubic(distance, cubic_a) if mode == "cubic" else np.clip(1 - np.abs(distance), 0, 1)
    if antialias:
        weights = weights / weights.sum(-1, keepdims=True)
    return left[:, None] + steps[None, :], weights


def _matrix(
    axis: Axis, at: np.ndarray, *, mode: str, antialias: int, cubic_a: float, exclude_outside: int
) -> np.ndarray:
    """[out_size, size]: what each output position takes of each input position."""
    taps, weights = _taps(axis, at, mode=mode, antialias=antialias, cubic_a=cubic_a)
    if exclude_outside:
        weights = np.where((taps < 0) | (taps >= axis.size), 0.0, weights)
        weights = weights / np.maximum(weights.sum(-1, keepdims=True), np.finfo(np.float64).tiny)
    matrix = np.zeros((axis.out_size, axis.size))
    np.add.at(matrix, (np.arange(axis.out_size)[:, None], np.clip(taps, 0, axis.size - 1)), weights)
    return matrix


def _settle(
    x: Tensor,
    roi: Tensor | None,
    scales: Tensor | None,
    sizes: Tensor | None,
    *,
    axes: Sequence[int] | None,
    policy: str,
    coordinates: str,
) -> dict[int, Axis]:
    """The axes that change, by number."""
    along = [axis % x.ndim for axis in axes] if axes is not None else list(range(x.ndim))
    inside = [x.shape[axis] for axis in along]
    if scales is not None and scales.numel():
        factors = [float(f) for f in scales.tolist()]
        outside = [int(np.floor(f * n)) for f, n in zip(factors, inside, strict=True)]
    else:
        assert sizes is not None, "Resize needs scales or sizes"
        outside = sizes.tolist()
        factors = [m / n for m, n in zip(outside, inside, strict=True)]
        if policy != "stretch":
            common = (min if policy == "not_larger" else max)(factors)
            factors = [common] * len(along)
            outside = [int(common * n + 0.5) for n in inside]
    corners = roi.tolist() if roi is not None and roi.numel() else [0.0] * len(along) + [1.0] * len(along)
    settled = {
        axis: Axis(inside[i], outside[i], factors[i], (corners[i], corners[i + len(along)]), coordinates)
        for i, axis in enumerate(along)
    }
    is_cropped = coordinates == "tf_crop_and_resize"
    return {
        axis: one
        for axis, one in settled.items()
        if one.size != one.out_size or one.scale != 1.0 or (is_cropped and one.roi != (0.0, 1.0))
    }


_TORCH_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


def _torch_options(
    x: Tensor, axes: dict[int, Axis], *, mode: str, antialias: int, cubic_a: float
) -> dict[str, Any] | None:
    """Options of F.interpolate when it computes the same; None when it does not."""
    rank = x.ndim - 2
    if rank not in _TORCH_LINEAR or not axes or min(axes) < 2 or antialias or not x.dtype.is_floating_point:
        return None
    if mode == "cubic" and (rank != 2 or cubic_a != -0.75):
        return None
    # the given scale counts, not the ratio of the sizes: torch sees the ratio alone
    if any(abs(axis.scale * axis.size - axis.out_size) > 1e-6 * axis.out_size for axis in axes.values()):
        return None
    kinds = {axis.coordinates for axis in axes.values()}
    if not kinds <= {"half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "align_corners"}:
        return None
    if "pytorch_half_pixel" in kinds and any(axis.out_size == 1 for axis in axes.values()):
        return None
    size = [axes[2 + d].out_size if 2 + d in axes else x.shape[2 + d] for d in range(rank)]
    kind = "bicubic" if mode == "cubic" else _TORCH_LINEAR[rank]
    return {"size": size, "mode": kind, "align_corners": "align_corners" in kinds}


@floor("Resize")
def resize(
    x: Tensor,
    roi: Tensor | None = None,
    scales: Tensor | None = None,
    sizes: Tensor | None = None,
    *,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:
    changed = _settle(
        x, roi, scales, sizes, axes=axes, policy=keep_aspect_ratio_policy,
        coordinates=coordinate_transformation_mode,
    )  # fmt: skip
    if mode == "nearest":
        return _resize_nearest(x, changed, nearest_mode=nearest_mode, outside_value=extrapolation_value)
    options = _torch_options(x, changed, mode=mode, antialias=antialias, cubic_a=cubic_coeff_a)
    if options is not None and not exclude_outside:
        return F.interpolate(x, **options)
    wide = widened(x) if x.dtype.is_floating_point else x.float()
    for number, axis in changed.items():
        at = axis.source()
        matrix = torch.from_numpy(
            _matrix(
                axis,
                at,
                mode=mode,
                antialias=antialias,
                cubic_a=cubic_coeff_a,
                exclude_outside=exclude_outside,
            )
        ).to(wide)
        total = torch.matmul(wide.movedim(number, -1), matrix.T).movedim(-1, number)
        wide = _extrapolated(total, number, axis, at, extrapolation_value)
    return _saturated(wide, x.dtype)


def _resize_nearest(
    x: Tensor, changed: dict[int, Axis], *, nearest_mode: str, outside_value: float
) -> Tensor:
    rows = {
        number: np.clip(_nearest(axis.source(), nearest_mode), 0, axis.size - 1)
        for number, axis in changed.items()
    }
    has_plain_axes = x.ndim in (4, 5) and bool(rows) and min(rows) >= 2 and x.dtype.is_floating_point
    if has_plain_axes and all(_is_floor(rows[number], axis) for number, axis in changed.items()):
        size = [changed[d].out_size if d in changed else x.shape[d] for d in range(2, x.ndim)]
        return F.interpolate(x, size=size, mode="nearest")
    for number, axis in changed.items():
        x = x.index_select(number, torch.from_numpy(rows[number]).to(x.device))
        x = _extrapolated(x, number, axis, axis.source(), outside_value)
    return x


def _is_floor(rows: np.ndarray, axis: Axis) -> bool:
    """Whether torch's nearest picks the same rows: whole repeats only, where no rounding can differ."""
    repeats, rest = divmod(axis.out_size, axis.size)
    is_repeat = rest == 0 and np.array_equal(rows, np.arange(axis.out_size) // repeats)
    return bool(is_repeat) and axis.coordinates != "tf_crop_and_resize"


def _extrapolated(x: Tensor, number: int, axis: Axis, at: np.ndarray, value: float) -> Tensor:
    if axis.coordinates != "tf_crop_and_resize":
        return x
    is_outside = torch.from_numpy((at < 0) | (at > axis.size - 1)).to(x.device)
    return torch.where(is_outside.reshape(-1, *(1,) * (x.ndim - 1 - number)), value, x).to(x.dtype)


def _saturated(x: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype.is_floating_point:
        return x.to(dtype)
    bounds = torch.iinfo(dtype)
    return x.round().clamp(bounds.min, bounds.max).to(dtype)


@floor("Upsample")
def upsample(x: Tensor, scales: Tensor, *, mode: str = "nearest") -> Tensor:
    return resize(
        x, None, scales, mode=mode, nearest_mode="floor", coordinate_transformation_mode="asymmetric"
    )
