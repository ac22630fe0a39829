"""Rules for half-precision models that widen around an op whose state is float32 by definition anyway."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ridgeline.passes.rule import Change, Fusion, Match

_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def _require_same_half(m: Match) -> None:
    """The value widens from a half type and comes back to the same one."""
    m.require(m.x.dtype in _HALF, f"input is {m.x.dtype}, not a half type", m.x)
    back = m.root.outputs[0].dtype
    m.require(back == m.x.dtype, f"goes in as {m.x.dtype}, comes out as {back}", m.x)


class HalfSoftmax(Fusion):
    """half(softmax(float(x))) = softmax(x)"""

    may_change = (Change.ROUNDING,)

    def pattern(self, op: Any, x: Any) -> Any:
        return op.Cast(op.Softmax(op.shared(op.Cast(x, to=1))))

    def check(self, m: Match) -> None:
        _require_same_half(m)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        return op.Softmax(m.x, axis=m.attr("Softmax", "axis"))


class HalfNorm(Fusion):
    """half(norm(float(x), w, b)) = norm(x, half(w), half(b)), where w and b are half numbers already"""

    may_change = (Change.ROUNDING,)

    def pattern(self, op: Any, x: Any, w: Any, b: Any) -> Any:
        wide = op.shared(op.Cast(x, to=1))
        return op.Cast(op.either(op.LayerNormalization(wide, w, b), op.RMSNormalization(wide, w)))

    def check(self, m: Match) -> None:
        _require_same_half(m)
        m.require(_attr(m, "stash_type") in (None, 1), "keeps its state in another type", m.x)
        for name in ("w", "b"):
            value = getattr(m, name)
            if value is None:
                continue
            wide = m.array(name)
            narrow = wide.astype(m.x.dtype.numpy())
            m.require(
                bool(np.all(narrow.astype(wide.dtype) == wide)), f"{name} is finer than {m.x.dtype}", value
            )

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        dtype = m.x.dtype.numpy()
        rows = [None if getattr(m, n) is None else op.const(m.array(n).astype(dtype)) for n in ("w", "b")]
        attrs = {"axis": _attr(m, "axis"), "epsilon": _attr(m, "epsilon")}
        return getattr(op, _norm(m).op_type)(m.x, *rows, **attrs)


def _norm(m: Match) -> ir.Node:
    return next(node for node in m.nodes if node.op_type.endswith("Normalization"))


def _attr(m: Match, name: str) -> Any:
    return m.attr(_norm(m).op_type, name)


RULES: tuple[Fusion, ...] = (HalfSoftmax(), HalfNorm())
