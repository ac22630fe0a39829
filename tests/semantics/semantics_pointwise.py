"""Cases of one element at a time: maths, activations, comparisons, bits, casts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from semantics_case import FLOATS, INTEGERS, SIGNED, UNSIGNED, Case, element_type, numpy_type
from semantics_values import few, pairs, specials

MAPS = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor",
    "HardSwish", "Identity", "Log", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin",
    "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh",
)  # fmt: skip
ACTIVATIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Elu", {}), ("Elu", {"alpha": 0.3}), ("Celu", {}), ("Celu", {"alpha": 0.3}), ("Selu", {}),
    ("LeakyRelu", {}), ("LeakyRelu", {"alpha": -2.0}), ("ThresholdedRelu", {}),
    ("ThresholdedRelu", {"alpha": -0.5}), ("HardSigmoid", {}), ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}),
    ("Shrink", {"lambd": 0.5, "bias": 0.25}), ("Gelu", {}), ("Gelu", {"approximate": "tanh"}), ("IsInf", {}),
    ("IsInf", {"detect_negative": 0}), ("IsInf", {"detect_positive": 0}), ("IsNaN", {}),
)  # fmt: skip
ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Max", "Min")
COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
CAST_TYPES = ("float32", "float64", "float16", "bfloat16", *INTEGERS, "bool")
point = partial(Case, "pointwise")
whole = partial(Case, "integer")
cast = partial(Case, "cast")


def unary() -> Iterator[Case]:
    for op in MAPS:
        for name in FLOATS:
            yield point(op, "values", (specials(name),))
        for what, shape in (("a scalar", ()), ("one", (1, 1)), ("empty", (0, 3))):
            yield point(op, what, (np.full(shape, 0.5, np.float32),))
    for op, attrs in ACTIVATIONS:
        for name in FLOATS[:3] if op != "Celu" else ("float32",):
            yield point(op, "values", (specials(name),), attrs)
        yield point(op, "empty", (np.zeros((0, 3), np.float32),), attrs)
    for alpha in (1.0, 1.702):
        for name in FLOATS[:3]:
            yield point("Swish", "values", (specials(name),), {"alpha": alpha}, opset=24)
    for op, names in (
        ("Neg", SIGNED),
        ("Abs", INTEGERS),
        ("Sign", INTEGERS),
        ("Relu", SIGNED),
        ("Identity", INTEGERS),
    ):
        for name in names:
            yield whole(op, "values", (specials(name),))
            yield whole(op, "empty", (specials(name)[:0],))


def binary() -> Iterator[Case]:
    for op in ARITHMETIC:
        for name in (*FLOATS, *INTEGERS):
            a, b = pairs(name)
            family = "integer" if name in INTEGERS else "pointwise"
            if op == "Div" and name in INTEGERS:
                a, b = _divisible(a, b)
            yield Case(family, op, "pairs", (a, b))
        for name in ("float32", "int64", "uint64"):
            values = few(name)
            spread = _divisible(values, values)[1] if op == "Div" and name in INTEGERS else values
            family = "integer" if name in INTEGERS else "pointwise"
            yield Case(family, op, "spread", (values[:, None], spread))
            yield Case(family, op, "one", (values[2:3], spread[2:3]))
            yield Case(family, op, "empty", (values[:0, None], spread[:1]))
            yield Case(
                family, op, "empty inside", (np.ones((3, 0), values.dtype), np.ones((3, 1), values.dtype))
            )
    for op in COMPARISONS:
        for name in (*FLOATS[:3], *INTEGERS):
            yield Case("integer" if name in INTEGERS else "pointwise", op, "pairs", pairs(name))
        yield point(op, "empty", (np.zeros((0, 2), np.float32), np.zeros((1, 2), np.float32)))
    yield point("Equal", "pairs", pairs("bool"))
    for op in ("And", "Or", "Xor"):
        yield point(op, "pairs", pairs("bool"))
    yield point("Not", "values", (specials("bool"),))
    for name in FLOATS[:3]:
        a, b = pairs(name)
        yield point("Mod", "pairs", (a, b), {"fmod": 1})
        yield point("Mod", "large ratios", _large_ratios(a.dtype), {"fmod": 1})
        yield point("Pow", "pairs", (a, b))
        for exponent in (2.0, 3.0, 0.5, -0.5, -1.0, 0.0, 1.0, -2.0, 1.0 / 3):
            yield point(
                "Pow",
                f"values to {exponent:.3g}",
                (specials(name), np.array(exponent, a.dtype)),
                fixed=frozenset({1}),
            )
        if name != "float64":  # the reference alone runs it, and makes NaN of a zero beside an infinite slope
            yield point("PRelu", "pairs", (a, b))
        for op in ("Sum", "Mean", "Max", "Min"):
            yield point(op, "three", (a, b, a[::-1].copy()))
            yield point(op, "alone", (a,))
    for name in INTEGERS:
        a, b = pairs(name)
        for attrs in ({}, {"fmod": 1}):
            yield whole("Mod", "pairs", _divisible(a, b), attrs)
        small = np.array([0, 1, 2, 3], a.dtype)
        if name in ("int32", "int64"):
            yield whole("Pow", "small", (np.repeat(small, 4), np.tile(small, 4)))
        yield whole("Max", "three", (a, b, a[::-1].copy()))
        yield whole("Min", "three", (a, b, a[::-1].copy()))
        for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
            yield whole(op, "pairs", (a, b))
        yield whole("BitwiseNot", "values", (specials(name),))
    for name in UNSIGNED:
        values = specials(name)
        for direction in ("LEFT", "RIGHT"):
            for count in (0, 1, 5, 8 * numpy_type(name).itemsize - 1):
                yield whole(
                    "BitShift", f"by {count}", (values, np.full_like(values, count)), {"direction": direction}
                )


def _large_ratios(dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    a = np.array([6e4, 12345.678, -5e4, 5.5, 777.0]) * (1 if dtype == np.float16 else 1e20)
    return a.astype(dtype), np.array([3e-3, 0.7, 1e-3, -2.25, 1e-3]).astype(dtype)


def _divisible(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ONNX leaves two divisors open: ONNX Runtime refuses 0, and -1 below the least value kills it."""
    fine = b != 0 if np.iinfo(b.dtype).min == 0 else (b != 0) & (b != b.dtype.type(-1))
    return a[fine], b[fine]


