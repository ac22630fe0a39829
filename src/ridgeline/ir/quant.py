"""Which ops change between levels and numbers, and which values they alone read."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from ridgeline.base.spec import Body

# integers and small floats that a scale makes numbers of; sub-byte types lie one value to a byte
LEVEL_TYPES = frozenset({"int8", "uint8", "float8_e4m3fn", "float8_e5m2"})


class _Named(Protocol):
    @property
    def op_type(self) -> str: ...
    @property
    def domain(self) -> str: ...


def quantizes(op: _Named) -> bool:
    return op.op_type == "QuantizeLinear" and not op.domain


def dequantizes(op: _Named) -> bool:
    return op.op_type == "DequantizeLinear" and not op.domain


def levels_and_scales(body: Body) -> frozenset[str]:
    """Values that only QuantizeLinear and DequantizeLinear read, beside the numbers that are quantised.

    What they hold differs from layer to layer and does not decide how a region runs.
    """
    read: set[str] = set()
    others: set[str] = set(body.outputs)
    for op in body.ops:
        if dequantizes(op):
            read.update(op.inputs)
        elif quantizes(op):
            read.update(op.inputs[1:])
            others.add(op.inputs[0])
        else:
            others.update(op.inputs)
    return frozenset(read - others)


def are_powers_of_two(scale: np.ndarray) -> bool:
    """Whether dividing by any of these floats is multiplying by its reciprocal, which is normal too."""
    if scale.dtype.kind != "f" or not scale.size:
        return False
    wide = scale.astype(np.float64)
    mantissa, exponent = np.frexp(wide)
    return bool(((mantissa == 0.5) & (exponent >= -124) & (exponent <= 126)).all())
