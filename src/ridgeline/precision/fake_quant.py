"""A tensor through QuantizeLinear and DequantizeLinear, as torch computes it on the floor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ridgeline.base.formats import Format
from ridgeline.base.scales import scales_for
from ridgeline.kernels.elements import on_device, to_torch
from ridgeline.kernels.floor.quant import dequantize_linear, quantize_linear
from ridgeline.precision.histograms import Range


def zero_point_of(scale: np.ndarray, zero: np.ndarray | None, fmt: Format) -> np.ndarray:
    """A zero point as ONNX wants it: of the scale's shape; its type says what is quantised to."""
    return np.zeros(scale.shape, np.float32).astype(fmt.dtype) if zero is None else zero


@dataclass(frozen=True)
class FakeQuant:
    """Scale and zero point of one tensor."""

    scale: Tensor
    zero_point: Tensor

    @staticmethod
    def of(fmt: Format, found: Range, *, symmetric: bool, device: str = "cpu") -> FakeQuant:
        scale, zero = scales_for(np.asarray(found.low), np.asarray(found.high), fmt, symmetric=symmetric)
        point = to_torch(zero_point_of(scale, zero, fmt))
        return FakeQuant(on_device(to_torch(scale), device), on_device(point, device))

    def __call__(self, tensor: Tensor) -> Tensor:
        with torch.inference_mode():
            codes = quantize_linear(tensor, self.scale, self.zero_point)
            return dequantize_linear(codes, self.scale, self.zero_point)
