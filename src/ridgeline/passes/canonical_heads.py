"""Rules that keep products of three axes where an exporter joined heads and rows in one reshape."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from ridgeline.passes.rule import Change, Fusion, Match


class LinearOverHeads(Fusion):
    """reshape(reshape([B, S, H, D], [B·S, H·D]) @ w + b, [B, S, N]) = reshape([B, S, H·D]) @ w + b"""

    may_change = (Change.ROUNDING,)

    def pattern(self, op: Any, x: Any, flat: Any, w: Any, b: Any, shape: Any) -> Any:
        rows = op.Reshape(x, flat)
        product = op.MatMul(rows, w)
        linear = op.either(op.Gemm(rows, w, b, transA=0, alpha=1.0, beta=1.0), op.Add(product, b), product)
        return op.Reshape(linear, shape)

    def check(self, m: Match) -> None:
        source, target = m.dims(m.x), m.target(m.root)
        w = m.array("w")
        m.require(w.ndim == 2, f"weight has {w.ndim} axes, want two", m.w)
        rows, columns = w.shape[::-1] if _is_transposed(m) else w.shape
        kept = len(target) - 1
        m.require(1 < kept < len(source) - 1, "does not join axes on both sides", m.flat)
        m.require(target == (*source[:kept], columns), f"result is {target}, not {source} joined", m.shape)
        joined = source[kept:]
        is_row = all(isinstance(n, int) for n in joined) and math.prod(int(n) for n in joined) == rows
        m.require(is_row, f"rows of {rows} are not the axes {joined}", m.x)
        if m.b is not None:
            m.require(m.array("b").shape in ((columns,), (1, columns)), "bias is not one row", m.b)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        kept = len(m.target(m.root)) - 1
        # the number, not -1: that has no meaning beside an axis of size zero
        columns = m.array("w").shape[1 if _is_transposed(m) else 0]
        w = op.const(m.array("w").T) if _is_transposed(m) else m.w
        rows = op.Reshape(m.x, op.const(np.array([*[0] * kept, columns], dtype=np.int64)))
        product = op.MatMul(rows, w)
        return product if m.b is None else op.Add(product, op.const(m.array("b").reshape(-1)))


def _is_transposed(m: Match) -> bool:
    return any(node.op_type == "Gemm" for node in m.nodes) and bool(m.attr("Gemm", "transB"))


RULES: tuple[Fusion, ...] = (LinearOverHeads(),)
