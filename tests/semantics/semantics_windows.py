"""Cases of windows over images: pools, resizes; and attention with its masks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from semantics_case import FLOATS, Case, numpy_type
from semantics_values import few, plain

FIXED = frozenset({1, 2, 3})
COORDINATES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
SCALES = (0.6, 1.3, 2.0, 0.3, 1.7, 3.6)
pool = partial(Case, "pooling")
resize = partial(Case, "resize")
attend = partial(Case, "attention")


def _images(name: str, size: int = 6, *, finite: bool = False, nan: bool = True) -> np.ndarray:
    """Each special value in an image of its own, and images of nothing else."""
    values = few(name)
    if numpy_type(name).kind not in "iub":
        values = values[: None if nan else -1]
        values = values[np.isfinite(values) & (np.abs(values) < 1e4)] if finite else values
    made = np.resize(np.arange(1, 8), (2 * len(values), 1, size, size)).astype(numpy_type(name))
    for number, value in enumerate(values):
        made[number, 0, 2, 3] = value
        made[len(values) + number] = value
    return made


def pools() -> Iterator[Case]:
    windows: tuple[dict[str, Any], ...] = (
        {"kernel_shape": [2, 2]},
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]},
        {"kernel_shape": [3, 2], "pads": [0, 1, 1, 0], "strides": [2, 3], "ceil_mode": 1},
        {"kernel_shape": [2, 2], "dilations": [2, 2]},
        {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER", "strides": [2, 2]},
        {"kernel_shape": [3, 3], "auto_pad": "SAME_LOWER", "strides": [2, 2]},
    )
    for window in windows:
        for name in (*FLOATS[:3], "int8", "uint8"):
            # beside a NaN the maximum is whatever a library's order of comparisons makes it
            yield pool("MaxPool", "images", (_images(name, nan=False),), window)
        yield pool("MaxPool", "images, with places", (_images("float32", nan=False),), window, n_outputs=2)
        for name in FLOATS[:3]:
            images = _images(
                name, nan=name != "float64"
            )  # the reference alone runs doubles, and leaves NaN out
            for include in (0, 1):
                yield pool("AveragePool", "images", (images,), {**window, "count_include_pad": include})
            for p in (1, 2, 3):
                if name != "float64":  # as above, and its windows are others with ceil_mode
                    yield pool("LpPool", "images", (images,), {**window, "p": p})
    for op in ("GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool"):
        for name in FLOATS[:3]:
            if op != "GlobalLpPool" or name != "float64":
                yield pool(op, "images", (_images(name),))
        yield pool(op, "one", (_images("float32", 4)[:, :, :1, :1].copy(),))
        yield pool(op, "empty", (np.zeros((0, 2, 3, 3), "f4"),))
    for op in ("MaxPool", "AveragePool"):
        yield pool(
            op, "a row", (_images("float32", finite=True)[:, 0],), {"kernel_shape": [3], "pads": [1, 1]}
        )
        yield pool(op, "empty", (np.zeros((0, 2, 3, 3), "f4"),), {"kernel_shape": [2, 2]})
        yield pool(op, "one", (np.full((1, 1, 1, 1), 2.5, "f4"),), {"kernel_shape": [1, 1]})


def resizes() -> Iterator[Case]:
    x = np.arange(2 * 5 * 7, dtype="f4").reshape(2, 1, 5, 7)
    for coordinates in COORDINATES:
        for rounding in ROUNDINGS:
            attrs = {
                "mode": "nearest",
                "coordinate_transformation_mode": coordinates,
                "nearest_mode": rounding,
            }
            for scale in SCALES:
                scales = np.array([1, 1, scale, scale], "f4")
                yield resize("Resize", f"scale {scale}", (x, None, scales), attrs, FIXED)
            for size in ((8, 10), (3, 4), (1, 1), (5, 14)):
                inputs = (x, None, None, np.array(size))
                yield resize("Resize", f"size {size}", inputs, {**attrs, "axes": [2, 3]}, FIXED)
        for mode in ("linear", "cubic"):
            attrs = {"mode": mode, "coordinate_transformation_mode": coordinates}
            for scale in SCALES[:-1]:  # of the last one the parties make images of other sizes
                scales = np.array([1, 1, scale, scale], "f4")
                yield resize("Resize", f"scale {scale}", (x, None, scales), attrs, FIXED)
    crop = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize", "axes": [2, 3]}
    window = np.array([0.1, 0.2, 0.8, 0.9], "f4")
    for size in ((8, 10), (5, 10), (5, 7)):
        inputs = (x, window, None, np.array(size))
        yield resize("Resize", f"size {size}", inputs, crop, FIXED)
    twice = np.array([1, 1, 2, 2], "f4")
    for name in (*FLOATS[:3], "int8", "uint8", "int32"):
        for mode in ("nearest", "linear"):
            attrs = {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
            # the reference multiplies every tap, also in `nearest`, and ONNX Runtime those without weight
            is_finite = mode == "linear" or name == "float64"
            yield resize("Resize", "values", (_images(name, 4, finite=is_finite), None, twice), attrs, FIXED)
    yield resize("Resize", "one", (x[:, :, :1, :1], None, twice), {}, FIXED)
    yield resize("Resize", "empty", (x[:0], None, twice), {}, FIXED)
    yield resize("Resize", "to nothing", (x, None, np.array([1, 1, 0.1, 1], "f4")), {}, FIXED)


def attention() -> Iterator[Case]:
    for name in FLOATS[:3]:
        dtype = numpy_type(name)
        q, k, v = (plain(name, 2, 2, 4, 8, seed=i) for i in range(3))
        masks: dict[str, np.ndarray | None] = {"no mask": None}
        keep = np.ones((4, 4), bool)
        keep[1] = False
        keep[2, 1:] = False
        masks["a row of nothing"] = keep
        masks["a mask of bools"] = np.tril(np.ones((4, 4), bool))
        masks["a row of -inf"] = np.where(keep, 0, -np.inf).astype(dtype)
        masks["large and finite"] = np.where(keep, 0, np.finfo(dtype).min).astype(dtype)
        masks["per head"] = plain(name, 2, 2, 4, 4, seed=9)
        for what, mask in masks.items():
            for causal in (0, 1):
                yield attend(
                    "Attention",
                    what,
                    (q, k, v, mask),
                    {"is_causal": causal},
                    frozenset({3}) if what != "per head" else frozenset(),
                    opset=23,
                )
        special = q.copy()
        values = few(name)  # products of the largest overflow in one order of adding and not in another
        for number, value in enumerate(
            values[~(np.abs(values.astype("f8")) == float(ml_dtypes.finfo(dtype).max))]
        ):
            special.reshape(-1, 8)[number, 3] = value
        yield attend("Attention", "special queries", (special, k, v), opset=23)
        yield attend("Attention", "special keys", (q, special, v), opset=23)
        yield attend("Attention", "special values", (q, k, special), opset=23)
        yield attend("Attention", "grouped", (plain(name, 2, 4, 3, 8), k, v), opset=23)
        yield attend("Attention", "one key", (q, k[:, :, :1], v[:, :, :1]), opset=23)
        yield attend("Attention", "softcap", (q, k, v), {"softcap": 1.5}, opset=23)
        yield attend("Attention", "scale", (q, k, v), {"scale": 0.25}, opset=23)
        past = (None, plain(name, 2, 2, 3, 8, seed=5), plain(name, 2, 2, 3, 8, seed=6))
        for rows in (1, 2):
            inputs = (q[:, :, :rows], k[:, :, :2], v[:, :, :2], *past)
            what = f"{rows} of 2 new queries"
            yield attend("Attention", what, inputs, {"is_causal": 1}, n_outputs=3, opset=23)
        for mode in range(4):
            attrs = {"qk_matmul_output_mode": mode, "softcap": 1.5}
            yield attend("Attention", "scores", (q, k, v, *past), attrs, n_outputs=4, opset=23)
    nothing = tuple(np.zeros((0, 2, 4, 8), "f4") for _ in range(3))
    yield attend("Attention", "empty", nothing, opset=23)


def all_cases() -> Iterator[Case]:
    for part in (pools, resizes, attention):
        yield from part()
