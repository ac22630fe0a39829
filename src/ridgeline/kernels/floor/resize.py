"""Resize in every mode: each axis on its own, from taps and weights worked out on the host.

Torch's interpolate takes the cases it shares with ONNX; the rest are weighted sums of rows.
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

# a coordinate this near to the middle of two pixels is there (measured: ONNX Runtime 1.31 says so up to 1e-6)
TIE = 1e-6


@dataclass(frozen=True)
class Attributes:
    """The attributes of a Resize, with ONNX's defaults."""

    antialias: int = 0
    axes: Sequence[int] | None = None
    coordinate_transformation_mode: str = "half_pixel"
    cubic_coeff_a: float = -0.75
    exclude_outside: int = 0
    extrapolation_value: float = 0.0
    keep_aspect_ratio_policy: str = "stretch"
    mode: str = "nearest"
    nearest_mode: str = "round_prefer_floor"


@dataclass(frozen=True)
class Axis:
    """How one axis is resized. `scale` is as given, which `out_size / size` only approximates."""

    size: int
    out_size: int
    scale: float
    roi: tuple[float, float]
    coordinates: str

    def source(self, mode: str) -> np.ndarray:
        """Where each output position lies on the input axis: in float32, as ONNX Runtime finds it.

        Where a coordinate comes out on a tie, its rounding decides which pixel is the nearest.
        """
        at, half = np.arange(self.out_size, dtype=np.float32), np.float32(0.5)
        scale, size, out_size = np.float32(self.scale), np.float32(self.size), np.float32(self.out_size)
        made: np.ndarray
        if self.coordinates == "asymmetric":
            made = at / scale
        elif self.coordinates == "align_corners":
            # ONNX's own tests stretch over scale * size, whole or not; ONNX Runtime over the output's size
            length = out_size if mode == "nearest" else scale * size
            made = np.zeros_like(at) if length == 1 else at * (size - 1) / (length - 1)
        elif self.coordinates == "tf_crop_and_resize":
            low, high = np.float32(self.roi[0]), np.float32(self.roi[1])
            if out_size == 1:
                made = np.full_like(at, half * (low + high) * (size - 1))
            else:
                made = low * (size - 1) + at * (high - low) * (size - 1) / (out_size - 1)
        elif self.coordinates == "pytorch_half_pixel" and out_size == 1:
            made = np.zeros_like(at)
        elif self.coordinates == "tf_half_pixel_for_nn":  # of opsets 11 and 12
            made = (at + half) / scale
        elif self.coordinates == "half_pixel_symmetric":
            offset = np.float64(size / 2 * (1 - out_size / (scale * size)))
            made = (offset + (at + np.float64(0.5)) / np.float64(scale) - 0.5).astype(np.float32)
        else:
            made = (at + half) / scale - half
        return made


def _nearest(at: np.ndarray, nearest_mode: str) -> np.ndarray:
    if nearest_mode == "round_prefer_floor":
        at = np.ceil(at.astype(np.float64) - 0.5 - TIE)
    elif nearest_mode == "round_prefer_ceil":
        at = np.floor(at.astype(np.float64) + 0.5 + TIE)
    elif nearest_mode == "ceil":
        at = np.ceil(at)
    whole: np.ndarray = np.floor(at).astype(np.int64)
    return whole


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    d: np.ndarray = np.abs(distance)
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def taps_of(axis: Axis, how: Attributes) -> tuple[np.ndarray, np.ndarray]:
    """Input positions and the share of each in float64: [out_size, taps] both."""
    at = axis.source(how.mode)
    if how.mode == "nearest":
        places = _nearest(at, how.nearest_mode)[:, None]
        shares = np.ones(places.shape)
    else:
        places, shares = _weighted_taps(axis, at.astype(np.float64), how)
    return np.clip(places, 0, axis.size - 1), shares


def _weighted_taps(axis: Axis, at: np.ndarray, how: Attributes) -> tuple[np.ndarray, np.ndarray]:
    """As `taps_of`, with positions that may lie outside."""
    reach = 1 if how.mode == "linear" else 2
    shrink = min(axis.scale, 1.0) if how.antialias else 1.0
    first = int(np.floor(-reach / shrink) + 1)
    steps = np.arange(first, 2 - first)
    # the pixel left of a whole coordinate is its floor, as in the specification's ratio of 1
    left = np.ceil(at).astype(np.int64) - 1
    distance = (steps[None, :] - (at - left)[:, None]) * shrink
    if how.mode == "cubic":
        weights = _cubic(distance, how.cubic_coeff_a)
    else:
        weights = np.clip(1 - np.abs(distance), 0, 1)
    if how.antialias:
        weights = weights / weights.sum(-1, keepdims=True)
    taps = left[:, None] + steps[None, :]
    if how.exclude_outside:
        weights = np.where((taps < 0) | (taps >= axis.size), 0.0, weights)
        weights = weights / np.maximum(weights.sum(-1, keepdims=True), np.finfo(np.float64).tiny)
    return taps, weights


