"""Ops that reduce over axes, as folds with steps before and after them: means, softmax, norms."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Op, Site
from ridgeline.kernels.scalar.lowering import Lowering, Val, reshaped
from ridgeline.kernels.scalar.ops import (
    FLOATS,
    POINTWISE,
    Handler,
    args_of,
    attr,
    dims_of,
    number,
    per_channel,
    require_float,
)
from ridgeline.kernels.scalar.program import Program, Traits


def _reduce(kind: str, before: str = "{0}", after: str = "{0}") -> Handler:
    def handler(low: Lowering, op: Op) -> Sequence[Val]:
        x = low.value(op.inputs[0])
        dims = _reduced(low, op, x)
        keepdims = bool(op.attrs.get("keepdims", 1))
        if kind in ("max", "min") and x.dtype in FLOATS:
            y = _extreme(low, kind, x, dims, keepdims)
        else:
            y = low.fold(kind, low.map(before, x) if before != "{0}" else x, dims, keepdims=keepdims)
        if after == "{0}":
            return [y]
        # the mean, root or logarithm of integers is computed in float64 and truncated
        if y.dtype not in FLOATS and 0 in x.shape:
            raise RefusedError(f"{op.op_type} of no integers, which compilers take for any number")
        wide = y if y.dtype in FLOATS else low.cast(y, "float64")
        return [low.cast(low.map(after, wide, _count(low, wide, x, dims)), y.dtype)]

    return handler


def _reduced(low: Lowering, op: Op, x: Val) -> list[int]:
    if op.op_type.startswith("Global"):
        return list(range(2, len(x.shape)))
    dims = dims_of(low, op, "the reduced axes")
    if dims:
        return dims
    if op.attrs.get("noop_with_empty_axes", 0):
        raise RefusedError(f"{op.op_type} over no axes at all")
    return list(range(len(x.shape)))


def _extreme(low: Lowering, kind: str, x: Val, dims: list[int], keepdims: bool) -> Val:
    """The maximum or minimum; it is NaN if any element is NaN."""
    if low.traits.folds_keep_nan:
        return low.fold(f"{kind}_nan", x, dims, keepdims=keepdims)
    y = low.fold(kind, x, dims, keepdims=keepdims)
    # vector instructions drop a NaN, so a second fold carries it
    is_nan = low.cast(low.map("{0} != {0}", x, dtype="bool"), "int32")
    stray = low.fold("max", is_nan, dims, keepdims=keepdims)
    # a fold over no elements is the least integer
    return low.map("rl_where({1} > 0, {2}, {0})", y, stray, number(low, y, math.nan))


def _count(low: Lowering, like: Val, x: Val, dims: Sequence[int]) -> Val:
    return number(low, like, float(math.prod(x.shape[d] for d in dims)))


def _log_sum_exp(low: Lowering, op: Op) -> Sequence[Val]:
    x = low.value(op.inputs[0])
    require_float(op, x)
    dims = _reduced(low, op, x)
    top = low.fold("max", x, dims, keepdims=True)
    # if all elements are -inf, a shift by -inf would give NaN
    top = low.map("rl_where({0} - {0} == 0, {0}, 0)", top)
    total = low.fold("sum", low.map("rl_exp({0} - {1})", x, top), dims, keepdims=True)
    y = low.map("rl_log({0}) + {1}", total, top)
    # the dims have one item each by now, so this drops them or keeps them
    return [low.fold("sum", y, dims, keepdims=bool(op.attrs.get("keepdims", 1)))]


def _softmax(is_log: bool) -> Handler:
    def handler(low: Lowering, op: Op) -> Sequence[Val]:
        x = low.value(op.inputs[0])
        dims = [int(op.attrs.get("axis", -1))]
        top = low.fold("max", x, dims, keepdims=True)
        shifted = low.map("{0} - {1}", x, top)
        raised = low.map("rl_exp_low({0})", shifted)
        total = low.fold("sum", raised, dims, keepdims=True)
        if is_log:
            return [low.map("{0} - {1}", shifted, low.map("rl_log({0})", total))]
        return [low.map("{0} * {1}", raised, low.map("1 / {0}", total))]

    return handler


def _normalize(low: Lowering, x: Val, dims: list[int], epsilon: float) -> tuple[Val, Val, Val]:
    """x with mean 0 and variance 1, its mean, and the inverse of its deviation."""
    count = _count(low, x, x, dims)
    mean = low.map("rl_div({0}, {1})", low.fold("sum", x, dims, keepdims=True), count)
    centred = low.map("{0} - {1}", x, mean)
    squares = low.fold("sum", low.map("{0} * {0}", centred), dims, keepdims=True)
    inverse = low.map("1 / rl_sqrt({0} / {1} + {2})", squares, count, number(low, x, epsilon))
    return low.map("{0} * {1}", centred, inverse), mean, inverse


def _from_axis(op: Op, x: Val) -> list[int]:
    return list(range(int(op.attrs.get("axis", -1)) % len(x.shape), len(x.shape)))


def _layer_norm(low: Lowering, op: Op) -> Sequence[Val]:
    x, scale, *bias = args_of(low, op)
    normed, mean, inverse = _normalize(low, x, _from_axis(op, x), float(op.attrs.get("epsilon", 1e-5)))
    y = low.map("{0} * {1} + {2}", normed, scale, *bias) if bias else low.map("{0} * {1}", normed, scale)
    return [y, mean, inverse]


def _rms_norm(low: Lowering, op: Op) -> Sequence[Val]:
    x, scale = args_of(low, op)
    dims = _from_axis(op, x)
    squares = low.fold("sum", low.map("{0} * {0}", x), dims, keepdims=True)
    epsilon = attr(low, op, "epsilon", 1e-5)
    inverse = low.map("1 / rl_sqrt({0} / {1} + {2})", squares, _count(low, x, x, dims), epsilon)
    return [low.map("{0} * {1} * {2}", x, inverse, scale)]


def _lp_norm(low: Lowering, op: Op) -> Sequence[Val]:
    x = low.value(op.inputs[0])
    require_float(op, x)
    dims = [int(op.attrs.get("axis", -1))]
    if int(op.attrs.get("p", 2)) == 1:
        norm = low.fold("sum", low.map("rl_abs({0})", x), dims, keepdims=True)
    else:
        squares = low.fold("sum", low.map("{0} * {0}", x), dims, keepdims=True)
        norm = low.map("rl_sqrt({0})", squares)
    # ONNX gives zeros for a row of zeros
    return [low.map("rl_where({1} == 0, 0, {0} / {1})", x, norm)]


def _instance_norm(low: Lowering, op: Op) -> Sequence[Val]:
    x, scale, bias = args_of(low, op)
    rank = len(x.shape)
    normed, _, _ = _normalize(low, x, list(range(2, rank)), float(op.attrs.get("epsilon", 1e-5)))
    return [low.map("{0} * {1} + {2}", normed, per_channel(scale, rank), per_channel(bias, rank))]


def _group_norm(low: Lowering, op: Op) -> Sequence[Val]:
    x, scale, bias = args_of(low, op)
    groups, shape = int(op.attrs["num_groups"]), x.shape
    if len(scale.shape) != 1 or scale.shape != (shape[1],):
        raise RefusedError(
            f"GroupNormalization with a scale of shape {list(scale.shape)}, want one per channel"
        )
    split = reshaped(low, x, (shape[0], groups, shape[1] // groups, *shape[2:]))
    epsilon = float(op.attrs.get("epsilon", 1e-5))
    normed, _, _ = _normalize(low, split, list(range(2, len(split.shape))), epsilon)
    normed = reshaped(low, normed, shape)
    rank = len(shape)
    return [low.map("{0} * {1} + {2}", normed, per_channel(scale, rank), per_channel(bias, rank))]


REDUCTIONS: dict[str, Handler] = {
    "ReduceSum": _reduce("sum"), "ReduceMean": _reduce("sum", after="rl_div({0}, {1})"),
    "ReduceMax": _reduce("max"), "ReduceMin": _reduce("min"), "ReduceProd": _reduce("prod"),
    "ReduceL1": _reduce("sum", before="rl_abs({0})"), "ReduceSumSquare": _reduce("sum", before="{0} * {0}"),
    "ReduceL2": _reduce("sum", before="{0} * {0}", after="rl_sqrt({0})"),
    "ReduceLogSum": _reduce("sum", after="rl_log({0})"), "ReduceLogSumExp": _log_sum_exp,
    "Softmax": _softmax(False), "LogSoftmax": _softmax(True),
    "LayerNormalization": _layer_norm, "RMSNormalization": _rms_norm, "LpNormalization": _lp_norm,
    "InstanceNormalization": _instance_norm, "GroupNormalization": _group_norm,
    "GlobalAveragePool": _reduce("sum", after="rl_div({0}, {1})"), "GlobalMaxPool": _reduce("max"),
}  # fmt: skip


def lower_body(site: Site, handlers: dict[str, Handler], traits: Traits) -> Program:
    """The whole body of a site."""
    low = Lowering(site, handlers, traits)
    for op in site.body.ops:
        low.run(op)
    return low.finish()


ARITHMETIC = POINTWISE | REDUCTIONS
