"""Rules that move per-channel arithmetic and zero padding into the weights and attributes of an op.

Weights are recomputed in float64 and rounded once: a plain reassociation of what the model does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ridgeline.passes.match import attributes
from ridgeline.passes.rule import Change, Fusion, Match

_CONVS = ("Conv", "ConvTranspose")


def _product(m: Match) -> ir.Node:
    return next(node for node in m.nodes if node.op_type in (*_CONVS, "Gemm", "MatMul"))


def _again(op: Any, m: Match, w: ir.Value, b: ir.Value | None) -> ir.Value:
    """The product with other weights."""
    return op.call(_product(m).op_type, m.x, w, b, **attributes(_product(m)))


def _out_channels(m: Match) -> int:
    """Channels a convolution, Gemm or MatMul with constant weights puts out."""
    node, shape = _product(m), m.array("w").shape
    if node.op_type == "Conv":
        return int(shape[0])
    if node.op_type == "ConvTranspose":
        return int(shape[1]) * int(m.attr("ConvTranspose", "group"))
    return int(shape[0 if node.op_type == "Gemm" and m.attr("Gemm", "transB") else -1])


def _scaled_weight(m: Match, scale: np.ndarray) -> np.ndarray:
    """The weights with each output channel multiplied by its entry of `scale` [C]."""
    node, w = _product(m), m.array("w")
    wide = w.astype(np.float64)
    if node.op_type == "Conv":
        wide = wide * scale.reshape(-1, *[1] * (w.ndim - 1))
    elif node.op_type == "ConvTranspose":
        # [C_in, C_out / groups, ...]: the groups of output channels lie along the input axis
        groups = int(m.attr("ConvTranspose", "group"))
        split = wide.reshape(groups, w.shape[0] // groups, *w.shape[1:])
        wide = (split * scale.reshape(groups, 1, w.shape[1], *[1] * (w.ndim - 2))).reshape(w.shape)
    elif node.op_type == "Gemm" and m.attr("Gemm", "transB"):
        wide = wide * scale[:, None]
    else:
        wide = wide * scale
    return _narrowed(m, wide)


def _narrowed(m: Match, wide: np.ndarray) -> np.ndarray:
    """In the type of the weights; refuses where a number would become infinite on the way."""
    with np.errstate(over="ignore"):
        narrow: np.ndarray = wide.astype(m.array("w").dtype)
    m.require(bool(np.all(np.isfinite(narrow))), f"folded weights pass the range of {narrow.dtype}", m.w)
    return narrow


def _bias(m: Match) -> np.ndarray:
    if m.b is None:
        return np.zeros(_out_channels(m))
    return np.broadcast_to(m.array("b").astype(np.float64).reshape(-1), (_out_channels(m),))


def _per_channel(m: Match, name: str) -> np.ndarray:
    """A constant that varies along axis 1 of the convolution's output at most, as [C]."""
    array = m.array(name)
    rank = m.array("w").ndim
    shape = (1,) * (rank - array.ndim) + array.shape
    channels = _out_channels(m)
    others = [size for axis, size in enumerate(shape) if axis != 1]
    fits = len(shape) == rank and set(others) == {1} and shape[1] in (1, channels)
    m.require(fits, f"constant of shape {array.shape} is not per channel", getattr(m, name))
    return np.broadcast_to(array.astype(np.float64).reshape(-1), (channels,))


def _require_float_weight(m: Match) -> None:
    m.require(m.array("w").dtype.kind in "fV", f"weights are {m.array('w').dtype}, not a float type", m.w)


def _require_statistics(m: Match) -> None:
    """What a BatchNormalization scales and shifts by is constant."""
    m.require(not m.attr("BatchNormalization", "training_mode"), "normalises by batch statistics")
    for name in ("gamma", "beta", "mean", "var"):
        m.array(name)


def _norm_scale(m: Match) -> np.ndarray:
    """gamma / sqrt(var + eps) of a BatchNormalization"""
    deviation = np.sqrt(m.array("var").astype(np.float64) + m.attr("BatchNormalization", "epsilon"))
    scale: np.ndarray = m.array("gamma").astype(np.float64) / deviation
    return scale


class BatchNormIntoWeights(Fusion):
    """BatchNormalization(op(x, w, b)) = op(x, w·s, (b - mean)·s + beta), s = gamma / sqrt(var + eps)"""

    may_change = (Change.ROUNDING, Change.HALF_OVERFLOW, Change.INTERMEDIATE)

    def pattern(self, op: Any, x: Any, w: Any, b: Any, gamma: Any, beta: Any, mean: Any, var: Any) -> Any:
        product = op.either(op.Conv(x, w, b), op.ConvTranspose(x, w, b), op.Gemm(x, w, b), op.MatMul(x, w))
        return op.BatchNormalization(product, gamma, beta, mean, var)

    def check(self, m: Match) -> None:
        _require_statistics(m)
        _require_float_weight(m)
        node = _product(m)
        if node.op_type not in _CONVS:
            made = node.outputs[0].shape
            has_columns = made is not None and made.rank() == m.array("w").ndim == 2
            m.require(has_columns, "channels are not the columns of the product", m.x)
        if m.b is not None:
            bias = m.array("b")
            m.require(bias.size in (1, _out_channels(m)), "bias is not per channel", m.b)
            m.require(bias.size == 1 or bias.shape[-1] == bias.size, "bias is per row, not per column", m.b)
        if node.op_type == "Gemm":
            m.require(m.attr("Gemm", "beta") == 1.0, "Gemm scales its bias", m.b)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        scale = _norm_scale(m)
        shift = (_bias(m) - m.array("mean")) * scale + m.array("beta")
        w = op.const(_scaled_weight(m, scale))
        b = op.const(_narrowed(m, shift))
        return op.Add(op.MatMul(m.x, w), b) if _product(m).op_type == "MatMul" else _again(op, m, w, b)


