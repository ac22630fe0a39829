"""Quantised models in one form: DequantizeLinear, float ops, QuantizeLinear, and no more of them than needed.

Levels move instead of numbers where nothing is computed: DequantizeLinear goes forward and QuantizeLinear
back across ops that only move elements, and a pair that meets cancels. The integer products of ONNX become
float products between the two (`canonical_integer.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ridgeline.passes.match import attribute, attributes, constant
from ridgeline.passes.rule import Fusion, Match

_BYTES = (ir.DataType.INT8, ir.DataType.UINT8)
_VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
# of one operand, which may be followed by axes, sizes or places
_LATE = (*_VIEWS, "Transpose", "Slice", "Gather", "DepthToSpace", "SpaceToDepth", "MaxPool")
# none that picks some of the elements: all of them would be quantised for it
_EARLY = (*_VIEWS, "Transpose", "Expand", "Tile", "DepthToSpace", "SpaceToDepth", "MaxPool")
# ONNX moves types narrower than 8 bits, and small floats, with these only
_ANY_TYPE = (*_VIEWS, "Transpose")


def level_ends(dtype: ir.DataType | None) -> tuple[int, int] | None:
    """The least and the greatest level of an integer type; None for others."""
    if dtype is None or not dtype.is_integer():
        return None
    low = -(2 ** (dtype.bitwidth - 1)) if dtype.is_signed() else 0
    return low, low + 2**dtype.bitwidth - 1


def _zero(m: Match, name: str) -> np.ndarray:
    """A zero point as integers; one that is left out is zero."""
    value = getattr(m, name)
    return np.zeros((), np.int64) if value is None else m.array(name).astype(np.int64)


def _require_same_levels(m: Match) -> None:
    """Both sides have the same type, scale and zero point."""
    m.require(m.q.dtype == m.root.outputs[0].dtype, f"{m.q.dtype} levels become {m.root.outputs[0].dtype}")
    a, b = m.array("s"), m.array("s2")
    m.require(a.dtype == b.dtype and np.array_equal(a, b), "levels are quantised anew", m.s2)
    is_same = bool(np.all(_zero(m, "z").reshape(-1) == _zero(m, "z2").reshape(-1)))
    m.require(is_same, "levels are quantised anew", m.s2)
    first, second = m.nodes[-1], m.nodes[0]
    for name in ("axis", "block_size") if a.size > 1 else ():
        m.require(attribute(first, name) == attribute(second, name), f"{name} differs", m.s2)


def _require_round_trip(m: Match) -> None:
    """Every level comes back from its number: neither overflows, nor rounds past half a level."""
    scale, ends = m.array("s"), level_ends(m.q.dtype)
    m.require(scale.dtype == np.float32, f"numbers between are {scale.dtype}, which round", m.s)
    between = m.root.inputs[0]
    is_float32 = between.dtype == ir.DataType.FLOAT
    m.require(is_float32, f"numbers between are {between.dtype}, which round", between)
    m.require(m.q.dtype != ir.DataType.FLOAT8E5M2, "an infinity among the levels becomes finite", m.q)
    wide = np.abs(scale.astype(np.float64))
    reach = 448.0 if ends is None else float(max(-ends[0], ends[1]) - ends[0])
    m.require(reach <= 2**17, f"{m.q.dtype} has too many levels for float32", m.q)
    is_safe = bool(np.all(wide >= np.finfo(np.float32).tiny) and np.all(wide * reach < 3e38))
    m.require(is_safe, "a level overflows or is subnormal as a number", m.s)


def _require_one_scale(m: Match, node: ir.Node) -> None:
    """One number for all levels, whatever their shape: one block lies along an axis of this shape."""
    m.require(m.array("s").size == 1, "channels have scales of their own", m.s)
    m.require(not attribute(node, "block_size"), "the one block lies along an axis", m.s)


class NoZeroPoint(Fusion):
    """DequantizeLinear(q, s, 0) = DequantizeLinear(q, s), and QuantizeLinear the same"""

    may_change = ()

    def pattern(self, op: Any, x: Any, s: Any, z: Any) -> Any:
        known = op.known(z)
        return op.either(op.DequantizeLinear(x, s, known), op.QuantizeLinear(x, s, known))

    def check(self, m: Match) -> None:
        m.require(m.z is not None and not np.any(m.array("z").astype(np.float32)), "there are zero points")

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        given = attributes(m.root)
        if m.root.op_type == "QuantizeLinear":
            given["output_dtype"] = int(m.z.dtype)
        made: ir.Value = op.call(m.root.op_type, m.x, m.s, **given)
        made.dtype = m.root.outputs[0].dtype
        return made


class SignedWeights(Fusion):
    """DequantizeLinear(w, s, 128) = DequantizeLinear(w - 128, s) of a constant: integer kernels take int8"""

    may_change = ()

    def pattern(self, op: Any, w: Any, s: Any, z: Any) -> Any:
        return op.DequantizeLinear(op.known(w), s, op.known(z))

    def check(self, m: Match) -> None:
        m.require(m.w.dtype == ir.DataType.UINT8 and m.z is not None, "levels are not uint8", m.w)
        m.require(bool(np.all(m.array("z") == 128)), "zero points are not the middle", m.z)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        levels = op.const((m.array("w").astype(np.int16) - 128).astype(np.int8))
        made: ir.Value = op.call("DequantizeLinear", levels, m.s, **attributes(m.root))
        return made


class LevelsAgain(Fusion):
    """QuantizeLinear(DequantizeLinear(q, s, z), s, z) = q"""

    may_change = ()

    def pattern(self, op: Any, q: Any, s: Any, z: Any, s2: Any, z2: Any) -> Any:
        return op.QuantizeLinear(op.shared(op.DequantizeLinear(q, op.known(s), z)), op.known(s2), z2)

    def check(self, m: Match) -> None:
        _require_same_levels(m)
        _require_round_trip(m)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        made: ir.Value = op.Identity(m.q)
        return made


class DequantizeLate(Fusion):
    """move(DequantizeLinear(q)) = DequantizeLinear(move(q))"""

    may_change = ()

    def pattern(self, op: Any, q: Any, s: Any, z: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
        numbers = op.shared(op.DequantizeLinear(q, op.known(s), z))
        return op.either(*(op.call(move, numbers, a, b, c, d) for move in _LATE))

    def check(self, m: Match) -> None:
        move, dequantize = m.nodes[0], m.nodes[1]
        _require_movable(m, move, m.q.dtype)
        if m.array("s").size == 1:
            _require_one_scale(m, dequantize)
            return
        m.require(move.op_type == "Transpose", f"{move.op_type} moves channels of several scales", m.s)
        is_known = constant(m.q) is not None and (m.z is None or constant(m.z) is not None)
        m.require(is_known, "channels of a value that changes between runs", m.q)
        rank = m.array("q").ndim
        m.require(-rank <= attribute(dequantize, "axis") < rank, "axis is out of range", m.s)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        move, dequantize = m.nodes[0], m.nodes[1]
        given, how = attributes(dequantize), attributes(move)
        scale, zero = m.s, m.z
        if m.array("s").size > 1:
            perm = list(attribute(move, "perm") or range(m.array("q").ndim)[::-1])
            given["axis"] = perm.index(attribute(dequantize, "axis") % len(perm))
            if attribute(dequantize, "block_size"):
                scale = op.Transpose(scale, perm=perm)
                zero = None if zero is None else op.Transpose(zero, perm=perm)
        moved = op.call(move.op_type, m.q, m.a, m.b, m.c, m.d, **how)
        moved.dtype = m.q.dtype
        moved.shape = move.outputs[0].shape
        return op.call("DequantizeLinear", moved, scale, zero, **given)


class QuantizeEarly(Fusion):
    """QuantizeLinear(move(x)) = move(QuantizeLinear(x))"""

    may_change = ()

    def pattern(self, op: Any, x: Any, s: Any, z: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
        moved = op.either(*(op.call(move, x, a, b, c, d) for move in _EARLY))
        return op.QuantizeLinear(moved, op.known(s), z)

    def check(self, m: Match) -> None:
        _require_movable(m, m.nodes[1], m.root.outputs[0].dtype)
        _require_one_scale(m, m.root)
        m.require(m.x.dtype == ir.DataType.FLOAT, f"numbers are {m.x.dtype}", m.x)
        # on a view of what the user gives nothing is gained
        m.require(not m.x.is_graph_input(), "it reads an input of the model", m.x)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        move = m.nodes[1]
        levels = op.call("QuantizeLinear", m.x, m.s, m.z, **attributes(m.root))
        levels.dtype, levels.shape = m.root.outputs[0].dtype, m.x.shape
        return op.call(move.op_type, levels, m.a, m.b, m.c, m.d, **attributes(move))


class DequantizeBehindConcat(Fusion):
    """Concat(DequantizeLinear(q, s), DequantizeLinear(r, s), …) = DequantizeLinear(Concat(q, r, …), s)"""

    may_change = ()

    def pattern(self, op: Any, q: Any, s: Any, z: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> Any:
        return op.Concat(op.shared(op.DequantizeLinear(q, op.known(s), z)), b, c, d, e, f)

    def check(self, m: Match) -> None:
        _require_movable(m, m.root, m.q.dtype)
        scale, zero = m.array("s"), _zero(m, "z")
        _require_one_scale(m, m.nodes[1])
        for value in m.root.inputs[1:]:
            maker = None if value is None else value.producer()
            is_dequantized = maker is not None and maker.op_type == "DequantizeLinear" and not maker.domain
            m.require(is_dequantized, "a part is not quantised", value)
            assert maker is not None, "refused just now"
            levels, other, zero_point = (*maker.inputs, None)[:3]
            others = None if other is None else constant(other)
            zeros = np.zeros((), np.int64) if zero_point is None else constant(zero_point)
            is_same = others is not None and others.dtype == scale.dtype and others.size == 1
            is_same = is_same and bool(np.all(others == scale.reshape(()))) and levels.dtype == m.q.dtype
            m.require(is_same, "parts have scales of their own", value)
            m.require(
                zeros is not None and bool(np.all(zeros.astype(np.int64) == zero)), "zero points", value
            )

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        parts = [value.producer().inputs[0] for value in m.root.inputs]
        joined = op.call("Concat", *parts, **attributes(m.root))
        joined.dtype, joined.shape = m.q.dtype, m.root.outputs[0].shape
        return op.call("DequantizeLinear", joined, m.s, m.z, **attributes(m.nodes[1]))


class QuantizeBeforeConcat(Fusion):
    """QuantizeLinear(Concat(a, b, …), s) = Concat(QuantizeLinear(a, s), QuantizeLinear(b, s), …)"""

    may_change = ()

    def pattern(self, op: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, s: Any, z: Any) -> Any:
        return op.QuantizeLinear(op.Concat(a, b, c, d, e, f), op.known(s), z)

    def check(self, m: Match) -> None:
        _require_movable(m, m.nodes[1], m.root.outputs[0].dtype)
        _require_one_scale(m, m.root)
        m.require(m.a.dtype == ir.DataType.FLOAT, f"numbers are {m.a.dtype}", m.a)
        is_made = any(value.producer() is not None for value in m.nodes[1].inputs)
        m.require(is_made, "it reads inputs of the model only", m.a)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        parts = []
        for value in m.nodes[1].inputs:
            levels = op.call("QuantizeLinear", value, m.s, m.z, **attributes(m.root))
            levels.dtype, levels.shape = m.root.outputs[0].dtype, value.shape
            parts.append(levels)
        return op.call("Concat", *parts, **attributes(m.nodes[1]))


def _require_movable(m: Match, move: ir.Node, dtype: ir.DataType | None) -> None:
    """ONNX has the op for levels, and it does with them what it does with numbers."""
    m.require(
        dtype in _BYTES or move.op_type in _ANY_TYPE,
        f"{move.op_type} does not take {dtype}",
        m.root.inputs[0],
    )
    if move.op_type != "MaxPool":
        return
    # a window of nothing but padding is -inf of numbers, and the least of levels
    spread = any(step != 1 for step in attribute(move, "dilations") or ())
    m.require(not spread, "windows with gaps may hold nothing but padding", move.inputs[0])
    if m.root.op_type == "QuantizeLinear":
        return
    m.require(bool(np.all(m.array("s") > 0)), "a scale turns the order of levels", m.s)


class ReluOfLevels(Fusion):
    """Relu(DequantizeLinear(q, s, least level)) = DequantizeLinear(q, s, least level)"""

    may_change = ()

    def pattern(self, op: Any, q: Any, s: Any, z: Any) -> Any:
        return op.Relu(op.shared(op.DequantizeLinear(q, op.known(s), z)))

    def check(self, m: Match) -> None:
        _require_least_zero(m, m.q.dtype)
        m.require(bool(np.all(m.array("s") > 0)), "a scale is negative", m.s)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        return op.call("DequantizeLinear", m.q, m.s, m.z, **attributes(m.nodes[1]))


class ReluIntoLevels(Fusion):
    """QuantizeLinear(Relu(x), s, least level) = QuantizeLinear(x, s, least level)"""

    may_change = ()

    def pattern(self, op: Any, x: Any, s: Any, z: Any) -> Any:
        return op.QuantizeLinear(op.Relu(x), op.known(s), z)

    def check(self, m: Match) -> None:
        _require_least_zero(m, m.root.outputs[0].dtype)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        return op.call("QuantizeLinear", m.x, m.s, m.z, **attributes(m.root))


def _require_least_zero(m: Match, dtype: ir.DataType | None) -> None:
    ends = level_ends(dtype)
    m.require(ends is not None, f"levels are {dtype}", m.root.inputs[0])
    assert ends is not None, "refused just now"
    m.require(bool(np.all(_zero(m, "z") == ends[0])), "negative numbers have levels of their own", m.z)


class ClipIntoLevels(Fusion):
    """QuantizeLinear(Clip(x, low, high)) = QuantizeLinear(x), where the levels end within the bounds"""

    may_change = ()

    def pattern(self, op: Any, x: Any, low: Any, high: Any, s: Any, z: Any) -> Any:
        return op.QuantizeLinear(op.Clip(x, low, high), op.known(s), z)

    def check(self, m: Match) -> None:
        ends = level_ends(m.root.outputs[0].dtype)
        m.require(ends is not None, f"levels are {m.root.outputs[0].dtype}", m.s)
        m.require(m.array("s").dtype == np.float32, "scales are not float32", m.s)
        assert ends is not None, "refused just now"
        low, high = (None if getattr(m, n) is None else m.scalar(n) for n in ("low", "high"))
        scale, zero = m.array("s"), _zero(m, "z")
        for bound, end, sign in ((low, ends[0], 1), (high, ends[1], -1)):
            if bound is None:
                continue
            level = np.rint(np.float32(bound) / scale) + zero
            m.require(bool(np.all(sign * level <= sign * end)), f"bound {bound:g} is within the levels", m.s)
        m.require(low is None or high is None or low <= high, "the bounds cross")

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        return op.call("QuantizeLinear", m.x, m.s, m.z, **attributes(m.root))


# each sweep carries what it moves as far as it goes
FORWARD: tuple[Fusion, ...] = (
    NoZeroPoint(),
    SignedWeights(),
    ReluOfLevels(),
    DequantizeLate(),
    DequantizeBehindConcat(),
)
BACKWARD: tuple[Fusion, ...] = (
    LevelsAgain(),
    ReluIntoLevels(),
    ClipIntoLevels(),
    QuantizeEarly(),
    QuantizeBeforeConcat(),
)
