"""Rules for the masks of Attention: what they say becomes an attribute or a boolean where it can."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from ridgeline.passes.fold_broadcast import is_causal_mask
from ridgeline.passes.rule import Change, Fusion, Match


def _attrs(m: Match) -> dict[str, Any]:
    return {name: attr.value for name, attr in m.node("Attention").attributes.items()}


class CausalMask(Fusion):
    """Attention with a constant lower triangle for a mask = Attention with is_causal"""

    may_change = (Change.ROUNDING, Change.BARRED_KEYS)

    def pattern(self, op: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
        return op.Attention(q, k, v, op.known(mask))

    def check(self, m: Match) -> None:
        m.require(is_causal_mask(m.root), "mask is not a lower triangle", m.mask)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        return op.Attention(m.q, m.k, m.v, **_attrs(m) | {"is_causal": 1})


class BooleanMask(Fusion):
    """Attention(.., where(allowed, 0, -inf)) = Attention(.., allowed)"""

    may_change = (Change.ROUNDING, Change.BARRED_KEYS)

    def pattern(self, op: Any, q: Any, k: Any, v: Any, allowed: Any, off: Any) -> Any:
        return op.Attention(q, k, v, op.shared(op.Where(allowed, 0.0, op.known(off))))

    def check(self, m: Match) -> None:
        # a finite filler still counts in rows where every key is masked
        m.require(m.scalar("off") == -math.inf, f"masked scores get {m.scalar('off')}, want -inf", m.off)
        whole, mask = m.dims(m.node("Where").outputs[0]), m.dims(m.allowed)
        m.require(whole == mask, "the choice is spread by the values it chooses", m.allowed)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        return op.Attention(m.q, m.k, m.v, m.allowed, **_attrs(m))


class SpreadPadding(Fusion):
    """(mask as bool) spread over the queries = not (mask = zeros): tested and spread in one step"""

    may_change = ()

    def pattern(self, op: Any, x: Any, axes: Any, true: Any, shape: Any) -> Any:
        tested = op.Cast(x, to=9)
        wide = op.either(op.Unsqueeze(tested, axes), tested)
        return op.either(op.And(wide, op.known(true)), op.Expand(wide, shape))

    def check(self, m: Match) -> None:
        kinds = (ir.DataType.INT64, ir.DataType.INT32)
        m.require(m.x.dtype in kinds, f"mask is {m.x.dtype}, not of integers", m.x)
        if m.true is not None:
            m.require(bool(m.array("true").all()), "the other operand bars something", m.true)
            return
        narrow, wide = m.dims(m.root.inputs[0]), m.dims(m.root.outputs[0])
        m.require(len(narrow) == len(wide), "spread over axes of its own", m.x)
        grown = [size for size, old in zip(wide, narrow, strict=True) if size != old]
        m.require(all(isinstance(size, int) for size in grown), f"spread over {grown}, want numbers", m.x)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        x = m.x if m.axes is None else op.Unsqueeze(m.x, m.axes)
        if m.true is not None:
            shape = m.array("true").shape
        else:
            dims = zip(m.dims(m.root.outputs[0]), m.dims(m.root.inputs[0]), strict=True)
            shape = tuple(1 if size == old else int(size) for size, old in dims)
        return op.Not(op.Equal(x, op.const(np.zeros(shape, m.x.dtype.numpy()))))


RULES: tuple[Fusion, ...] = (CausalMask(), BooleanMask(), SpreadPadding())
