"""Rules that free matrix products from reshapes that only flatten and restore their leading axes."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ridgeline.passes.rule import Change, Fusion, Match


class FlatLinear(Fusion):
    """reshape(reshape(x, [-1, K]) @ w + b, [..., N]) = x @ w + b"""

    may_change = (Change.ROUNDING,)

    def pattern(self, op: Any, x: Any, flat: Any, w: Any, b: Any, shape: Any) -> Any:
        rows = op.either(op.Reshape(x, flat), op.Flatten(x))
        product = op.MatMul(rows, w)
        linear = op.either(op.Gemm(rows, w, b, transA=0, alpha=1.0, beta=1.0), op.Add(product, b), product)
        return op.Reshape(linear, shape)

    def check(self, m: Match) -> None:
        source, target = m.dims(m.x), m.target(m.root)
        m.require(len(source) > 2, "input has no leading axes to flatten", m.x)
        w = m.array("w")
        m.require(w.ndim == 2, f"weight has {w.ndim} axes, want two", m.w)
        is_transposed = _is_transposed(m)
        rows, columns = w.shape[::-1] if is_transposed else w.shape
        m.require(source[-1] == rows, f"rows are not the last axis of {m.x.shape}", m.x)
        m.require(
            target == (*source[:-1], columns),
            f"result is {target}, not {m.x.shape} but for the last axis",
            m.shape,
        )
        if m.b is not None:
            m.require(m.array("b").shape in ((columns,), (1, columns)), "bias is not one row", m.b)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        w = op.const(m.array("w").T) if _is_transposed(m) else m.w
        product = op.MatMul(m.x, w)
        return product if m.b is None else op.Add(product, op.const(m.array("b").reshape(-1)))


def _is_transposed(m: Match) -> bool:
    return any(node.op_type == "Gemm" for node in m.nodes) and bool(m.attr("Gemm", "transB"))


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


RULES: tuple[Fusion, ...] = (FlatLinear(), FlatTranspose())