class BatchNormAlone(Fusion):
    """BatchNormalization(x) = x·s + (beta - mean·s), s = gamma / sqrt(var + eps)"""

    may_change = (Change.ROUNDING, Change.HALF_OVERFLOW, Change.INTERMEDIATE)

    def pattern(self, op: Any, x: Any, gamma: Any, beta: Any, mean: Any, var: Any) -> Any:
        return op.BatchNormalization(x, gamma, beta, mean, var)

    def check(self, m: Match) -> None:
        _require_statistics(m)
        m.require(
            m.x.shape is not None and m.x.dtype is not None, "rank or type of the input is unknown", m.x
        )

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        scale = _norm_scale(m)
        shift = m.array("beta") - m.array("mean") * scale
        shape = (-1, *[1] * (m.x.shape.rank() - 2))
        dtype = m.x.dtype.numpy()
        scaled = op.Mul(m.x, op.const(scale.reshape(shape).astype(dtype)))
        return op.Add(scaled, op.const(shift.reshape(shape).astype(dtype)))


def _require_constants(m: Match) -> None:
    """Weights and bias of a convolution, and what follows for each channel, are known."""
    _require_float_weight(m)
    _per_channel(m, "c")
    if m.b is not None:
        m.array("b")


class ScaleIntoConv(Fusion):
    """Conv(x, w, b)·s = Conv(x, w·s, b·s): scale folded into Conv weights"""

    may_change = (Change.ROUNDING, Change.HALF_OVERFLOW, Change.INTERMEDIATE)

    def pattern(self, op: Any, x: Any, w: Any, b: Any, c: Any) -> Any:
        return op.Mul(op.either(op.Conv(x, w, b), op.ConvTranspose(x, w, b)), op.known(c))

    def check(self, m: Match) -> None:
        _require_constants(m)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        scale = _per_channel(m, "c")
        b = None if m.b is None else op.const(_narrowed(m, _bias(m) * scale))
        return _again(op, m, op.const(_scaled_weight(m, scale)), b)


class ShiftIntoConv(Fusion):
    """Conv(x, w, b) + c = Conv(x, w, b + c): per-channel constant folded into Conv bias"""

    may_change = (Change.ROUNDING, Change.HALF_OVERFLOW, Change.INTERMEDIATE)

    def pattern(self, op: Any, x: Any, w: Any, b: Any, c: Any) -> Any:
        return op.Add(op.either(op.Conv(x, w, b), op.ConvTranspose(x, w, b)), op.known(c))

    def check(self, m: Match) -> None:
        _require_constants(m)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        return _again(op, m, m.w, op.const(_narrowed(m, _bias(m) + _per_channel(m, "c"))))


class PadIntoWindow(Fusion):
    """Conv(Pad(x)) = Conv(x, pads), likewise AveragePool over zeros and MaxPool over -inf"""

    may_change = (Change.ROUNDING, Change.SIGNED_ZERO)

    def pattern(self, op: Any, x: Any, pads: Any, fill: Any, w: Any, b: Any) -> Any:
        padded = op.Pad(x, pads, fill)
        return op.either(op.Conv(padded, w, b), op.AveragePool(padded), op.MaxPool(padded))

    def check(self, m: Match) -> None:
        pads = m.const("pads")
        rank = len(pads) // 2
        m.require(m.attr("Pad", "mode") == "constant", f"pads by {m.attr('Pad', 'mode')}", m.pads)
        m.require(min(pads) >= 0, "padding crops", m.pads)
        m.require(not any([*pads[:2], *pads[rank : rank + 2]]), "pads batch or channels", m.pads)
        m.require(m.attr(m.root.op_type, "auto_pad") == "NOTSET", "auto_pad")
        fill = 0.0 if m.fill is None else m.scalar("fill")
        if m.root.op_type == "MaxPool":
            m.require(fill == -np.inf, f"pads a maximum with {fill}", m.pads)
        else:
            m.require(fill == 0.0, f"pads with {fill}, want 0", m.pads)
        if m.root.op_type == "AveragePool":
            pads_more = any(m.attr("AveragePool", "pads") or ())
            is_counted = not pads_more or m.attr("AveragePool", "count_include_pad")
            m.require(is_counted, "the pool has uncounted padding")
        if m.root.op_type != "Conv":
            m.require(not m.attr(m.root.op_type, "ceil_mode"), "the pool rounds its size up")
            kernel = m.attr(m.root.op_type, "kernel_shape")
            fits = all(max(pads[2 + i], pads[rank + 2 + i]) < size for i, size in enumerate(kernel))
            m.require(fits, "padding is not smaller than the window", m.pads)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        pads = m.const("pads")
        rank = len(pads) // 2
        spatial = [*pads[2:rank], *pads[rank + 2 :]]
        attrs = attributes(m.root)
        own = attrs.get("pads") or [0] * len(spatial)
        attrs["pads"] = [a + b for a, b in zip(own, spatial, strict=True)]
        if m.root.op_type == "AveragePool":
            attrs["count_include_pad"] = 1
        return getattr(op, m.root.op_type)(m.x, m.w, m.b, **attrs)


RULES: tuple[Fusion, ...] = (
    BatchNormIntoWeights(),
    BatchNormAlone(),
    ScaleIntoConv(),
    ShiftIntoConv(),
    PadIntoWindow(),
)