def clips_and_wheres() -> Iterator[Case]:
    for name in (*FLOATS[:3], *INTEGERS):
        dtype, values = numpy_type(name), specials(name)
        family = "integer" if name in INTEGERS else "pointwise"
        low, high = dtype.type(1 if name in UNSIGNED else -2), dtype.type(100)
        top = dtype.type(np.iinfo(dtype).max - 5) if name in INTEGERS else high
        for what, bounds in (
            ("both", (low, high)), ("low", (low,)), ("high", (None, high)), ("crossed", (high, low)),
            ("near the top", (low, top)), ("high low", (top,)), ("neither", ()),
        ):  # fmt: skip
            given = tuple(None if b is None else np.array(b, dtype) for b in bounds)
            yield Case(family, "Clip", what, (values, *given), fixed=frozenset({1, 2}))
        yield Case(family, "Clip", "bounds as inputs", (values, np.array(low, dtype), np.array(high, dtype)))
        yield Case(family, "Clip", "empty", (values[:0], np.array(low, dtype)), fixed=frozenset({1}))
        a, b = pairs(name)
        yield Case(family, "Where", f"pairs of {name}", (np.arange(len(a)) % 3 == 0, a, b))
    for bound in (np.nan, np.inf, -np.inf):
        yield point("Clip", f"from {bound}", (specials("float32"), np.array(bound, "f4")))
        yield point("Clip", f"to {bound}", (specials("float32"), None, np.array(bound, "f4")))
    yield point("Where", "bools", (specials("bool"), specials("bool")[::-1].copy(), specials("bool")))
    yield point("Where", "empty", (np.zeros((0, 1), bool), np.zeros((1, 4), "f4"), np.zeros((1, 4), "f4")))


def casts() -> Iterator[Case]:
    for name in CAST_TYPES:
        for to in CAST_TYPES:
            if name == to:
                continue
            number = int(element_type(numpy_type(to)))
            values = specials(name)
            if to == "uint32" and name in FLOATS:
                # past its ends numpy gives one answer in the body of a loop, and another in its tail
                wide = values.astype(np.float64)
                values = values[(wide > -(2.0**31)) & (wide < 2.0**32)]
            yield cast("Cast", f"to {to}", (values,), {"to": number})
            yield cast("Cast", f"to {to}, empty", (specials(name)[:0],), {"to": number})
        yield cast("CastLike", "to float32", (specials(name), np.zeros(1, np.float32)))
        yield cast("CastLike", "to uint8", (specials(name), np.zeros(1, np.uint8)))
    for to in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"):
        number = int(element_type(numpy_type(to)))
        for name in ("float32", "float16"):
            for saturate in (0, 1):
                yield cast("Cast", f"to {to}", (specials(name),), {"to": number, "saturate": saturate})
        every = np.arange(256, dtype=np.uint8).view(numpy_type(to))
        yield cast("Cast", "every value to float32", (every,), {"to": 1})


def all_cases() -> Iterator[Case]:
    for part in (unary, binary, clips_and_wheres, casts):
        yield from part()
