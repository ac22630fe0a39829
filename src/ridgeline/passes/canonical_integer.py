"""Integer products of ONNX as float products between DequantizeLinear and QuantizeLinear.

A kernel for quantised products reads one form, whatever tool wrote the model.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from ridgeline.base.spec import EPSILON
from ridgeline.passes.fold_shape import Size, sizes
from ridgeline.passes.match import attributes, constant
from ridgeline.passes.rule import Change, Fusion, Match

# sums of so many products of 8-bit levels stay inside 32 bits, as the integer ops have them
MOST_TERMS = 2**31 // (255 * 255)
# of a level: by so much may a sum of floats round that stands for one of integers, before it is made a level
MOST_ROUNDING = 1 / 8


class QLinearConvAsConv(Fusion):
    """QLinearConv(x, w, b) = QuantizeLinear(Conv(Dequantize(x), Dequantize(w), b·s_x·s_w))"""

    may_change = (Change.LEVEL,)

    def pattern(
        self, op: Any, x: Any, xs: Any, xz: Any, w: Any, ws: Any, wz: Any, ys: Any, yz: Any, b: Any
    ) -> Any:
        known = (op.known(v) for v in (xs, xz, ws, wz, ys, yz))
        xs, xz, ws, wz, ys, yz = known
        return op.QLinearConv(x, xs, xz, w, ws, wz, ys, yz, b)

    def check(self, m: Match) -> None:
        _require_one(m, "xs", "xz", "ys", "yz")
        for name in ("xs", "ws", "ys"):
            m.require(m.array(name).dtype == np.float32, f"{name} is not float32", getattr(m, name))
        w = sizes(m.w)
        m.require(w is not None and all(isinstance(n, int) for n in w), "sizes of the weight are open", m.w)
        _require_terms(m, [n for n in (w or ())[1:] if isinstance(n, int)])
        m.require(m.b is None or constant(m.b) is not None, "the bias changes between runs", m.b)
        largest = _largest_sums(m, "xz", "w", "wz", summed=tuple(range(1, len(w or ()))))
        if m.b is not None:
            largest = largest + np.abs(m.array("b").astype(np.float64))
        _require_sums(m, largest, m.array("xs") * m.array("ws"))

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        ws, wz = _paired(op, m, "ws", "wz")
        x, w = _numbers(op, m.x, *_paired(op, m, "xs", "xz")), _numbers(op, m.w, ws, wz, axis=0)
        bias = None
        if m.b is not None:
            unit = (m.array("xs").reshape(()) * m.array("ws").reshape(-1)).astype(np.float32)
            bias = op.const((m.array("b").astype(np.float32) * unit).astype(np.float32))
        y = op.Conv(x, w, bias, **attributes(m.root))
        return _levels(op, m, y)


class QLinearMatMulAsMatMul(Fusion):
    """QLinearMatMul(a, b) = QuantizeLinear(MatMul(Dequantize(a), Dequantize(b)))"""

    may_change = (Change.LEVEL,)

    def pattern(self, op: Any, a: Any, s: Any, z: Any, b: Any, bs: Any, bz: Any, ys: Any, yz: Any) -> Any:
        s, z, bs, bz, ys, yz = (op.known(v) for v in (s, z, bs, bz, ys, yz))
        return op.QLinearMatMul(a, s, z, b, bs, bz, ys, yz)

    def check(self, m: Match) -> None:
        _require_one(m, "s", "z", "ys", "yz")
        for name in ("s", "bs", "ys"):
            m.require(m.array(name).dtype == np.float32, f"{name} is not float32", getattr(m, name))
        _require_columns(m, "bs", "bz")
        _require_sums(m, _largest_sums(m, "z", "b", "bz", summed=(-2,)), m.array("s") * m.array("bs"))

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        bs, bz = _paired(op, m, "bs", "bz")
        a = _numbers(op, m.a, *_paired(op, m, "s", "z"))
        y = op.MatMul(a, _numbers(op, m.b, bs, bz, axis=len(sizes(m.b) or ()) - 1))
        return _levels(op, m, y)


class IntegerMatMul(Fusion):
    """Cast(MatMulInteger(a, b))·(s_a·s_b) = MatMul(Dequantize(a), Dequantize(b))"""

    may_change = (Change.ROUNDING, Change.DYNAMIC_SCALE)

    def pattern(self, op: Any, a: Any, b: Any, az: Any, bz: Any, s: Any, bs: Any) -> Any:
        whole = op.MatMulInteger(a, b, az, bz)
        return op.Mul(op.Cast(whole, to=int(ir.DataType.FLOAT)), op.shared(op.Mul(s, op.known(bs))))

    def check(self, m: Match) -> None:
        a, b = sizes(m.a), sizes(m.b)
        m.require(a is not None and b is not None, "how many axes it has is open", m.a if a is None else m.b)
        # a vector has no axis of rows, and its product none
        _require_scale(m, max(len(a or ()), len(b or ())) - (len(a or ()) == 1))
        m.require(m.az is None or _is_one(m.az), "rows have zero points of their own", m.az)
        m.require(m.bz is None or constant(m.bz) is not None, "the zero point of b changes", m.bz)
        _require_columns(m, "bs", "bz")

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        bs, bz = _paired(op, m, "bs", "bz")
        last = len(sizes(m.b) or ()) - 1
        return op.MatMul(_numbers(op, m.a, m.s, m.az), _numbers(op, m.b, bs, bz, axis=last))


class IntegerConv(Fusion):
    """Cast(ConvInteger(x, w))·(s_x·s_w) = Conv(Dequantize(x), Dequantize(w))"""

    may_change = (Change.ROUNDING, Change.DYNAMIC_SCALE)

    def pattern(self, op: Any, a: Any, b: Any, az: Any, bz: Any, s: Any, bs: Any) -> Any:
        whole = op.ConvInteger(a, b, az, bz)
        return op.Mul(op.Cast(whole, to=int(ir.DataType.FLOAT)), op.shared(op.Mul(s, op.known(bs))))

    def check(self, m: Match) -> None:
        w = sizes(m.b)
        m.require(w is not None and all(isinstance(n, int) for n in w), "sizes of the weight are open", m.b)
        assert w is not None, "refused just now"
        _require_scale(m, len(w))
        _require_channels(m, w)
        m.require(m.az is None or _is_one(m.az), "it has several zero points", m.az)
        _require_terms(m, [n for n in (w or ())[1:] if isinstance(n, int)])

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        bs, bz = _paired(op, m, "bs", "bz")
        convolve = next(node for node in m.nodes if node.op_type == "ConvInteger")
        x, w = _numbers(op, m.a, m.s, m.az), _numbers(op, m.b, bs, bz, axis=0)
        return op.Conv(x, w, **attributes(convolve))


def _is_one(value: ir.Value) -> bool:
    """One number, in a form that DequantizeLinear takes."""
    dims = sizes(value)
    return dims is not None and len(dims) <= 1 and all(size == 1 for size in dims)


def _require_one(m: Match, *names: str) -> None:
    """One number for the whole tensor."""
    for name in names:
        array = m.array(name)
        m.require(array.size == 1, f"{name} has {array.size} values, want one", getattr(m, name))


def _require_scale(m: Match, rank: int) -> None:
    """The scale of what is multiplied is one number of float32, and no part of the weight's.

    Scales of more axes than the product has, which are `rank`, would give their axes to the result.
    """
    m.require(_is_one(m.s), "rows have scales of their own", m.s)
    axes = max(m.array("bs").ndim, len(sizes(m.s) or ()))
    m.require(axes <= rank, f"scales have {axes} axes, their product {rank}", m.bs)
    m.require(m.s.dtype == ir.DataType.FLOAT, f"scales are {m.s.dtype}", m.s)
    m.require(m.array("bs").dtype == np.float32, "the scale of the weight is not float32", m.bs)


def _require_terms(m: Match, sizes_summed: list[int]) -> None:
    terms = int(np.prod(sizes_summed)) if sizes_summed else 1
    m.require(terms <= MOST_TERMS, f"sums of {terms} products pass 32 bits")


def _require_sums(m: Match, largest: np.ndarray, unit: np.ndarray) -> None:
    """Floats add up to the same levels as integers do, although terms of a sum, or its bias, may cancel.

    `largest` are sums of magnitudes by channel, counted in products of levels; `unit` is what one stands for.
    """
    step = float(m.array("ys").reshape(()))
    m.require(step > 0, f"ys is {step}, want a number above 0", m.ys)
    levels = largest * (unit.reshape(-1).astype(np.float64) / step)
    off = float(levels.max(initial=0.0)) * EPSILON["float32"] / 2
    m.require(off <= MOST_ROUNDING, f"sums of floats would round by {off:.2g} of a level")


def _largest_sums(m: Match, x_zero: str, w: str, w_zero: str, *, summed: tuple[int, ...]) -> np.ndarray:
    """By channel of the weight: the most that the magnitudes of its products, in levels, can add up to."""
    point = m.array(x_zero)
    ends = np.iinfo(point.dtype)
    widest = max(int(point.reshape(())) - ends.min, ends.max - int(point.reshape(())))
    weight, dims = constant(getattr(m, w)), sizes(getattr(m, w)) or ()
    if weight is None:
        return np.array(255.0 * widest * math.prod(int(dims[i]) for i in summed))
    zero = m.array(w_zero).astype(np.int64)
    # channels are the first axis of a convolution's weight, and the last of a matrix
    aligned = zero.reshape(-1, *(1,) * len(summed)) if summed != (-2,) and zero.size > 1 else zero.reshape(-1)
    made: np.ndarray = widest * np.abs(weight.astype(np.int64) - aligned).sum(summed).astype(np.float64)
    return made


def _require_columns(m: Match, scale: str, zero: str) -> None:
    """b is a matrix, with one scale or one per column."""
    dims = sizes(m.b)
    m.require(dims is not None and len(dims) >= 2, "b is not known to have two axes", m.b)
    assert dims is not None, "refused just now"
    m.require(isinstance(dims[-2], int), "how many products are summed is open", m.b)
    _require_terms(m, [int(dims[-2])] if isinstance(dims[-2], int) else [])
    for name in (scale, zero):
        array = None if getattr(m, name) is None else m.array(name)
        if array is not None and array.size > 1:
            fits = len(dims) == 2 and array.shape[-1] == array.size == dims[-1]
            m.require(fits, f"{name} of {list(array.shape)} is not one number per column", getattr(m, name))


def _require_channels(m: Match, weight: tuple[Size, ...]) -> None:
    """One scale, or one per channel of the result."""
    array = m.array("bs")
    aligned = (1,) * (len(weight) - array.ndim) + array.shape
    fits = array.size == 1 or (len(aligned) > 1 and aligned[1] == array.size == weight[0])
    m.require(fits, f"bs of {list(array.shape)} is not one number per channel", m.bs)
    points = 1 if m.bz is None else m.array("bz").size
    m.require(points in (1, weight[0]), f"{points} zero points for {weight[0]} channels", m.bz)


def _paired(op: Any, m: Match, scale: str, zero: str) -> tuple[ir.Value, ir.Value | None]:
    """A scale and its zero point with as many numbers each, as DequantizeLinear takes them."""
    s, z = m.array(scale), None if getattr(m, zero) is None else m.array(zero)
    if s.ndim <= 1 and (z is None or s.shape == z.shape):
        return getattr(m, scale), getattr(m, zero)
    count = max(s.size, 1 if z is None else z.size)
    made = (None if a is None else np.broadcast_to(a.reshape(-1), (count,)).copy() for a in (s, z))
    first, second = (None if a is None else op.const(a) for a in made)
    return first, second


def _numbers(
    op: Any, levels: ir.Value, scale: ir.Value, zero: ir.Value | None, axis: int | None = None
) -> ir.Value:
    has_channels = axis is not None and not _is_one(scale)
    made: ir.Value = op.DequantizeLinear(levels, scale, zero, axis=axis if has_channels else None)
    made.dtype, made.shape = ir.DataType.FLOAT, levels.shape
    return made


def _levels(op: Any, m: Match, numbers: ir.Value) -> ir.Value:
    numbers.dtype, numbers.shape = ir.DataType.FLOAT, m.root.outputs[0].shape
    made: ir.Value = op.QuantizeLinear(numbers, *_paired(op, m, "ys", "yz"))
    return made


RULES: tuple[Fusion, ...] = (QLinearConvAsConv(), QLinearMatMulAsMatMul(), IntegerMatMul(), IntegerConv())
