"""Rules that move a transpose of whole rows past a linear layer, to where another movement op takes it up."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ridgeline.passes.rule import Change, Fusion, Match
from ridgeline.passes.view_runs import is_movement


def _readers(value: ir.Value) -> list[ir.Node]:
    return [node for node, _ in value.uses()]


def _require_rows(m: Match) -> list[int]:
    """The perm of the transpose; refuses unless columns stay columns of a plain linear layer."""
    perm = m.attr("Transpose", "perm")
    m.require(perm is not None and len(perm) > 2 and perm[-1] == len(perm) - 1, "turns columns", m.x)
    m.require(len(m.dims(m.x)) == len(perm), "weights have leading axes", m.x)
    w = m.array("w")
    m.require(w.ndim == 2, f"weight has {w.ndim} axes, want two", m.w)
    if m.b is not None:
        b = m.array("b")
        m.require(b.size == b.shape[-1] and b.ndim <= len(perm), "bias is not one row", m.b)
    return [int(axis) for axis in perm]


def _linear(op: Any, x: Any, w: Any, b: Any) -> Any:
    product = op.MatMul(x, op.known(w))
    return op.either(op.Add(product, op.known(b)), product)


def _rewritten(op: Any, m: Match, x: ir.Value) -> ir.Value:
    product = op.MatMul(x, m.w)
    return product if m.b is None else op.Add(product, m.b)


class LinearThenRows(Fusion):
    """transpose(x) @ w + b = transpose(x @ w + b), where only movement ops read it"""

    may_change = (Change.ROUNDING,)

    def pattern(self, op: Any, x: Any, w: Any, b: Any) -> Any:
        return _linear(op, op.shared(op.Transpose(x)), w, b)

    def check(self, m: Match) -> None:
        _require_rows(m)
        out = m.root.outputs[0]
        readers = _readers(out)
        is_moved = bool(readers) and not out.is_graph_output() and all(map(is_movement, readers))
        m.require(is_moved, "nothing behind it takes up the transpose", out)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        return op.Transpose(_rewritten(op, m, m.x), perm=_require_rows(m))


class RowsThenLinear(Fusion):
    """transpose(x @ w + b) = transpose(x) @ w + b, where x was moved itself"""

    may_change = (Change.ROUNDING,)

    def pattern(self, op: Any, x: Any, w: Any, b: Any) -> Any:
        return op.Transpose(_linear(op, x, w, b))

    def check(self, m: Match) -> None:
        _require_rows(m)
        maker = m.x.producer()
        m.require(maker is not None and is_movement(maker), "nothing before it takes up the transpose", m.x)
        readers = _readers(m.root.outputs[0])
        m.require(not readers or not all(map(is_movement, readers)), "the run of moves goes on", m.x)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        return _rewritten(op, m, op.Transpose(m.x, perm=_require_rows(m)))


RULES: tuple[Fusion, ...] = (LinearThenRows(), RowsThenLinear())
