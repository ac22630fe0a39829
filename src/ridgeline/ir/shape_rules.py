"""Column of the op table: our own inference for ops whose ONNX inference is wrong or silent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from ridgeline.base.spec import Op, TensorSpec
from ridgeline.ir.op_given import Given
from ridgeline.ir.op_row import InferRule
from ridgeline.ir.op_rules_products import PRODUCT_RULES

Specs: TypeAlias = Sequence[TensorSpec | None]
Values: TypeAlias = Sequence[np.ndarray | None]


def _like_first(op: Op, specs: Specs, values: Values) -> Specs:
    return [specs[0]]


def _stft(op: Op, specs: Specs, values: Values) -> Specs:
    """[batch, frames, bins, 2]. ONNX's inference takes `onesided` for off where the default is on."""
    signal, step, length = specs[0], values[1], values[3] if len(values) > 3 else None
    window = specs[2] if len(specs) > 2 else None
    if signal is None or step is None or (window is None and length is None) or len(signal.shape) < 2:
        return [None]
    frame = int(length.reshape(-1)[0]) if length is not None else window.shape[0] if window is not None else 0
    hop = int(step.reshape(-1)[0])
    batch, samples = signal.shape[:2]
    if not 0 < frame <= samples or hop <= 0:
        return [None]
    bins = frame // 2 + 1 if op.attrs.get("onesided", 1) else frame
    return [TensorSpec(signal.dtype, (batch, 1 + (samples - frame) // hop, bins, 2))]


def _as_checked(op: Op, specs: Specs, values: Values) -> Specs | None:
    """ConvTranspose: ONNX's inference leaves sizes out where `output_shape` asks for less than the input has.

    Attention: it does not look at the mask, over which queries may be spread. With further outputs, ONNX is
    asked.
    """
    if any(op.outputs[1:]):
        return None
    if any(spec is None for name, spec in zip(op.inputs, specs, strict=True) if name):
        return [None]
    shapes = tuple(None if spec is None else spec.shape for spec in specs)
    made = PRODUCT_RULES[op.op_type](Given(op, shapes, (None,), {}))[0]
    return [None if made is None or specs[0] is None else TensorSpec(specs[0].dtype, made)]


INFER_RULES: Mapping[str, InferRule] = {
    "GroupNormalization": _like_first,
    "MeanVarianceNormalization": _like_first,
    "ConvTranspose": _as_checked,
    "Attention": _as_checked,
    "STFT": _stft,
}
