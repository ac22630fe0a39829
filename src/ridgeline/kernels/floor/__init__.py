"""The floor: every ONNX op as a function over torch tensors, so that any region can be run op by op."""

from __future__ import annotations

from ridgeline.kernels.floor import (
    activation,
    attention,
    contrib,
    conv,
    generate,
    indexing,
    linalg,
    norm,
    pointwise,
    pool,
    quant,
    random,
    recurrent,
    reduce,
    resize,
    sequence,
    shape,
    signal,
    suppression,
    vision,
)
from ridgeline.kernels.floor.registry import FLOOR, FloorOp, Reason, call_floor, floor

FAMILIES = (
    activation, attention, contrib, conv, generate, indexing, linalg, norm, pointwise, pool, quant, random,
    recurrent, reduce, resize, sequence, shape, signal, suppression, vision,
)  # fmt: skip

__all__ = ["FAMILIES", "FLOOR", "FloorOp", "Reason", "call_floor", "floor"]
