"""Rules that recognise activations and softmax however an exporter spelled them, and write the standard op.

SiLU and QuickGelu stay or become `x * Sigmoid(..)`: opset 23 has no op for them and regions fuse the pair.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from ridgeline.passes.match import constant
from ridgeline.passes.rule import Change, Fusion, Match


def _as_large(op: Any, m: Match, made: ir.Value, factor: float) -> ir.Value:
    """The result, by way of `factor` times it where the model has that and scales it down last.

    For x of 3e38 twice that is infinite, and so is the model's Gelu. Half types may avoid such an overflow.
    """
    is_scaled_last = any(constant(value) is not None for value in m.root.inputs)
    if not is_scaled_last or m.x.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
        return made
    number = op.const(np.array(factor, m.x.dtype.numpy()))
    return op.Div(op.Mul(made, number), number)


def _half_of_product(op: Any, x: Any, factor: Any) -> Any:
    """0.5 * x * factor in every order of association."""

    def half(value: Any) -> Any:
        return op.either(op.Mul(value, 0.5), op.Div(value, 2.0))

    return op.either(op.Mul(x, half(factor)), op.Mul(half(x), factor), half(op.Mul(x, factor)))


class GeluErf(Fusion):
    """x · 0.5 · (1 + erf(x / √2))"""

    may_change = (Change.ROUNDING, Change.HALF_OVERFLOW)
    approximate = "none"

    def pattern(self, op: Any, x: Any) -> Any:
        scaled = op.either(op.Div(x, math.sqrt(2.0)), op.Mul(x, math.sqrt(0.5)))
        return _half_of_product(op, x, op.Add(op.Erf(scaled), 1.0))

    def check(self, m: Match) -> None:
        m.require(m.x.dtype is not None, "type of the input is unknown", m.x)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        return _as_large(op, m, op.Gelu(m.x, approximate=self.approximate), 2.0)


class GeluTanh(GeluErf):
    """x · 0.5 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))"""

    may_change = (Change.ROUNDING, Change.HALF_OVERFLOW)
    approximate = "tanh"

    def pattern(self, op: Any, x: Any) -> Any:
        square = op.either(op.Mul(x, x), op.Pow(x, 2.0))
        cube = op.either(op.Pow(x, 3.0), op.Mul(x, square))
        bent = op.either(
            op.Add(x, op.either(op.Mul(cube, 0.044715), op.Mul(x, op.Mul(square, 0.044715)))),
            op.Mul(x, op.Add(op.Mul(square, 0.044715), 1.0)),
        )
        inner = op.either(
            op.Mul(bent, math.sqrt(2.0 / math.pi)),
            op.Mul(op.Mul(x, math.sqrt(2.0 / math.pi)), op.Add(op.Mul(square, 0.044715), 1.0)),
        )
        return _half_of_product(op, x, op.Add(op.Tanh(inner), 1.0))


def _relu6_of_shifted(op: Any, x: Any) -> Any:
    """min(max(x + 3, 0), 6)"""
    shifted = op.Add(x, 3.0)
    return op.either(
        op.Clip(shifted, 0.0, 6.0),
        op.Min(op.Max(shifted, 0.0), 6.0),
        op.Max(op.Min(shifted, 6.0), 0.0),
        op.Min(op.Relu(shifted), 6.0),
    )


def _sixth(op: Any, value: Any) -> Any:
    return op.either(op.Div(value, 6.0), op.Mul(value, 1.0 / 6.0))


def _require_float(m: Match) -> None:
    """The canonical op exists for float32 everywhere; integers and doubles stay spelled out."""
    m.require(m.x.dtype == ir.DataType.FLOAT, f"input is {m.x.dtype}, want float32", m.x)


class HardSwish(Fusion):
    """x · min(max(x + 3, 0), 6) / 6"""

    may_change = (Change.ROUNDING,)

    def pattern(self, op: Any, x: Any) -> Any:
        gate = _relu6_of_shifted(op, x)
        return op.either(
            _sixth(op, op.Mul(x, gate)),
            op.Mul(x, _sixth(op, gate)),
            op.Mul(_sixth(op, x), gate),
            op.Mul(x, op.HardSigmoid(x, alpha=1.0 / 6.0, beta=0.5)),
        )

    def check(self, m: Match) -> None:
        _require_float(m)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        return _as_large(op, m, op.HardSwish(m.x), 6.0)


class HardSigmoid(Fusion):
    """min(max(x + 3, 0), 6) / 6"""

    may_change = (Change.ROUNDING,)

    def pattern(self, op: Any, x: Any) -> Any:
        return _sixth(op, _relu6_of_shifted(op, x))

    def check(self, m: Match) -> None:
        _require_float(m)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        return op.HardSigmoid(m.x, alpha=1.0 / 6.0, beta=0.5)


class SpelledSwish(Fusion):
    """swish(x) = x · sigmoid(alpha · x): one spelling for the op of opset 24 and for what came before it"""

    may_change = (Change.ROUNDING, Change.HALF_OVERFLOW)

    def pattern(self, op: Any, x: Any) -> Any:
        return op.Swish(x)

    def check(self, m: Match) -> None:
        m.require(m.x.dtype is not None, "type of the input is unknown", m.x)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        alpha = m.attr("Swish", "alpha")
        inner = m.x if alpha == 1.0 else op.Mul(m.x, op.const(np.array(alpha, m.x.dtype.numpy())))
        return op.Mul(m.x, op.Sigmoid(inner))


class ClipFromMinMax(Fusion):
    """min(max(x, lo), hi) with constant lo <= hi"""

    may_change = (Change.SIGNED_ZERO,)

    def pattern(self, op: Any, x: Any, lo: Any, hi: Any) -> Any:
        low, high = op.known(lo), op.known(hi)
        return op.either(op.Min(op.Max(x, low), high), op.Max(op.Min(x, high), low))

    def check(self, m: Match) -> None:
        for name in ("lo", "hi"):
            m.scalar(name)
        # compared in their own type: floats do not tell large integers apart
        low, high = m.array("lo").item(), m.array("hi").item()
        m.require(low <= high, f"bounds cross: {low} > {high}", m.lo)
        rank = len(m.dims(m.x))
        m.require(max(m.array("lo").ndim, m.array("hi").ndim) <= rank, "a bound raises the rank", m.lo)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        return op.Clip(m.x, op.const(m.array("lo").reshape(())), op.const(m.array("hi").reshape(())))


class SoftmaxFromExp(Fusion):
    """exp(x - max x) / sum exp(x - max x)"""

    may_change = (Change.ROUNDING, Change.HALF_OVERFLOW)

    def pattern(self, op: Any, x: Any, axes: Any, max_axes: Any) -> Any:
        # without the maximum large x overflow: exp(200) is infinite, and its share a NaN
        power = op.Exp(op.Sub(x, op.ReduceMax(x, max_axes, keepdims=1)))
        return op.Div(power, op.ReduceSum(power, axes, keepdims=1))

    def check(self, m: Match) -> None:
        axes = m.const("axes")
        m.require(len(axes) == 1, f"sums over axes {axes}, want one", m.axes)
        rank = len(m.dims(m.x))
        same = [axis % rank for axis in m.const("max_axes")] == [axes[0] % rank]
        m.require(same, "maximum and sum run over different axes", m.max_axes)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        return op.Softmax(m.x, axis=m.const("axes")[0])


class FlatSoftmax(Fusion):
    """reshape(softmax(flatten(x)), shape of x) = softmax(x) over the last axis"""

    may_change = ()

    def pattern(self, op: Any, x: Any, flat: Any, shape: Any) -> Any:
        rows = op.either(op.Flatten(x), op.Reshape(x, flat))
        return op.Reshape(op.Softmax(rows), shape)

    def check(self, m: Match) -> None:
        source = m.dims(m.x)
        rows = m.node("Softmax").inputs[0]
        flat = m.dims(rows)
        m.require(len(flat) == 2 and flat[1] == source[-1], "rows are not the last axis", rows)
        m.require(m.attr("Softmax", "axis") in (-1, 1), "softmax is not over the rows", rows)
        m.require(m.target(m.root) == source, "does not return to the shape before", m.shape)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        return op.Softmax(m.x, axis=-1)


class GlobalAverage(Fusion):
    """mean over all spatial axes of [N, C, ...], axes kept"""

    may_change = (Change.ROUNDING,)

    def pattern(self, op: Any, x: Any, axes: Any) -> Any:
        return op.ReduceMean(x, axes, keepdims=1)

    def check(self, m: Match) -> None:
        _require_float(m)
        rank = len(m.dims(m.x))
        m.require(rank > 2, "input has no spatial axes", m.x)
        axes = sorted(axis % rank for axis in m.const("axes"))
        m.require(axes == list(range(2, rank)), f"mean over axes {axes}, want all from 2", m.axes)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        return op.GlobalAveragePool(m.x)


class DivByPowerOfTwo(Fusion):
    """x / c = x · (1/c), exact for powers of two"""

    may_change = ()

    def pattern(self, op: Any, x: Any, c: Any) -> Any:
        return op.Div(x, c)

    def check(self, m: Match) -> None:
        c = m.array("c")
        m.require(c.dtype.kind == "f", "not a floating-point division", m.c)
        mantissa, exponent = np.frexp(c)
        # the reciprocal of a tiny or huge power is subnormal or infinite
        is_exact = np.all(np.abs(mantissa) == 0.5) and np.all(np.abs(exponent) < 14)
        m.require(is_exact, "the reciprocal is not exact", m.c)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        return op.Mul(m.x, op.const((1.0 / m.array("c")).astype(m.array("c").dtype)))


RULES: tuple[Fusion, ...] = (
    GeluErf(),
    GeluTanh(),
    HardSwish(),
    HardSigmoid(),
    SpelledSwish(),
    ClipFromMinMax(),
    SoftmaxFromExp(),
    FlatSoftmax(),
    GlobalAverage(),
)

# last: the rules before it know constants by the value the exporter wrote
LATE_RULES: tuple[Fusion, ...] = (DivByPowerOfTwo(),)
