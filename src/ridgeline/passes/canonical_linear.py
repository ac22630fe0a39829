"""Rules that free matrix products from reshapes that flatten and restore their leading axes.

Where an exporter joined heads and rows in one reshape, the product keeps three axes.
"""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir

from ridgeline.passes.rule import Change, Fusion, Match


def _linear(op: Any, rows: Any, w: Any, b: Any) -> Any:
    product = op.MatMul(rows, w)
    return op.either(op.Gemm(rows, w, b, transA=0, alpha=1.0, beta=1.0), op.Add(product, b), product)


def _is_transposed(m: Match) -> bool:
    return any(node.op_type == "Gemm" for node in m.nodes) and bool(m.attr("Gemm", "transB"))


def _weight_shape(m: Match) -> tuple[int, ...]:
    """Rows and columns of the weight; refuses when it, or the bias behind it, is of another form."""
    w = m.array("w")
    m.require(w.ndim == 2, f"weight has {w.ndim} axes, want two", m.w)
    shape: tuple[int, ...] = w.shape[::-1] if _is_transposed(m) else w.shape
    if m.b is not None:
        m.require(m.array("b").shape in (shape[1:], (1, shape[1])), "bias is not one row", m.b)
    return shape


def _product(op: Any, m: Match, shape: tuple[int, ...] = ()) -> ir.Value:
    """x, reshaped if a shape is given, times the weight."""
    w = op.const(m.array("w").T) if _is_transposed(m) else m.w
    product = op.MatMul(op.Reshape(m.x, op.numbers(*shape)) if shape else m.x, w)
    return product if m.b is None else op.Add(product, op.const(m.array("b").reshape(-1)))


class FlatLinear(Fusion):
    """reshape(reshape(x, [-1, K]) @ w + b, [..., N]) = x @ w + b"""

    may_change = (Change.ROUNDING,)

    def pattern(self, op: Any, x: Any, flat: Any, w: Any, b: Any, shape: Any) -> Any:
        return op.Reshape(_linear(op, op.either(op.Reshape(x, flat), op.Flatten(x)), w, b), shape)

    def check(self, m: Match) -> None:
        source, target = m.dims(m.x), m.target(m.root)
        m.require(len(source) > 2, "input has no leading axes to flatten", m.x)
        rows, columns = _weight_shape(m)
        m.require(source[-1] == rows, f"rows are not the last axis of {m.x.shape}", m.x)
        is_same = target == (*source[:-1], columns)
        m.require(is_same, f"result is {target}, not {m.x.shape} but for the last axis", m.shape)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        return _product(op, m)


class FlatTranspose(Fusion):
    """reshape(transpose(reshape(x, [-1, S, D])), [..., D, S]) = x with its last two axes swapped"""

    may_change = ()

    def pattern(self, op: Any, x: Any, flat: Any, shape: Any) -> Any:
        return op.Reshape(op.Transpose(op.Reshape(x, flat), perm=[0, 2, 1]), shape)

    def check(self, m: Match) -> None:
        source, flat = m.dims(m.x), m.target(m.node("Transpose").inputs[0].producer())
        m.require(len(source) > 3, "input has no leading axes to flatten", m.x)
        m.require(flat[1:] == source[-2:], "does not keep the last two axes", m.flat)
        swapped = (*source[:-2], source[-1], source[-2])
        m.require(m.target(m.root) == swapped, "does not restore the leading axes", m.shape)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        rank = m.x.shape.rank()
        return op.Transpose(m.x, perm=[*range(rank - 2), rank - 1, rank - 2])


class LinearOverHeads(Fusion):
    """reshape(reshape([B, S, H, D], [B·S, H·D]) @ w + b, [B, S, N]) = reshape([B, S, H·D]) @ w + b"""

    may_change = (Change.ROUNDING,)

    def pattern(self, op: Any, x: Any, flat: Any, w: Any, b: Any, shape: Any) -> Any:
        return op.Reshape(_linear(op, op.Reshape(x, flat), w, b), shape)

    def check(self, m: Match) -> None:
        source, target = m.dims(m.x), m.target(m.root)
        rows, columns = _weight_shape(m)
        kept = len(target) - 1
        m.require(1 < kept < len(source) - 1, "does not join axes on both sides", m.flat)
        m.require(target == (*source[:kept], columns), f"result is {target}, not {source} joined", m.shape)
        joined = source[kept:]
        is_row = all(isinstance(n, int) for n in joined) and math.prod(int(n) for n in joined) == rows
        m.require(is_row, f"rows of {rows} are not the axes {joined}", m.x)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        kept = len(m.target(m.root)) - 1
        # the number, not -1: that has no meaning beside an axis of size zero
        return _product(op, m, (*[0] * kept, _weight_shape(m)[0]))


RULES: tuple[Fusion, ...] = (FlatLinear(), FlatTranspose(), LinearOverHeads())
