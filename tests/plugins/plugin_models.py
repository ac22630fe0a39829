"""A plugin op for tests: one step of a Haar wavelet, with two outputs of half the length."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import parser
from torch import Tensor

from ridgeline.plugins import Plugin, PluginOp, Schema, Spec, register_op

ACME = Plugin("acme-dsp", "1.0", "pip install acme-dsp==1.0")
HAAR = Schema(
    "acme.dsp::Haar",
    inputs={"x": "T"},
    outputs={"low": "T", "high": "T"},
    attributes={"scale": 0.5},
    types={"T": ("float32", "float64")},
)
WAVELET = """
<ir_version: 10, opset_import: ["": 18, "acme.dsp": 1]>
wavelet (float[N, 64] x) => (float[N, 32] y) {
    low, high = acme.dsp.Haar <scale = 0.25> (x)
    y = Mul(low, high)
}
"""


def haar_shapes(x: Spec, *, scale: float) -> tuple[Spec, Spec]:
    half = x.resized(*x.shape[:-1], x.shape[-1] // 2)
    return half, half


def haar(x: Tensor, *, scale: float) -> tuple[Tensor, Tensor]:
    even, odd = x[..., 0::2], x[..., 1::2]
    return (even + odd) * scale, (even - odd) * scale


def register_haar(**changes: Any) -> PluginOp:
    parts = {"shapes": haar_shapes, "reference": haar, "plugin": ACME} | changes
    return register_op(parts.pop("schema", HAAR), **parts)


def wavelet(text: str = WAVELET) -> onnx.ModelProto:
    return parser.parse_model(text)
