"""Recipes that follow from the schema alone, or nearly: pointwise ops, reductions, casts, comparisons."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from fuzz_draft import ELEMENT_TYPES, FLOATS, INTS, Draft, Node, NotDrawnError

Recipe = Callable[[Draft], Node]

UNARY = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Ceil", "Celu", "Cos", "Cosh",
    "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN",
    "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid",
    "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu",
)  # fmt: skip
BINARY = (
    "Add", "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Equal", "Greater", "GreaterOrEqual", "Less",
    "LessOrEqual", "Mul", "Or", "Sub", "Xor", "SwiGLU",
)  # fmt: skip
VARIADIC = ("Max", "Mean", "Min", "Sum")
REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
ROWS = ("Softmax", "LogSoftmax", "Hardmax")
CHOICES = {"approximate": ("none", "tanh")}


def unary(op: str) -> Recipe:
    """One input; its float attributes take any moderate value, its flags both."""

    def recipe(d: Draft) -> Node:
        schema = onnx.defs.get_schema(op, d.opset)
        attrs: dict[str, object] = {}
        for name, attr in schema.attributes.items():
            if d.chance(0.5):
                continue
            if attr.type == onnx.defs.OpSchema.AttrType.FLOAT:
                attrs[name] = float(np.float32(d.rng.uniform(0.05, 2.0)))
            elif attr.type == onnx.defs.OpSchema.AttrType.INT:
                attrs[name] = d.int(0, 1)
            else:
                attrs[name] = d.pick(CHOICES[name])
        return Node(op, [d.some(d.allowed(op))], attrs)

    return recipe


def binary(op: str) -> Recipe:
    def recipe(d: Draft) -> Node:
        one = d.some(d.allowed(op))
        pair = [one, d.like(one)]
        return Node(op, pair if d.chance(0.6) else pair[::-1])

    return recipe


def variadic(op: str) -> Recipe:
    def recipe(d: Draft) -> Node:
        one = d.some(d.allowed(op))
        return Node(op, [one, *(d.like(one) for _ in range(d.int(0, 2)))])

    return recipe


def reduction(op: str) -> Recipe:
    """Axes as an attribute or an input, as the opset has it; none, some or all."""

    def recipe(d: Draft) -> Node:
        schema = onnx.defs.get_schema(op, d.opset)
        one = d.some(d.allowed(op))
        rank = d.of(one).ndim
        attrs: dict[str, object] = {"keepdims": d.int(0, 1)} if d.chance(0.6) else {}
        inputs = [one]
        if d.chance(0.85) and rank:
            if "axes" in schema.attributes:
                attrs["axes"] = d.axes(rank)
            else:
                inputs.append(d.const(d.axes(rank)))
        elif "noop_with_empty_axes" in schema.attributes and d.chance(0.3):
            attrs["noop_with_empty_axes"] = 1
        return Node(op, inputs, attrs)

    return recipe


def rows(op: str) -> Recipe:
    def recipe(d: Draft) -> Node:
        one = d.ordered(d.allowed(op), 1)
        return Node(op, [one], {"axis": d.axis(d.of(one).ndim)} if d.chance(0.8) else {})

    return recipe


def arg(op: str) -> Recipe:
    def recipe(d: Draft) -> Node:
        one = d.ordered(d.allowed(op), 1)
        attrs = {"axis": d.axis(d.of(one).ndim)} if d.chance(0.8) else {}
        for flag in ("keepdims", "select_last_index"):
            if d.chance(0.4):
                attrs[flag] = d.int(0, 1)
        return Node(op, [one], attrs)

    return recipe


def nonzero_divisor(d: Draft, one: str) -> str:
    """Division by an integer zero means nothing in the standard."""
    array = d.of(d.like(one)).copy()
    if str(array.dtype) in INTS:
        array[array == 0] = 3
    elif d.chance(0.9):
        array = np.where(np.abs(array) < 0.05, np.asarray(0.5, array.dtype), array)
    return d.add(array)


def div(d: Draft) -> Node:
    one = d.some(d.allowed("Div"))
    return Node("Div", [one, nonzero_divisor(d, one)])


def mod(d: Draft) -> Node:
    one = d.some(d.allowed("Mod"))
    is_float = d.type_of(one) in FLOATS
    return Node("Mod", [one, nonzero_divisor(d, one)], {"fmod": 1} if is_float or d.chance(0.3) else {})


def pow_(d: Draft) -> Node:
    one = d.some(d.allowed("Pow"))
    if d.type_of(one) in INTS:
        shape = d.of(d.like(one)).shape
        return Node("Pow", [one, d.add(d.rng.integers(0, 4, shape).astype(d.pick(("int64", "int32"))))])
    exponent = d.pick((0.0, 0.5, 1.0, 2.0, 3.0, -1.0, -0.5, 1.7))
    if d.chance(0.5):
        return Node("Pow", [one, d.const(exponent, d.pick(("float32", d.type_of(one), "int64")))])
    return Node("Pow", [one, d.like(one)])


def bit_shift(d: Draft) -> Node:
    one = d.some([t for t in d.allowed("BitShift") if t.startswith("u")])
    array = d.of(d.like(one)) % np.asarray(8, d.of(one).dtype)
    return Node("BitShift", [one, d.add(array)], {"direction": d.pick(("LEFT", "RIGHT"))})


def clip(d: Draft) -> Node:
    one = d.some(d.allowed("Clip"))
    kind = d.type_of(one)
    low = d.const(d.int(0, 1) if kind.startswith("u") else d.int(-3, 0), kind) if d.chance(0.8) else ""
    high = d.const(d.int(1, 4), kind) if d.chance(0.8) else ""
    return Node("Clip", [one, low, high] if high else [one, low] if low else [one])


def where(d: Draft) -> Node:
    one = d.some(d.allowed("Where", 1))
    other = d.like(one)
    shape = np.broadcast_shapes(d.of(one).shape, d.of(other).shape)
    known = [n for n, a in d.values.items() if a.dtype == bool and a.shape == shape]
    condition = d.pick(known) if known else d.fresh("bool", shape[d.int(0, len(shape)) :])
    return Node("Where", [condition, one, other])


def prelu(d: Draft) -> Node:
    one = d.some(d.allowed("PRelu"), 1)
    shape = [size if d.chance(0.6) else 1 for size in d.of(one).shape]
    return Node("PRelu", [one, d.fresh(d.type_of(one), shape[d.int(0, len(shape) - 1) :])])


def castable(array: np.ndarray, kind: str) -> bool:
    """What no integer can hold is left to the implementation by the standard."""
    if kind in FLOATS or kind == "bool" or array.dtype == bool:
        return True
    wide = array.astype(np.float64)
    info = np.iinfo(kind)
    return bool(np.isfinite(wide).all() and (wide >= info.min).all() and (wide <= info.max).all())


def cast(d: Draft) -> Node:
    one = d.some(d.allowed("Cast"))
    kind = d.dtype(list(ELEMENT_TYPES))
    if not castable(d.of(one), kind):
        raise NotDrawnError
    if d.chance(0.2) and d.opset >= 15:
        return Node("CastLike", [one, d.fresh(kind, d.shape(0, 2))])
    return Node("Cast", [one], {"to": ELEMENT_TYPES[kind]})


def cumulative(op: str) -> Recipe:
    def recipe(d: Draft) -> Node:
        one = d.some(d.allowed(op), 1)
        flags = {name: 1 for name in ("exclusive", "reverse") if d.chance(0.4)}
        axis = np.asarray(d.axis(d.of(one).ndim), d.pick(("int32", "int64")))
        return Node(op, [one, d.add(axis, constant=0.9)], flags)

    return recipe


SIMPLE: dict[str, Recipe] = {
    **{op: unary(op) for op in UNARY},
    **{op: binary(op) for op in BINARY},
    **{op: variadic(op) for op in VARIADIC},
    **{op: reduction(op) for op in REDUCTIONS},
    **{op: rows(op) for op in ROWS},
    **{op: arg(op) for op in ("ArgMax", "ArgMin")},
    **{op: cumulative(op) for op in ("CumSum", "CumProd")},
    "Div": div,
    "Mod": mod,
    "Pow": pow_,
    "BitShift": bit_shift,
    "Clip": clip,
    "Where": where,
    "PRelu": prelu,
    "Cast": cast,
}
