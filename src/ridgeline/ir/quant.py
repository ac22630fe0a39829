"""Which ops change between levels and numbers, and which values they alone read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from ridgeline.base.formats import FORMATS
from ridgeline.base.spec import Body, Op, TensorSpec
from ridgeline.ir.op_row import Kind
from ridgeline.ir.ops import is_a

# integers and small floats that a scale makes numbers of; sub-byte types lie one value to a byte
LEVEL_TYPES = frozenset({"int8", "uint8", "float8_e4m3fn", "float8_e5m2"})

# products of integers that have no QuantizeLinear beside them
INTEGER_PRODUCTS = frozenset({"QLinearConv", "QLinearMatMul", "QGemm", "ConvInteger", "MatMulInteger"})
# by the type of a weight's codes: how a product is called that reads them and numbers
_WEIGHT_ONLY = {
    "int8": "w8", "uint8": "w8", "float8_e4m3fn": "wfp8", "float8_e5m2": "wfp8", "int4": "w4", "uint4": "w4",
    "float4_e2m1fn": "nvfp4",
}  # fmt: skip


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


def coded_products(ops: Sequence[Op], specs: Mapping[str, TensorSpec]) -> dict[str, int]:
    """How many products read codes, by format: ``int8`` where both operands are, ``w8`` for weights alone."""
    made_by = {name: op for op in ops for name in op.outputs}
    found: Counter[str] = Counter()
    for op in ops:
        if op.op_type in INTEGER_PRODUCTS:
            found["int8"] += 1
        elif is_a(op, Kind.PRODUCT):
            origins = [_dequantizer(name, made_by) for name in op.inputs[:2]]
            types = [None if each is None else _type_of(each.inputs[0], specs) for each in origins]
            first, second = (*types, None, None)[:2]
            if first and second:
                found[_SHORT.get(first, first)] += 1
            elif second and origins[1] is not None:
                scale = _type_of(origins[1].inputs[1], specs)
                found["mxfp8" if scale == "float8_e8m0fnu" else _WEIGHT_ONLY.get(second, second)] += 1
    return dict(sorted(found.items()))


_SHORT = {str(fmt.dtype): fmt.name for fmt in reversed(FORMATS.values()) if not fmt.block}


def _dequantizer(name: str, made_by: Mapping[str, Op]) -> Op | None:
    """The DequantizeLinear that makes a value, behind ops that only move elements."""
    op = made_by.get(name)
    while op is not None and (is_a(op, Kind.MOVEMENT) or op.op_type == "Cast"):
        op = made_by.get(op.inputs[0])
    return op if op is not None and dequantizes(op) else None


def _type_of(name: str, specs: Mapping[str, TensorSpec]) -> str | None:
    spec = specs.get(name)
    return None if spec is None else spec.dtype
