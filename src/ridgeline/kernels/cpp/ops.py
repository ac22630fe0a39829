"""What each ONNX op means in scalar steps: the table the generators share.

A handler takes the lowering and the op and returns one value per output. To add an op, add its line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from ridgeline.kernels.cpp.program import C_TYPES, ONE, Lowering, Program, Refusal, Val, compute_dtype
from ridgeline.spec import Op, Site

Handler: TypeAlias = Callable[[Lowering, Op], Sequence[Val]]

# ONNX's numbers for element types, as Cast's attribute `to` has them
_ONNX_TYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16",
}  # fmt: skip
_FLOATS = ("float32", "float64")


def _args(low: Lowering, op: Op) -> list[Val]:
    return [low.value(name) for name in op.inputs if name]


def _text(template: str, dtype: str = "") -> Handler:
    return lambda low, op: [low.map(template, *_args(low, op), dtype=dtype)]


def _float_text(template: str) -> Handler:
    def handler(low: Lowering, op: Op) -> Sequence[Val]:
        args = _args(low, op)
        if args[0].dtype not in _FLOATS:
            raise Refusal(f"{op.op_type} on {args[0].dtype}, want a float")
        return [low.map(template, *args)]

    return handler


def _attr(low: Lowering, op: Op, key: str, default: float) -> Val:
    return low.constant(float(op.attrs.get(key, default)), low.value(op.inputs[0]).dtype)


def _number(low: Lowering, like: Val, number: float) -> Val:
    return low.constant(number, like.dtype)


def _with_attrs(template: str, **defaults: float) -> Handler:
    """`{0}` is x, then the attributes in order."""

    def handler(low: Lowering, op: Op) -> Sequence[Val]:
        x = low.value(op.inputs[0])
        attrs = [_attr(low, op, key, default) for key, default in defaults.items()]
        return [low.map(template, x, *attrs)]

    return handler


def _fold_args(template: str) -> Handler:
    """Any number of operands, two at a time."""

    def handler(low: Lowering, op: Op) -> Sequence[Val]:
        first, *rest = _args(low, op)
        for other in rest:
            first = low.map(template, first, other)
        return [first]

    return handler


def _mean(low: Lowering, op: Op) -> Sequence[Val]:
    (total,) = _fold_args("{0} + {1}")(low, op)
    return [low.map("{0} / {1}", total, _number(low, total, len(op.inputs)))]


def _pow(low: Lowering, op: Op) -> Sequence[Val]:
    x, y = _args(low, op)
    if x.dtype not in _FLOATS:
        raise Refusal(f"Pow on {x.dtype}, want a float")
    exact = {2.0: "{0} * {0}", 3.0: "{0} * {0} * {0}", 1.0: "{0}", 0.5: "rl_sqrt({0})", -1.0: "1 / {0}"}
    template = exact.get(low.scalar(y) or 0.0)
    if template is not None:
        shape, axes = low.broadcast((x, y))
        return [replace(low.map(template, x), shape=shape, axes=axes)]
    return [low.map(f"rl_pow({{0}}, ({C_TYPES[x.dtype]}){{1}})", x, y)]


def _clip(low: Lowering, op: Op) -> Sequence[Val]:
    y = low.value(op.inputs[0])
    for place, key, sign in ((1, "min", "<"), (2, "max", ">")):
        if len(op.inputs) > place and op.inputs[place]:
            bound = low.value(op.inputs[place])
        elif key in op.attrs:
            bound = _number(low, y, float(op.attrs[key]))
        else:
            continue
        y = low.map(f"{{0}} {sign} {{1}} ? {{1}} : {{0}}", y, bound)
    return [y]


def _gelu(low: Lowering, op: Op) -> Sequence[Val]:
    x = low.value(op.inputs[0])
    half, one = _number(low, x, 0.5), _number(low, x, 1.0)
    if op.attrs.get("approximate", "none") in ("tanh", b"tanh"):
        inner = low.map("{1} * ({0} + {2} * {0} * {0} * {0})", x, _number(low, x, 0.7978845608028654),
                        _number(low, x, 0.044715))  # fmt: skip
        return [low.map("{1} * {0} * ({2} + rl_tanh({3}))", x, half, one, inner)]
    return [low.map("{1} * {0} * ({2} + rl_erf({0} * {3}))", x, half, one, _number(low, x, 0.5**0.5))]


def _cast(low: Lowering, op: Op) -> Sequence[Val]:
    x = low.value(op.inputs[0])
    to = op.attrs.get("to", 1)
    dtype = to if isinstance(to, str) else _ONNX_TYPES.get(int(to), f"ONNX type {to}")
    if dtype == "bool":
        return [low.map("{0} != 0", x, dtype="bool")]
    if dtype == "float16" and x.dtype in _FLOATS:
        return [low.map("(float)(_Float16){0}", x, dtype="float32")]
    if dtype == "bfloat16" and x.dtype in _FLOATS:
        return [low.map("rl_from_bf16(rl_to_bf16({0}))", x, dtype="float32")]
    made = compute_dtype(dtype)
    return [x if made == x.dtype else low.map(f"({C_TYPES[made]}){{0}}", x, dtype=made)]


def _prelu(low: Lowering, op: Op) -> Sequence[Val]:
    x, slope = _args(low, op)
    return [low.map("{0} < 0 ? {0} * {1} : {0}", x, slope)]


def _where(low: Lowering, op: Op) -> Sequence[Val]:
    test, x, y = _args(low, op)
    return [low.map("{0} ? {1} : {2}", test, x, y, dtype=x.dtype)]


# moves that only rename dims


def _dims(low: Lowering, op: Op, what: str) -> list[int] | None:
    """Axes from the attribute or from the second input; None where neither is there."""
    if "axes" in op.attrs:
        return [int(a) for a in op.attrs["axes"]]
    if len(op.inputs) > 1 and op.inputs[1]:
        return [int(a) for a in low.array(op.inputs[1], what).reshape(-1)]
    return None


def _identity(low: Lowering, op: Op) -> Sequence[Val]:
    return [low.value(op.inputs[0])]


def _transpose(low: Lowering, op: Op) -> Sequence[Val]:
    x = low.value(op.inputs[0])
    perm = [int(p) for p in op.attrs.get("perm", range(len(x.shape))[::-1])]
    return [replace(x, shape=tuple(x.shape[p] for p in perm), axes=tuple(x.axes[p] for p in perm))]


def _reshape(low: Lowering, op: Op) -> Sequence[Val]:
    """Reshape, Squeeze, Unsqueeze, Flatten: whatever adds and drops dims of size one."""
    x = low.value(op.inputs[0])
    spec = low.site.specs[op.outputs[0]]
    sizes = [size for size in x.shape if size != 1]
    if sizes != [size for size in spec.shape if size != 1]:
        raise Refusal(f"{op.op_type} merges or splits axes")
    axes = iter([axis for axis in x.axes if axis != ONE])
    return [replace(x, shape=spec.shape, axes=tuple(ONE if s == 1 else next(axes) for s in spec.shape))]


def _expand(low: Lowering, op: Op) -> Sequence[Val]:
    x = low.value(op.inputs[0])
    room = low.declare("", low.site.specs[op.outputs[0]])
    shape, axes = low.broadcast((x, room))
    return [replace(x, shape=shape, axes=axes)]


# reductions and what is made of them


def _reduce(kind: str, before: str = "{0}", after: str = "{0}") -> Handler:
    def handler(low: Lowering, op: Op) -> Sequence[Val]:
        x = low.value(op.inputs[0])
        dims = _dims(low, op, "the reduced axes")
        if not dims:
            _require_axes(op)
            dims = list(range(len(x.shape)))
        keepdims = bool(op.attrs.get("keepdims", 1))
        y = low.fold(kind, low.map(before, x) if before != "{0}" else x, dims, keepdims=keepdims)
        if kind in ("max", "min") and x.dtype in _FLOATS:
            # the vector instructions drop a NaN that a row holds; carry it beside
            stray = low.fold("max", low.map("(int)({0} != {0})", x, dtype="int32"), dims, keepdims=keepdims)
            y = low.map("{1} ? {2} : {0}", y, stray, _number(low, y, float("nan")))
        if after != "{0}":
            count = _number(low, y, float(np.prod([x.shape[d] for d in dims])))
            y = low.map(after, y, count)
        return [y]

    return handler


def _require_axes(op: Op) -> None:
    if op.attrs.get("noop_with_empty_axes", 0):
        raise Refusal(f"{op.op_type} over no axes at all")


def _log_sum_exp(low: Lowering, op: Op) -> Sequence[Val]:
    x = low.value(op.inputs[0])
    dims = _dims(low, op, "the reduced axes")
    if not dims:
        _require_axes(op)
        dims = list(range(len(x.shape)))
    top = low.fold("max", x, dims, keepdims=True)
    # a row of -inf alone: shifting by -inf would make NaN of it
    top = low.map("{0} - {0} == 0 ? {0} : 0", top)
    total = low.fold("sum", low.map("rl_exp({0} - {1})", x, top), dims, keepdims=True)
    y = low.map("rl_log({0}) + {1}", total, top)
    if op.attrs.get("keepdims", 1):
        return [y]
    gone = {d % len(x.shape) for d in dims}
    kept = [d for d in range(len(x.shape)) if d not in gone]
    return [replace(y, shape=tuple(y.shape[d] for d in kept), axes=tuple(y.axes[d] for d in kept))]


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
    """Centred and scaled to unit variance; also the mean and the inverse deviation."""
    count = _number(low, x, float(np.prod([x.shape[d] for d in dims])))
    mean = low.map("{0} / {1}", low.fold("sum", x, dims, keepdims=True), count)
    centred = low.map("{0} - {1}", x, mean)
    squares = low.fold("sum", low.map("{0} * {0}", centred), dims, keepdims=True)
    inverse = low.map("1 / rl_sqrt({0} / {1} + {2})", squares, count, _number(low, x, epsilon))
    return low.map("{0} * {1}", centred, inverse), mean, inverse


def _layer_norm(low: Lowering, op: Op) -> Sequence[Val]:
    x, scale, *bias = _args(low, op)
    dims = list(range(int(op.attrs.get("axis", -1)) % len(x.shape), len(x.shape)))
    normed, mean, inverse = _normalize(low, x, dims, float(op.attrs.get("epsilon", 1e-5)))
    y = low.map("{0} * {1} + {2}", normed, scale, *bias) if bias else low.map("{0} * {1}", normed, scale)
    return [y, mean, inverse]


def _rms_norm(low: Lowering, op: Op) -> Sequence[Val]:
    x, scale = _args(low, op)
    dims = list(range(int(op.attrs.get("axis", -1)) % len(x.shape), len(x.shape)))
    count = _number(low, x, float(np.prod([x.shape[d] for d in dims])))
    squares = low.fold("sum", low.map("{0} * {0}", x), dims, keepdims=True)
    epsilon = _attr(low, op, "epsilon", 1e-5)
    inverse = low.map("1 / rl_sqrt({0} / {1} + {2})", squares, count, epsilon)
    return [low.map("{0} * {1} * {2}", x, inverse, scale)]


def per_channel(val: Val, rank: int) -> Val:
    """[C] as [C, 1, …]: channels of a value of that rank."""
    return replace(val, shape=val.shape + (1,) * (rank - 2), axes=val.axes + (ONE,) * (rank - 2))


def _instance_norm(low: Lowering, op: Op) -> Sequence[Val]:
    x, scale, bias = _args(low, op)
    rank = len(x.shape)
    normed, _, _ = _normalize(low, x, list(range(2, rank)), float(op.attrs.get("epsilon", 1e-5)))
    return [low.map("{0} * {1} + {2}", normed, per_channel(scale, rank), per_channel(bias, rank))]


def _batch_norm(low: Lowering, op: Op) -> Sequence[Val]:
    x, *params = _args(low, op)
    scale, bias, mean, var = (per_channel(p, len(x.shape)) for p in params)
    inverse = low.map("1 / rl_sqrt({0} + {1})", var, _attr(low, op, "epsilon", 1e-5))
    return [low.map("({0} - {1}) * {2} + {3}", x, mean, low.map("{0} * {1}", inverse, scale), bias)]


def _global_mean(low: Lowering, op: Op) -> Sequence[Val]:
    x = low.value(op.inputs[0])
    dims = list(range(2, len(x.shape)))
    count = _number(low, x, float(np.prod(x.shape[2:])))
    return [low.map("{0} / {1}", low.fold("sum", x, dims, keepdims=True), count)]


_SELU: dict[str, Any] = {"alpha": 1.6732632423543772, "gamma": 1.0507009873554805}

POINTWISE: dict[str, Handler] = {
    "Add": _text("{0} + {1}"), "Sub": _text("{0} - {1}"), "Mul": _text("{0} * {1}"),
    "Div": _text("rl_div({0}, {1})"), "Pow": _pow, "Neg": _text("-{0}"), "Abs": _text("rl_abs({0})"),
    "Sqrt": _float_text("rl_sqrt({0})"), "Reciprocal": _float_text("1 / {0}"),
    "Exp": _float_text("rl_exp({0})"), "Log": _float_text("rl_log({0})"), "Erf": _float_text("rl_erf({0})"),
    "Tanh": _float_text("rl_tanh({0})"), "Sigmoid": _float_text("1 / (1 + rl_exp(-{0}))"),
    "Sin": _float_text("rl_sin({0})"), "Cos": _float_text("rl_cos({0})"),
    "Floor": _float_text("rl_floor({0})"), "Ceil": _float_text("rl_ceil({0})"),
    "Round": _float_text("rl_round({0})"), "Sign": _text("rl_sign({0})"),
    "Relu": _text("{0} < 0 ? 0 : {0}"), "LeakyRelu": _with_attrs("{0} < 0 ? {0} * {1} : {0}", alpha=0.01),
    "PRelu": _prelu, "Clip": _clip, "Gelu": _gelu, "Cast": _cast, "Where": _where,
    "HardSigmoid": _with_attrs("rl_max(0 * {1}, rl_min(1 + 0 * {1}, {0} * {1} + {2}))", alpha=0.2, beta=0.5),
    "HardSwish": _float_text("{0} * ({0} <= -3 ? 0 : {0} >= 3 ? 6 : {0} + 3) / 6"),
    "Swish": _with_attrs("{0} / (1 + rl_exp(-{1} * {0}))", alpha=1.0),
    "Softplus": _float_text("({0} < 0 ? 0 : {0}) + rl_log1p(rl_exp(-rl_abs({0})))"),
    "Elu": _with_attrs("{0} < 0 ? {1} * rl_expm1({0}) : {0}", alpha=1.0),
    "Selu": _with_attrs("{2} * ({0} < 0 ? {1} * rl_expm1({0}) : {0})", **_SELU),
    "Celu": _with_attrs("{0} < 0 ? {1} * rl_expm1({0} / {1}) : {0}", alpha=1.0),
    "Mish": _float_text("{0} * rl_tanh(({0} < 0 ? 0 : {0}) + rl_log1p(rl_exp(-rl_abs({0}))))"),
    "Min": _fold_args("rl_min({0}, {1})"), "Max": _fold_args("rl_max({0}, {1})"),
    "Sum": _fold_args("{0} + {1}"), "Mean": _mean,
    "Equal": _text("{0} == {1}", "bool"), "Greater": _text("{0} > {1}", "bool"),
    "Less": _text("{0} < {1}", "bool"), "GreaterOrEqual": _text("{0} >= {1}", "bool"),
    "LessOrEqual": _text("{0} <= {1}", "bool"), "And": _text("{0} && {1}", "bool"),
    "Or": _text("{0} || {1}", "bool"), "Xor": _text("{0} != {1}", "bool"), "Not": _text("!{0}", "bool"),
    "IsNaN": _text("{0} != {0}", "bool"), "BatchNormalization": _batch_norm, "Identity": _identity,
    "Transpose": _transpose, "Expand": _expand, "Reshape": _reshape, "Squeeze": _reshape,
    "Unsqueeze": _reshape, "Flatten": _reshape,
}  # fmt: skip

REDUCTIONS: dict[str, Handler] = {
    "ReduceSum": _reduce("sum"), "ReduceMean": _reduce("sum", after="{0} / {1}"),
    "ReduceMax": _reduce("max"), "ReduceMin": _reduce("min"),
    "ReduceL1": _reduce("sum", before="rl_abs({0})"), "ReduceSumSquare": _reduce("sum", before="{0} * {0}"),
    "ReduceL2": _reduce("sum", before="{0} * {0}", after="rl_sqrt({0})"),
    "ReduceLogSumExp": _log_sum_exp, "Softmax": _softmax(False), "LogSoftmax": _softmax(True),
    "LayerNormalization": _layer_norm, "RMSNormalization": _rms_norm,
    "InstanceNormalization": _instance_norm, "GlobalAveragePool": _global_mean,
}  # fmt: skip


def lower(site: Site) -> Program:
    """The whole body of a site."""
    low = Lowering(site, POINTWISE | REDUCTIONS)
    for op in site.body.ops:
        low.run(op)
    return low.finish()
