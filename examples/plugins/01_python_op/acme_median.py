"""acme.signal::MedianFilter: each sample becomes the median of the `width` samples around it."""

from __future__ import annotations

import torch.nn.functional as functional
from torch import Tensor

import ridgeline
from ridgeline.plugins import Schema, Spec


def shapes(x: Spec, *, width: int) -> Spec:
    if width % 2 == 0:
        raise ValueError(f"width is {width}, want an odd one")
    return x


def median_filter(x: Tensor, *, width: int) -> Tensor:
    rows = x.reshape(-1, 1, x.shape[-1])
    padded = functional.pad(rows, (width // 2, width // 2), mode="replicate")
    return padded.unfold(-1, width, 1).median(-1).values.reshape(x.shape)


ridgeline.register_op(
    Schema(
        "acme.signal::MedianFilter",
        inputs={"x": "T"},
        outputs={"y": "T"},
        attributes={"width": 3},
        types={"T": ("float32", "float64")},
    ),
    shapes=shapes,
    reference=median_filter,
)
