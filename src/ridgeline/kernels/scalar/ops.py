"""The meaning of each ONNX op in scalar steps, in a table that all generators share.

A handler takes the lowering and the op and returns one value per output. To add an op, add its line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Op
from ridgeline.frontend.types import ELEMENT_NAMES
from ridgeline.kernels.scalar.axes import ONE
from ridgeline.kernels.scalar.lowering import Lowering, Val, reshaped
from ridgeline.kernels.scalar.program import FLOAT8_LARGEST
from ridgeline.kernels.scalar.quant import dequantize, quantize, to_float8

Handler: TypeAlias = Callable[[Lowering, Op], Sequence[Val]]

FLOATS = ("float32", "float64")
HALVES = ("float16", "bfloat16")


def args_of(low: Lowering, op: Op) -> list[Val]:
    return [low.value(name) for name in op.inputs if name]


def _text(template: str, dtype: str = "", **attrs: float) -> Handler:
    """One step. Its arguments are the operands, then these attributes, given with their defaults."""

    def handler(low: Lowering, op: Op) -> Sequence[Val]:
        numbers = [attr(low, op, key, default) for key, default in attrs.items()]
        return [low.map(template, *args_of(low, op), *numbers, dtype=dtype)]

    return handler


def _float_text(template: str) -> Handler:
    """One step; it refuses operands that are not floats."""

    def handler(low: Lowering, op: Op) -> Sequence[Val]:
        require_float(op, low.value(op.inputs[0]))
        return _text(template)(low, op)

    return handler


def require_float(op: Op, val: Val) -> None:
    if val.dtype not in FLOATS:
        raise RefusedError(f"{op.op_type} on {val.dtype}, want a float")


def attr(low: Lowering, op: Op, key: str, default: float) -> Val:
    return low.constant(float(op.attrs.get(key, default)), low.value(op.inputs[0]).dtype)


def number(low: Lowering, like: Val, value: float) -> Val:
    return low.constant(value, like.dtype)


def _fold_args(template: str) -> Handler:
    """Combines any number of operands, two at a time."""

    def handler(low: Lowering, op: Op) -> Sequence[Val]:
        first, *rest = args_of(low, op)
        for other in rest:
            first = low.map(template, first, other)
        return [first]

    return handler


def _mean(low: Lowering, op: Op) -> Sequence[Val]:
    (total,) = _fold_args("{0} + {1}")(low, op)
    return [low.map("rl_div({0}, {1})", total, number(low, total, len(op.inputs)))]


def _pow(low: Lowering, op: Op) -> Sequence[Val]:
    x, y = args_of(low, op)
    require_float(op, x)
    # pow(-inf, 0.5) is +inf, but sqrt(-inf) is NaN
    root = "rl_sqrt(rl_where({0} == {1}, {2}, {0}))"
    exact = {2.0: "{0} * {0}", 3.0: "{0} * {0} * {0}", 1.0: "{0}", 0.5: root, -1.0: "1 / {0}"}
    template = exact.get(low.scalar(y) or 0.0)
    if template is not None:
        shape, axes = low.broadcast((x, y))
        ends = (number(low, x, -math.inf), number(low, x, math.inf)) if template is root else ()
        return [replace(low.map(template, x, *ends), shape=shape, axes=axes)]
    return [low.map("rl_pow({0}, {1})", x, low.cast(y, x.dtype))]


def _mod(low: Lowering, op: Op) -> Sequence[Val]:
    x, y = args_of(low, op)
    if int(op.attrs.get("fmod", 0)):
        return [low.map("rl_fmod({0}, {1})", x, y)]
    if x.dtype in FLOATS:
        raise RefusedError("Mod of floats without fmod")
    return [low.map("rl_mod({0}, {1})", x, y)]


def _clip(low: Lowering, op: Op) -> Sequence[Val]:
    y = low.value(op.inputs[0])
    for place, key, sign, nan_stays in ((1, "min", "<", "rl_max"), (2, "max", ">", "rl_min")):
        if len(op.inputs) > place and op.inputs[place]:
            bound = low.value(op.inputs[place])
        elif key in op.attrs:
            bound = number(low, y, float(op.attrs[key]))
        else:
            continue
        limit = low.scalar(bound)
        is_number = y.dtype not in FLOATS or (limit is not None and not math.isnan(limit))
        where = f"rl_where({{0}} {sign} {{1}}, {{1}}, {{0}})"
        y = low.map(where if is_number else f"{nan_stays}({{0}}, {{1}})", y, bound)
    return [y]


def _hard_sigmoid(low: Lowering, op: Op) -> Sequence[Val]:
    x = low.value(op.inputs[0])
    line = low.map("{0} * {1} + {2}", x, attr(low, op, "alpha", 0.2), attr(low, op, "beta", 0.5))
    return [low.map("rl_max({1}, rl_min({2}, {0}))", line, number(low, x, 0.0), number(low, x, 1.0))]


def is_half(low: Lowering, op: Op) -> bool:
    """Whether the result is stored in 16 bits; functions then need no higher precision."""
    spec = low.site.specs.get(op.outputs[0])
    return spec is not None and spec.dtype in HALVES


def _gelu(low: Lowering, op: Op) -> Sequence[Val]:
    x = low.value(op.inputs[0])
    is_tanh = op.attrs.get("approximate", "none") in ("tanh", b"tanh")
    if is_half(low, op):
        return [low.map("rl_gelu_tanh_half({0})" if is_tanh else "rl_gelu_half({0})", x)]
    half, one = number(low, x, 0.5), number(low, x, 1.0)
    if is_tanh:
        inner = low.map("{1} * ({0} + {2} * {0} * {0} * {0})", x, number(low, x, 0.7978845608028654),
                        number(low, x, 0.044715))  # fmt: skip
        return [low.map("{1} * {0} * ({2} + rl_tanh({3}))", x, half, one, inner)]
    return [low.map("{1} * {0} * ({2} + rl_erf({0} * {3}))", x, half, one, number(low, x, 0.5**0.5))]


def _sigmoid(low: Lowering, op: Op) -> Sequence[Val]:
    x = low.value(op.inputs[0])
    require_float(op, x)
    return [low.map("rl_sigmoid_half({0})" if is_half(low, op) else "1 / (1 + rl_exp(-{0}))", x)]


def _swish(low: Lowering, op: Op) -> Sequence[Val]:
    x = low.value(op.inputs[0])
    template = "{0} * rl_sigmoid_half({1} * {0})" if is_half(low, op) else "{0} / (1 + rl_exp(-{1} * {0}))"
    return [low.map(template, x, attr(low, op, "alpha", 1.0))]


def _cast(low: Lowering, op: Op) -> Sequence[Val]:
    x = low.value(op.inputs[0])
    to = op.attrs.get("to", 1)
    dtype = to if isinstance(to, str) else ELEMENT_NAMES.get(int(to), f"ONNX type {to}")
    if dtype == "bool":
        return [low.map("{0} != 0", x, dtype="bool")]
    if dtype in FLOAT8_LARGEST:
        return [to_float8(low, op, low.cast(x, "float32"), dtype)]
    return [low.cast(x, dtype)]


def _is_inf(low: Lowering, op: Op) -> Sequence[Val]:
    x = low.value(op.inputs[0])
    require_float(op, x)
    ends = [
        sign for key, sign in (("detect_negative", -1.0), ("detect_positive", 1.0)) if op.attrs.get(key, 1)
    ]
    if not ends:
        raise RefusedError("IsInf of neither sign")
    template = "rl_abs({0}) == {1}" if len(ends) == 2 else "{0} == {1}"
    return [low.map(template, x, number(low, x, ends[-1] * math.inf), dtype="bool")]


def _where(low: Lowering, op: Op) -> Sequence[Val]:
    test, x, y = args_of(low, op)
    return [low.map("rl_where({0}, {1}, {2})", test, x, y, dtype=x.dtype)]


# moves that only rename dims


def dims_of(low: Lowering, op: Op, what: str) -> list[int] | None:
    """Axes from the attribute or from the second input; None if there is neither."""
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
    return [permuted(x, perm)]


def permuted(x: Val, order: Sequence[int]) -> Val:
    return replace(x, shape=tuple(x.shape[d] for d in order), axes=tuple(x.axes[d] for d in order))


def _reshape(low: Lowering, op: Op) -> Sequence[Val]:
    """Reshape, Squeeze, Unsqueeze, Flatten."""
    return [reshaped(low, low.value(op.inputs[0]), low.site.specs[op.outputs[0]].shape)]


def _expand(low: Lowering, op: Op) -> Sequence[Val]:
    x = low.value(op.inputs[0])
    room = low.declare("", low.site.specs[op.outputs[0]])
    shape, axes = low.broadcast((x, room))
    return [replace(x, shape=shape, axes=axes)]


def per_channel(val: Val, rank: int) -> Val:
    """[C] as [C, 1, …]: channels of a value of that rank."""
    return replace(val, shape=val.shape + (1,) * (rank - 2), axes=val.axes + (ONE,) * (rank - 2))


def _batch_norm(low: Lowering, op: Op) -> Sequence[Val]:
    x, *params = args_of(low, op)
    scale, bias, mean, var = (per_channel(p, len(x.shape)) for p in params)
    inverse = low.map("1 / rl_sqrt({0} + {1})", var, attr(low, op, "epsilon", 1e-5))
    return [low.map("({0} - {1}) * {2} + {3}", x, mean, low.map("{0} * {1}", inverse, scale), bias)]


_SELU = "{2} * rl_where({0} < 0, {1} * rl_expm1({0}), {0})"
_SOFTPLUS = "rl_where({0} < 0, 0, {0}) + rl_log1p(rl_exp(-rl_abs({0})))"

POINTWISE: dict[str, Handler] = {
    "Add": _text("{0} + {1}"), "Sub": _text("{0} - {1}"), "Mul": _text("{0} * {1}"),
    "Div": _text("rl_div({0}, {1})"), "Pow": _pow, "Neg": _text("-{0}"), "Abs": _text("rl_abs({0})"),
    "Mod": _mod, "Sqrt": _float_text("rl_sqrt({0})"), "Reciprocal": _float_text("1 / {0}"),
    "Exp": _float_text("rl_exp({0})"), "Log": _float_text("rl_log({0})"), "Erf": _float_text("rl_erf({0})"),
    "Tanh": _float_text("rl_tanh({0})"), "Sigmoid": _sigmoid,
    "Sin": _float_text("rl_sin({0})"), "Cos": _float_text("rl_cos({0})"),
    "Floor": _float_text("rl_floor({0})"), "Ceil": _float_text("rl_ceil({0})"),
    "Round": _float_text("rl_round({0})"), "Sign": _text("rl_sign({0})"),
    "Relu": _text("rl_relu({0})"),
    "LeakyRelu": _text("rl_where({0} < 0, {0} * {1}, {0})", alpha=0.01),
    "PRelu": _text("rl_where({0} < 0, {0} * {1}, {0})"),
    "ThresholdedRelu": _text("rl_where({0} > {1}, {0}, 0)", alpha=1.0),
    "Clip": _clip, "Gelu": _gelu, "Cast": _cast, "Where": _where, "HardSigmoid": _hard_sigmoid,
    # dividing the product instead of the gate would overflow for large x
    "HardSwish": _float_text("{0} * rl_where({0} <= -3, 0, rl_where({0} >= 3, 1, ({0} + 3) / 6))"),
    "Swish": _swish,
    "Softplus": _float_text(_SOFTPLUS), "Softsign": _float_text("{0} / (1 + rl_abs({0}))"),
    "Elu": _text("rl_where({0} < 0, {1} * rl_expm1({0}), {0})", alpha=1.0),
    "Selu": _text(_SELU, alpha=1.6732632423543772, gamma=1.0507009873554805),
    "Celu": _text("rl_where({0} < 0, {1} * rl_expm1({0} / {1}), {0})", alpha=1.0),
    "Mish": _float_text(f"{{0}} * rl_tanh({_SOFTPLUS})"),
    "Min": _fold_args("rl_min({0}, {1})"), "Max": _fold_args("rl_max({0}, {1})"),
    "Sum": _fold_args("{0} + {1}"), "Mean": _mean,
    "Equal": _text("{0} == {1}", "bool"), "Greater": _text("{0} > {1}", "bool"),
    "Less": _text("{0} < {1}", "bool"), "GreaterOrEqual": _text("{0} >= {1}", "bool"),
    "LessOrEqual": _text("{0} <= {1}", "bool"), "And": _text("{0} & {1}", "bool"),
    "Or": _text("{0} | {1}", "bool"), "Xor": _text("{0} != {1}", "bool"), "Not": _text("rl_not({0})", "bool"),
    "IsNaN": _text("{0} != {0}", "bool"), "IsInf": _is_inf, "BatchNormalization": _batch_norm,
    "Identity": _identity, "Transpose": _transpose, "Expand": _expand, "Reshape": _reshape,
    "Squeeze": _reshape, "Unsqueeze": _reshape, "Flatten": _reshape,
    "QuantizeLinear": quantize, "DequantizeLinear": dequantize,
}  # fmt: skip