def changed_axes(
    shape: Sequence[int], roi: Tensor | None, scales: Tensor | None, sizes: Tensor | None, how: Attributes
) -> dict[int, Axis]:
    """The axes that change, by number."""
    rank, axes, policy = len(shape), how.axes, how.keep_aspect_ratio_policy
    coordinates = how.coordinate_transformation_mode
    along = [axis % rank for axis in axes] if axes is not None else list(range(rank))
    inside = [shape[axis] for axis in along]
    if scales is not None and scales.numel():
        factors = [float(f) for f in scales.tolist()]
        outside = [int(np.float32(f) * np.float32(n)) for f, n in zip(factors, inside, strict=True)]
    else:
        assert sizes is not None, "Resize needs scales or sizes"
        outside = sizes.tolist()
        factors = [m / n if n else 1.0 for m, n in zip(outside, inside, strict=True)]
        if policy != "stretch":
            common = (min if policy == "not_larger" else max)(factors)
            factors = [common] * len(along)
            outside = [int(common * n + 0.5) for n in inside]
    corners = roi.tolist() if roi is not None and roi.numel() else [0.0] * len(along) + [1.0] * len(along)
    found = {
        axis: Axis(inside[i], outside[i], factors[i], (corners[i], corners[i + len(along)]), coordinates)
        for i, axis in enumerate(along)
    }
    is_cropped = coordinates == "tf_crop_and_resize"
    if outside == inside and not is_cropped:
        return {}  # a scale that leaves every size as it is leaves every element as it is
    return {
        axis: one
        for axis, one in found.items()
        if one.size != one.out_size or one.scale != 1.0 or (is_cropped and one.roi != (0.0, 1.0))
    }


_TORCH_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


def _torch_options(x: Tensor, axes: dict[int, Axis], how: Attributes) -> dict[str, Any] | None:
    """Options of F.interpolate when it computes the same; None when it does not."""
    mode = how.mode
    rank = x.ndim - 2
    if (
        rank not in _TORCH_LINEAR
        or not axes
        or min(axes) < 2
        or how.antialias
        or not x.dtype.is_floating_point
    ):
        return None
    if mode == "cubic" and (rank != 2 or how.cubic_coeff_a != -0.75):
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
    **attrs: Any,
) -> Tensor:
    how = Attributes(**attrs)
    changed = changed_axes(x.shape, roi, scales, sizes, how)
    shape = [changed[d].out_size if d in changed else x.shape[d] for d in range(x.ndim)]
    if 0 in shape:
        return x.new_zeros(shape)
    if how.mode == "nearest":
        return _resize_nearest(x, changed, how)
    options = _torch_options(x, changed, how)
    if options is not None and not how.exclude_outside:
        return F.interpolate(x, **options)
    wide = widened(x) if x.dtype.is_floating_point else x.double()
    for number, axis in changed.items():
        total = _weighted(wide, number, *taps_of(axis, how))
        wide = _extrapolated(total, number, axis, axis.source(how.mode), how.extrapolation_value)
    return _saturated(wide, x.dtype)


def _weighted(x: Tensor, number: int, taps: np.ndarray, weights: np.ndarray) -> Tensor:
    """The sum over taps."""
    shape = (-1, *(1,) * (x.ndim - 1 - number))
    total = None
    for places, shares in zip(taps.T, weights.T, strict=True):
        if not shares.any():
            continue
        share = torch.from_numpy(shares).to(x).reshape(shape)
        part = x.index_select(number, torch.from_numpy(places).to(x.device)) * share
        total = part if total is None else total + part
    assert total is not None, "the weights of every position add up to one"
    return total


def _resize_nearest(x: Tensor, changed: dict[int, Axis], how: Attributes) -> Tensor:
    rows = {number: taps_of(axis, how)[0][:, 0] for number, axis in changed.items()}
    has_plain_axes = x.ndim in (4, 5) and bool(rows) and min(rows) >= 2 and x.dtype.is_floating_point
    if has_plain_axes and all(_is_floor(rows[number], axis) for number, axis in changed.items()):
        size = [changed[d].out_size if d in changed else x.shape[d] for d in range(2, x.ndim)]
        return F.interpolate(x, size=size, mode="nearest")
    for number, axis in changed.items():
        x = x.index_select(number, torch.from_numpy(rows[number]).to(x.device))
        x = _extrapolated(x, number, axis, axis.source("nearest"), how.extrapolation_value)
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
