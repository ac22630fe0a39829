"""Rules that write an Einsum of two operands, as Keras spells its layers, as the MatMul it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ridgeline.passes.match import attribute, constant
from ridgeline.passes.rule import Change, Fusion, Match


@dataclass(frozen=True)
class Letters:
    """An equation of two operands; what each letter is there for."""

    left: str
    right: str
    out: str

    @property
    def batch(self) -> str:
        return "".join(c for c in self.out if c in self.left and c in self.right)

    @property
    def summed(self) -> str:
        return "".join(c for c in self.left if c in self.right and c not in self.out)

    @property
    def rows(self) -> str:
        return "".join(c for c in self.out if c in self.left and c not in self.right)

    @property
    def columns(self) -> str:
        return "".join(c for c in self.out if c in self.right and c not in self.left)

    def swapped(self) -> Letters:
        return Letters(self.right, self.left, self.out)


# Einsum also takes the narrow integers, which MatMul does not
PRODUCT_TYPES = frozenset(
    ir.DataType[name]
    for name in ("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "INT32", "INT64", "UINT32", "UINT64")
)


def _letters(m: Match) -> Letters:
    """The equation; refuses what is no plain product of two operands."""
    m.require(m.x.dtype in PRODUCT_TYPES, f"MatMul takes no {m.x.dtype}", m.x)
    text = str(attribute(m.root, "equation")).replace(" ", "")
    given, arrow, out = text.partition("->")
    operands = given.split(",")
    m.require(arrow and len(operands) == 2 and "." not in text, f"{text!r} is no plain product", m.x)
    left, right = operands
    found = Letters(left, right, out)
    once = all(len(set(part)) == len(part) for part in (*operands, out))
    m.require(once, f"{text!r} takes a diagonal", m.x)
    alone = set(found.left) ^ set(found.right)
    m.require(alone <= set(out) <= set(found.left + found.right), f"{text!r} sums one operand", m.x)
    one, other = (
        dict(zip(p, v.shape or (), strict=False)) for p, v in zip(operands, m.root.inputs, strict=True)
    )
    for c in found.summed:
        m.require((one.get(c) == 1) == (other.get(c) == 1), f"axis {c!r} of size one meets a longer one", m.x)
    return found


class EinsumLinear(Fusion):
    """einsum of x and constant weights = x @ w, with the axes that are summed or made joined to one"""

    may_change = (Change.ROUNDING,)

    def pattern(self, op: Any, x: Any, w: Any) -> Any:
        return op.Einsum(x, op.known(w))

    def check(self, m: Match) -> None:
        found = _letters(m)
        m.require(constant(m.x) is None, "both operands are constants", m.x)
        m.require(not found.batch, "weights have a batch", m.w)
        m.require(found.rows and found.summed and found.columns, "no rows, or nothing to sum", m.x)
        m.require(m.array("w").size, "weights hold nothing", m.w)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        found, w = _letters(m), m.array("w")
        size = dict(zip(found.right, w.shape, strict=True))
        matrix = w.transpose([found.right.index(c) for c in found.summed + found.columns])
        matrix = matrix.reshape(math.prod(size[c] for c in found.summed), -1)
        x = _ordered(op, m.x, found.left, found.rows + found.summed)
        kept = [0] * len(found.rows)
        if len(found.summed) > 1:
            x = op.Reshape(x, op.const(np.array([*kept, matrix.shape[0]], dtype=np.int64)))
        made = op.MatMul(x, op.const(np.ascontiguousarray(matrix)))
        if len(found.columns) > 1:
            shape = [*kept, *(size[c] for c in found.columns)]
            made = op.Reshape(made, op.const(np.array(shape, dtype=np.int64)))
        return _ordered(op, made, found.rows + found.columns, found.out)


class EinsumProduct(Fusion):
    """einsum over one axis = transposes around a MatMul"""

    may_change = (Change.ROUNDING,)

    def pattern(self, op: Any, x: Any, y: Any) -> Any:
        return op.Einsum(x, y)

    def check(self, m: Match) -> None:
        found = _letters(m)
        single = all(len(part) == 1 for part in (found.rows, found.columns, found.summed))
        m.require(single, "rows, columns or what is summed are not one axis each", m.x)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        found, x, y = _letters(m), m.x, m.y
        if found.out.endswith(found.columns + found.rows):
            found, x, y = found.swapped(), y, x
        left = _ordered(op, x, found.left, found.batch + found.rows + found.summed)
        right = _ordered(op, y, found.right, found.batch + found.summed + found.columns)
        return _ordered(op, op.MatMul(left, right), found.batch + found.rows + found.columns, found.out)


def _ordered(op: Any, value: ir.Value, has: str, wanted: str) -> ir.Value:
    return value if has == wanted else op.Transpose(value, perm=[has.index(c) for c in wanted])


RULES: tuple[Fusion, ...] = (EinsumLinear(), EinsumProduct())
