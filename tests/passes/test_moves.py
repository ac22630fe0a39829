"""Movement ops as runs along axes: what is read from them is what the onnx reference computes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import TypeProto
from onnx.reference import ReferenceEvaluator

from ridgeline.base.spec import Op, TensorSpec
from ridgeline.ir.body import model_proto
from ridgeline.ir.infer import type_proto
from ridgeline.ir.moves import Move, as_slice, cut_places, moves_of
from ridgeline.ir.op_given import Given, MisfitError, NotKnownError, given_at

X, Y = np.arange(60, dtype=np.float32).reshape(3, 4, 5), -np.arange(30, dtype=np.float32).reshape(3, 2, 5)
FILL = 99.0


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


CASES: dict[str, tuple[str, dict[str, np.ndarray], int, dict[str, Any]]] = {
    "slice": ("Slice", {"s": ints(1), "e": ints(3), "a": ints(1)}, 1, {}),
    "slice of two axes": ("Slice", {"s": ints(1, -4), "e": ints(9, -1), "a": ints(0, 2)}, 1, {}),
    "slice by steps": ("Slice", {"s": ints(0, 4), "e": ints(4, 0), "a": ints(1, 2), "t": ints(2, -3)}, 1, {}),
    "slice backwards": ("Slice", {"s": ints(-1), "e": ints(-99), "a": ints(-1), "t": ints(-1)}, 1, {}),
    "slice of nothing": ("Slice", {"s": ints(3), "e": ints(1), "a": ints(1)}, 1, {}),
    "split": ("Split", {"n": ints(1, 3, 1)}, 3, {"axis": -1}),
    "split evenly": ("Split", {}, 2, {"axis": 1, "num_outputs": 2}),
    "split with a short part": ("Split", {}, 3, {"axis": 2, "num_outputs": 3}),
    "concat": ("Concat", {"y": Y}, 1, {"axis": 1}),
    "transpose": ("Transpose", {}, 1, {"perm": (2, 0, 1)}),
    "transpose all": ("Transpose", {}, 1, {}),
    "reshape": ("Reshape", {"n": ints(4, -1)}, 1, {}),
    "gather one": ("Gather", {"i": np.array(-2)}, 1, {"axis": 1}),
    "gather some": ("Gather", {"i": ints(3, 1, -1, 0, 0)}, 1, {"axis": 2}),
    **{
        f"pad by {mode}": ("Pad", {"p": ints(0, 2, 1, 1, 3, 2), "v": np.float32(FILL)}, 1, {"mode": mode})
        for mode in ("constant", "edge", "reflect", "wrap")
    },
    "pad one axis": ("Pad", {"p": ints(1, 2), "v": np.float32(FILL), "a": ints(-1)}, 1, {}),
}


def given_and_results(name: str) -> tuple[Given, list[np.ndarray], Mapping[str, np.ndarray]]:
    op_type, operands, count, attrs = CASES[name]
    arrays = {"x": X, **{key: np.asarray(array) for key, array in operands.items()}}
    op = Op(op_type, tuple(arrays), tuple(f"out{i}" for i in range(count)), attrs)
    specs = {key: TensorSpec(str(array.dtype), array.shape) for key, array in arrays.items()}
    inputs = {key: type_proto(spec) for key, spec in specs.items()}
    outputs = {key: TypeProto() for key in op.outputs}
    model = model_proto([op], inputs=inputs, outputs=outputs, constants={}, opset_imports={"": 19})
    want = ReferenceEvaluator(model).run(None, arrays)
    return given_at(op, specs, {k: a for k, a in arrays.items() if k not in ("x", "y")}), want, arrays


def write(move: Move, source: np.ndarray, result: np.ndarray) -> None:
    """Copy what the runs say, one place at a time."""
    if move.is_reshape:
        result.reshape(-1)[:] = source.reshape(-1)
        return
    for choice in itertools.product(*move.runs):
        for steps in itertools.product(*(range(run.count) for run in choice)):
            at: list[Any] = [0] * result.ndim
            for axis, run, step in zip(move.axes, choice, steps, strict=True):
                if axis is not None:
                    at[axis] = run.to + step
            read = tuple(run.start + step * run.step for run, step in zip(choice, steps, strict=True))
            result[tuple(at)] = source[read]


@pytest.mark.parametrize("name", CASES)
def test_runs_are_what_the_op_computes(name: str) -> None:
    given, want, arrays = given_and_results(name)
    made = [np.full_like(array, FILL) for array in want]
    for move in moves_of(given) or ():
        write(move, arrays[given.op.inputs[move.source]], made[move.result])
    for got, wanted in zip(made, want, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("name", CASES)
def test_first_and_narrowed_say_the_same(name: str) -> None:
    given, want, _ = given_and_results(name)
    for move in moves_of(given) or ():
        result = want[move.result]
        first, narrowed = move.first(X.shape), move.narrowed(X.shape)
        if first is not None and given.op.op_type not in ("Pad", "Concat"):
            np.testing.assert_array_equal(X.reshape(-1)[first : first + result.size], result.reshape(-1))
        if narrowed is not None and given.op.op_type in ("Slice", "Split"):
            axis, start, length = narrowed
            np.testing.assert_array_equal(np.take(X, range(start, start + length), axis), result)


@pytest.mark.parametrize(
    ("operands", "problem"),
    [
        ({"s": ints(0), "e": ints(1, 2)}, "differ in number"),
        ({"s": ints(0), "e": ints(1), "a": ints(0), "t": ints(0)}, "a step is zero"),
        ({"s": ints(0), "e": ints(1), "a": ints(3)}, "axis 3 of 3 axes"),
    ],
)
def test_bounds_that_contradict_one_another(operands: dict[str, np.ndarray], problem: str) -> None:
    op = Op("Slice", ("x", *operands), ("y",))
    with pytest.raises(MisfitError, match=problem):
        moves_of(given_at(op, {"x": TensorSpec("float32", X.shape)}, operands))


def test_what_is_not_known_is_not_read() -> None:
    specs = {"x": TensorSpec("float32", X.shape), "i": TensorSpec("int64", (2,))}
    assert moves_of(given_at(Op("Gather", ("x", "i"), ("y",)), specs, {})) is None
    assert moves_of(given_at(Op("Neg", ("x",), ("y",)), specs, {})) is None
    assert moves_of(given_at(Op("Concat", ("x", "late"), ("y",), {"axis": 0}), specs, {})) is None
    with pytest.raises(NotKnownError):
        cut_places([None, 4], [0], [1], [0], [])


@pytest.mark.parametrize(
    ("start", "end", "step"), [(0, 9, 2), (4, -99, -1), (4, 0, -2), (3, 1, 1), (-2, 9, 1)]
)
def test_places_as_numpy_takes_them(start: int, end: int, step: int) -> None:
    x = np.arange(5)
    places = cut_places([5], [start], [end], [0], [step])[0]
    np.testing.assert_array_equal(x[as_slice(places)], x[list(places)])
