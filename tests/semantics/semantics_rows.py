"""Cases of whole rows: reductions, softmaxes, arg-reductions, running sums, sorting, normalisations."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from semantics_case import FLOATS, Case, numpy_type
from semantics_values import few, plain, rows, specials

REDUCTIONS = tuple(
    f"Reduce{kind}"
    for kind in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")
)
FIXED = frozenset({1})
THROUGH_FLOATS = ("ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")
whole = partial(Case, "integer")
reduce = partial(Case, "reduction")
move = partial(Case, "movement")
norm = partial(Case, "normalisation")


def _axes(*axes: int) -> np.ndarray:
    return np.array(axes, np.int64)


def reductions() -> Iterator[Case]:
    for op in REDUCTIONS:
        is_extreme = op in ("ReduceMax", "ReduceMin")
        names = (
            *FLOATS[:3],
            "int32",
            "int64",
            "uint32",
            "uint64",
            *(("int8", "uint8") if is_extreme else ()),
        )
        for name in names:
            values = rows(name)
            if op in THROUGH_FLOATS and name not in FLOATS:
                # past what a float holds, each library has its own idea of an integer root or logarithm
                values = plain(name, 9, 6)
                values[values == 0] = 1
                if op != "ReduceL2" or name.startswith("u"):
                    continue
            yield reduce(op, "last axis", (values, _axes(-1)), fixed=FIXED)
            yield reduce(op, "first axis", (values.T.copy(), _axes(0)), {"keepdims": 0}, FIXED)
            if name in (*FLOATS, "int32", "int64"):
                attrs = {"noop_with_empty_axes": 1}
                yield reduce(op, "no axes, kept as it is", (values, _axes()), attrs, FIXED)
        for name in ("float32", "int64"):
            dtype = numpy_type(name)
            numbers = plain(name, 3, 4, 2)
            if op == "ReduceLogSum":  # next to a sum of zero, its logarithm is nobody's
                numbers = np.abs(numbers) + 1
            yield reduce(op, "all axes", (numbers,), {"keepdims": 0})
            one = plain(name, 9, 1) if op in THROUGH_FLOATS and name not in FLOATS else few(name)[:, None]
            yield reduce(
                op,
                "an axis of one",
                (np.maximum(one, 1) if one.dtype.kind == "i" else one, _axes(1)),
                fixed=FIXED,
            )
            yield reduce(op, "two axes", (numbers, _axes(0, 2)), fixed=FIXED)
            yield reduce(op, "an empty axis", (np.zeros((3, 0), dtype), _axes(1)), fixed=FIXED)
            yield reduce(
                op, "an empty axis first", (np.zeros((0, 3), dtype), _axes(0)), {"keepdims": 0}, FIXED
            )
            yield reduce(op, "empty", (np.zeros((0, 3), dtype), _axes(1)), fixed=FIXED)
            yield reduce(op, "a scalar", (np.array(3, dtype),))
    for op in ("ReduceMax", "ReduceMin"):
        yield reduce(
            op, "bools", (np.array([[True, False], [False, False], [True, True]]), _axes(1)), fixed=FIXED
        )


def softmaxes() -> Iterator[Case]:
    for op in ("Softmax", "LogSoftmax", "Hardmax"):
        for name in FLOATS[:3]:
            yield reduce(op, "last axis", (rows(name),))
            yield reduce(op, "first axis", (rows(name).T.copy(),), {"axis": 0})
        yield reduce(op, "overflow", (np.array([[200, 0, 1, 2], [-200, -201, -300, -1e30]], "f4"),))
        yield reduce(op, "one", (few("float32")[:, None],))
        yield reduce(op, "empty", (np.zeros((0, 3), "f4"),))
        yield reduce(op, "empty rows", (np.zeros((3, 0), "f4"),))


def picks() -> Iterator[Case]:
    ties = np.array([[1, 3, 3, 2], [0, 0, 0, 0], [5, -1, 5, 5]])
    for op in ("ArgMax", "ArgMin"):
        for last in (0, 1):
            attrs = {"axis": 1, "select_last_index": last}
            for name in ("float32", "float64", "float16", "int32", "int64", "int8", "uint8"):
                yield reduce(op, "ties", (np.abs(ties).astype(numpy_type(name)),), attrs)
                yield reduce(op, "rows", (rows(name),), attrs)
            yield reduce(op, "empty", (np.zeros((0, 3), "f4"),), attrs)
            yield reduce(op, "one", (few("float32")[:, None],), attrs)
        yield reduce(op, "first axis", (rows("float32").T.copy(),), {"axis": 0, "keepdims": 0})
    for name in ("float32", "float64", "int32", "int64"):
        for exclusive in (0, 1):
            for reverse in (0, 1):
                attrs = {"exclusive": exclusive, "reverse": reverse}
                yield reduce("CumSum", "rows", (rows(name), np.array(1)), attrs, FIXED)
        yield reduce("CumSum", "empty", (np.zeros((0, 3), numpy_type(name)), np.array(1)), {}, FIXED)
    for name in ("float32", "float64", "float16", "int32", "int64", "uint64", "int8", "uint8"):
        for largest in (0, 1):
            attrs = {"axis": 1, "largest": largest}
            values = rows(name)
            if name in FLOATS:  # where a NaN belongs among numbers, ONNX does not say
                values = values[~np.isnan(values.astype("f8")).any(1)]
            yield move("TopK", "rows", (values, _axes(3)), attrs, FIXED, 2)
            yield move("TopK", "ties", (np.abs(ties).astype(numpy_type(name)), _axes(2)), attrs, FIXED, 2)
            yield move("TopK", "none", (np.abs(ties).astype(numpy_type(name)), _axes(0)), attrs, FIXED, 2)


def norms() -> Iterator[Case]:
    for name in FLOATS[:3]:
        values = rows(name, 8)
        dtype = values.dtype
        if name == "float64":  # statistics are float32 in some of these, in others not
            values = np.where(np.isfinite(values), np.clip(values, -1e15, 1e15), values)
        gain, shift = plain(name, 8, seed=1), plain(name, 8, seed=2)
        yield norm("LayerNormalization", "rows", (values, gain, shift), {"axis": -1})
        yield norm("LayerNormalization", "rows", (values, gain), {"axis": -1, "epsilon": 0.5})
        yield norm("RMSNormalization", "rows", (values, gain), {"axis": -1}, opset=23)
        for p in (1, 2):
            yield norm("LpNormalization", "rows", (values,), {"axis": -1, "p": p})
            yield norm("LpNormalization", "first axis", (values.T.copy(),), {"axis": 0, "p": p})
        images = values[:48].reshape(6, 4, 2, 8)
        four = plain(name, 4, seed=3)
        yield norm("InstanceNormalization", "images", (images, four, four[::-1].copy()))
        yield norm("GroupNormalization", "images", (images, four, four[::-1].copy()), {"num_groups": 2})
        yield norm(
            "BatchNormalization",
            "images",
            (images, four, four, four[::-1].copy(), np.array([1, 4, 0.25, 0], dtype)),
        )
        yield norm(
            "BatchNormalization",
            "odd statistics",
            (images, four, four, few(name)[[2, 15, 16, 17]], few(name)[[0, 15, 17, 3]]),
        )
        if name != "float64":  # nobody runs these in double
            # ONNX Runtime moves a sum along the channels: what once was infinite stays NaN
            finite = np.where(np.abs(images) < 100, images, 1).astype(dtype)
            yield norm("LRN", "images", (finite,), {"size": 3, "alpha": 0.5})
            yield norm("MeanVarianceNormalization", "images", (images,), {"axes": [0, 2, 3]})
    for what, shape in (("empty", (0, 4)), ("one", (3, 1))):
        x, gain = np.ones(shape, "f4"), np.ones(shape[1:], "f4")
        yield norm("LayerNormalization", what, (x, gain), {"axis": -1})
        yield norm("RMSNormalization", what, (x, gain), {"axis": -1}, opset=23)
        yield norm("LpNormalization", what, (x,), {"axis": -1})
    yield norm(
        "LayerNormalization",
        "large",
        (plain("float32", 4, 8) * np.float32(1e21), np.ones(8, "f4")),
        {"axis": -1},
    )
    yield norm(
        "LayerNormalization", "constant rows", (np.full((3, 8), 7.25, "f4"), np.ones(8, "f4")), {"axis": -1}
    )


def quantised() -> Iterator[Case]:
    values = specials("float32")
    for name in ("int8", "uint8", "int16", "uint16"):
        zero = np.array(np.iinfo(name).max // 2, name)
        for scale in (0.5, 3.0):
            yield whole(
                "QuantizeLinear",
                f"step {scale} to {name}",
                (values, np.array(scale, "f4"), zero),
                fixed=frozenset({1, 2}),
            )
        yield whole(
            "DequantizeLinear", "values", (specials(name), np.array(0.5, "f4"), zero), fixed=frozenset({1, 2})
        )
    yield whole("DequantizeLinear", "int32", (specials("int32"), np.array(0.5, "f4")), fixed=FIXED)
    yield whole("DynamicQuantizeLinear", "numbers", (plain("float32", 5, 7),), n_outputs=3)
    yield whole("DynamicQuantizeLinear", "zeros", (np.zeros((2, 3), "f4"),), n_outputs=3)
    for left in ("int8", "uint8"):
        for right in ("int8", "uint8"):
            a = np.resize(specials(left), (4, 6))
            b = np.resize(specials(right), (6, 3))
            points = (np.array(3, left), np.array(5, right))
            yield whole("MatMulInteger", f"by {right}", (a, b))
            yield whole("MatMulInteger", f"by {right}, with zero points", (a, b, *points))
    for name in ("int32", "int64", "uint32", "uint64"):
        a, b = np.resize(specials(name), (4, 6)), np.resize(specials(name)[::-1], (6, 3))
        yield whole("MatMul", "wraps", (a, b))
        if name.endswith("32"):  # the reference takes int64 through doubles, and ONNX Runtime takes none
            yield whole("Gemm", "wraps", (a, b, np.resize(specials(name), 3)))


def all_cases() -> Iterator[Case]:
    for part in (reductions, softmaxes, picks, norms, quantised):
        yield from part()
