"""Rules that recognise normalisation layers however an exporter spelled them, and write the standard op."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ridgeline.passes.match import constant
from ridgeline.passes.rule import Change, Fusion, Match

# beyond this an "epsilon" is part of the model's arithmetic rather than a guard against zero
_MAX_EPSILON = 1e-1
_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def _over_deviation(op: Any, value: Any, variance: Any, eps: Any) -> Any:
    """value / sqrt(variance + eps) in its spellings."""
    guarded = op.Add(variance, eps)
    deviation = op.either(op.Sqrt(guarded), op.Pow(guarded, 0.5))
    return op.either(op.Div(value, deviation), op.Mul(value, _inverse(op, guarded, deviation)))


def _inverse(op: Any, guarded: Any, deviation: Any) -> Any:
    return op.either(op.Reciprocal(deviation), op.Div(1.0, deviation), op.Pow(guarded, -0.5))


def _square(op: Any, value: Any) -> Any:
    return op.either(op.Pow(value, 2.0), op.Mul(value, value))


def _require_last_axis(m: Match, name: str) -> None:
    value = getattr(m, name)
    axes = m.const(name)
    m.require(
        axes in ([-1], [len(m.dims(m.x)) - 1]), f"mean over axes {axes}, not over the last axis only", value
    )


def _require_float(m: Match) -> None:
    """The ops keep their state in float32, and epsilon in a float32 attribute."""
    m.require(
        m.x.dtype in (ir.DataType.FLOAT, *_HALF), f"input is {m.x.dtype}, want float32 or a half type", m.x
    )


def _require_epsilon(m: Match) -> None:
    eps = m.scalar("eps")
    m.require(m.array("eps").ndim <= len(m.dims(m.x)), "epsilon raises the rank", m.eps)
    m.require(0.0 <= eps <= _MAX_EPSILON, f"epsilon is {eps}, want 0 to {_MAX_EPSILON}", m.eps)


def _width(m: Match) -> int:
    """Elements of the normalised axis; refuses when they are not known."""
    width = (m.dims(m.x) or (None,))[-1]
    if not isinstance(width, int):
        m.refuse("size of the normalised axis is unknown", m.x)
    return width


def _require_per_column(m: Match, name: str) -> None:
    """A weight of one entry per column; a constant may have axes of size one in front."""
    value = getattr(m, name)
    if value is None:
        return
    *front, last = m.dims(value) or (None,)
    fits = last == _width(m) and all(size == 1 for size in front) and len(front) < len(m.dims(m.x))
    is_row = fits and (not front or constant(value) is not None)
    m.require(is_row, f"{name} has shape {value.shape}, want [{_width(m)}]", value)


def _row(op: Any, m: Match, name: str) -> ir.Value:
    """The weight as [C]; ones when the model has none."""
    value = getattr(m, name)
    if value is None:
        return op.const(np.ones(_width(m), dtype=m.x.dtype.numpy()))
    return value if value.shape.rank() == 1 else op.const(m.array(name).reshape(-1))


class LayerNorm(Fusion):
    """(x - mean x) / sqrt(mean (x - mean x)² + eps) · w + b"""

    may_change = (Change.ROUNDING, Change.HALF_OVERFLOW, Change.INTERMEDIATE)

    def pattern(self, op: Any, x: Any, axes: Any, axes2: Any, eps: Any, w: Any, b: Any) -> Any:
        centred = op.Sub(x, op.ReduceMean(x, axes, keepdims=1))
        variance = op.ReduceMean(_square(op, centred), axes2, keepdims=1)
        normal = _over_deviation(op, centred, variance, eps)
        return op.either(op.Add(op.Mul(normal, w), b), op.Mul(normal, w), normal)

    def check(self, m: Match) -> None:
        _require_last_axis(m, "axes")
        _require_last_axis(m, "axes2")
        _require_epsilon(m)
        _require_float(m)
        _require_per_column(m, "w")
        _require_per_column(m, "b")

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        b = None if m.b is None else _row(op, m, "b")
        return op.LayerNormalization(m.x, _row(op, m, "w"), b, axis=-1, epsilon=m.scalar("eps"))


class LayerNormByMoments(LayerNorm):
    """x · s + (b - mean x · s), s = w / sqrt(mean (x - mean x)² + eps): Keras"""

    may_change = (Change.ROUNDING, Change.HALF_OVERFLOW, Change.INTERMEDIATE)

    def pattern(self, op: Any, x: Any, axes: Any, axes2: Any, eps: Any, w: Any, b: Any) -> Any:
        mean = op.ReduceMean(x, axes, keepdims=1)
        guarded = op.Add(op.ReduceMean(_square(op, op.Sub(x, mean)), axes2, keepdims=1), eps)
        inverse = _inverse(op, guarded, op.either(op.Sqrt(guarded), op.Pow(guarded, 0.5)))
        scale = op.either(op.Mul(inverse, w), inverse)
        moved = op.either(op.Mul(op.Neg(mean), scale), op.Neg(op.Mul(mean, scale)))
        shift = op.either(op.Sub(b, op.Mul(mean, scale)), op.Add(moved, b), moved)
        return op.Add(op.Mul(x, scale), shift)


class RMSNorm(Fusion):
    """x / sqrt(mean(x²) + eps) · w"""

    may_change = (Change.ROUNDING, Change.HALF_OVERFLOW)

    def pattern(self, op: Any, x: Any, axes: Any, eps: Any, w: Any) -> Any:
        # half-precision models widen for the mean and narrow again before the weight
        wide = op.either(op.Cast(x, to=1), x)
        normal = _over_deviation(op, wide, op.ReduceMean(_square(op, wide), axes, keepdims=1), eps)
        narrow = op.either(op.Cast(normal), normal)
        return op.either(op.Mul(narrow, w), narrow)

    def check(self, m: Match) -> None:
        _require_last_axis(m, "axes")
        _require_epsilon(m)
        _require_float(m)
        m.require(m.root.outputs[0].dtype == m.x.dtype, "result has another type than the input", m.x)
        inner = m.w.dtype if m.w is not None else m.x.dtype
        m.require(inner == m.x.dtype, f"weight is {inner}, the input {m.x.dtype}", m.w)
        _require_per_column(m, "w")

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        return op.RMSNormalization(m.x, _row(op, m, "w"), axis=-1, epsilon=m.scalar("eps"))


class GroupNorm(Fusion):
    """reshape(InstanceNormalization(reshape(x, [N, G, -1])), shape of x) · w + b"""

    may_change = (Change.ROUNDING, Change.HALF_OVERFLOW, Change.INTERMEDIATE)

    def pattern(self, op: Any, x: Any, groups: Any, ones: Any, zeros: Any, shape: Any, w: Any, b: Any) -> Any:
        normal = op.Reshape(op.InstanceNormalization(op.Reshape(x, groups), ones, zeros), shape)
        scaled = op.Mul(normal, op.known(w))
        # a scale of ones or a shift of zeros is gone by now
        return op.either(op.Add(scaled, op.known(b)), op.Add(normal, op.known(b)), scaled, normal)

    def check(self, m: Match) -> None:
        source = m.dims(m.x)
        grouped = m.target(m.node("InstanceNormalization").inputs[0].producer())
        m.require(len(source) > 2, "input has no spatial axes", m.x)
        _require_float(m)
        groups, channels = m.array("ones").size, source[1]
        is_split = len(grouped) == 3 and grouped[:2] == (source[0], groups)
        is_split = is_split and isinstance(channels, int) and channels % groups == 0
        m.require(is_split, "not groups of channels", m.groups)
        m.require(bool(np.all(m.array("ones") == 1.0)), "groups are scaled", m.ones)
        m.require(not np.any(m.array("zeros")), "groups are shifted", m.zeros)
        back = next(node for node in m.nodes if node.op_type == "Reshape")
        m.require(m.target(back) == source, "does not return to the shape before", m.shape)
        for name in ("w", "b"):
            if getattr(m, name) is None:
                continue
            per_channel = (channels, *[1] * (len(source) - 2))
            shape = m.array(name).shape
            is_per_channel = shape == per_channel or shape == (1, *per_channel)
            m.require(
                is_per_channel, f"{name} has shape {shape}, want one entry per channel", getattr(m, name)
            )

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        neutral = np.ones(int(m.dims(m.x)[1]), m.x.dtype.numpy())
        w = op.const(neutral if m.w is None else m.array("w").reshape(-1))
        b = op.const(0 * neutral if m.b is None else m.array("b").reshape(-1))
        groups = int(m.array("ones").size)
        eps = m.attr("InstanceNormalization", "epsilon")
        return op.GroupNormalization(m.x, w, b, num_groups=groups, epsilon=eps)


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


RULES: tuple[Fusion, ...] = (LayerNorm(), LayerNormByMoments(), RMSNorm(), GroupNorm())
# for half-precision models that widen around an op whose state is float32 by definition anyway
HALF_RULES: tuple[Fusion, ...] = (HalfSoftmax(), HalfNorm())
