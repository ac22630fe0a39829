"""The floor against ONNX's own node tests: every single-node test of an op that the floor has."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx.backend.test.case.node import collect_testcases

from ridgeline.base.spec import Op
from ridgeline.kernels.elements import SUB_BYTE
from ridgeline.kernels.floor import FLOOR, call_floor
from ridgeline.kernels.floor.dtypes import DTYPES, to_tensor
from ridgeline.kernels.floor.sub_byte import opened

# test name -> why the floor does not reproduce it; may only shrink
_OLD_ATTRIBUTE = "an input of opset 23 is still an attribute there; models are converted up"
_RANDOM = "draws random numbers, which the seed does not fix across implementations"
EXCEPTIONS = {
    "test_dft_opset19": _OLD_ATTRIBUTE,
    "test_dft_axis_opset19": _OLD_ATTRIBUTE,
    "test_dft_inverse_opset19": _OLD_ATTRIBUTE,
    "test_dft_irfft_opset19": _OLD_ATTRIBUTE,
    "test_dft_rfft_opset19": _OLD_ATTRIBUTE,
    "test_dropout_random_old": _OLD_ATTRIBUTE,
    "test_bernoulli": _RANDOM,
    "test_bernoulli_double": _RANDOM,
    "test_bernoulli_seed": _RANDOM,
}


# where an AttributeProto keeps the value of each type
_FIELDS = {1: "f", 2: "i", 3: "s", 4: "t", 6: "floats", 7: "ints", 8: "strings"}


@dataclass(frozen=True)
class Case:
    name: str
    op: Op
    opset: int
    inputs: list[Any]
    wanted: list[Any]
    rtol: float
    atol: float


def _attribute(attribute: onnx.AttributeProto) -> Any:
    value = getattr(attribute, _FIELDS[attribute.type])
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    if isinstance(value, int | float):
        return value
    return [item.decode() if isinstance(item, bytes) else item for item in value]


def _as_array(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _cases() -> Iterator[Case]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = collect_testcases(None)
    for test in tests:
        graph = test.model.graph
        if len(graph.node) != 1 or graph.node[0].domain:
            continue
        node = graph.node[0]
        values = [*graph.input, *graph.output]
        if not all(value.type.HasField("tensor_type") for value in values):
            continue
        if not all(value.type.tensor_type.elem_type in DTYPES for value in values):
            continue
        if node.op_type not in FLOOR:
            continue
        attrs = {attribute.name: _attribute(attribute) for attribute in node.attribute}
        op = Op(node.op_type, tuple(node.input), tuple(node.output), attrs)
        opset = next(entry.version for entry in test.model.opset_import if not entry.domain)
        for inputs, outputs in test.data_sets:
            given = dict(zip([v.name for v in graph.input], inputs, strict=True))
            feeds = [_as_array(given[name]) if name else None for name in op.inputs]
            by_name = dict(zip([v.name for v in graph.output], outputs, strict=True))
            wanted = [_as_array(by_name[name]) if name else None for name in op.outputs]
            yield Case(test.name, op, opset, feeds, wanted, test.rtol, test.atol)


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return list(_cases())


def _mismatch(case: Case) -> str | None:
    inputs = [None if x is None else to_tensor(x) for x in case.inputs]
    try:
        with torch.inference_mode():
            outputs = call_floor(case.op, inputs)
    except Exception as error:  # every failing op belongs in the one list
        return f"{type(error).__name__}: {str(error).splitlines()[0][:150]}"
    for got, want in zip(outputs, case.wanted, strict=True):
        if want is None:
            continue
        if got is None:
            return "an output is missing"
        expected = to_tensor(want)
        if got.dtype != expected.dtype:
            return f"got {got.dtype}, want {expected.dtype}"
        if got.shape != expected.shape:
            return f"got shape {tuple(got.shape)}, want {tuple(expected.shape)}"
        a, b = (_comparable(t) for t in (got, expected))
        # the reference rounds half types after every step; float32 sums that cancel leave noise
        has_eps = expected.dtype.is_floating_point and expected.dtype not in SUB_BYTE
        eps = torch.finfo(expected.dtype).eps if has_eps else 0.0
        noise = 2 * eps * np.abs(b)[np.isfinite(b)].max(initial=0) if eps < 1e-3 else 0.0
        if not np.allclose(a, b, rtol=max(case.rtol, 2 * eps), atol=max(case.atol, noise), equal_nan=True):
            return f"values differ by up to {np.nanmax(np.abs(a - b))}" if a.size else "values differ"
    return None


def _comparable(x: torch.Tensor) -> np.ndarray:
    x = opened(x)
    if x.dtype.is_floating_point:
        return x.double().numpy()
    return x.to(torch.int64).numpy() if not x.is_complex() else x.numpy()


def test_no_exception_is_stale(cases: list[Case]) -> None:
    by_name = {case.name: case for case in cases}
    assert [name for name in EXCEPTIONS if name not in by_name or _mismatch(by_name[name]) is None] == []


def test_node_tests(cases: list[Case]) -> None:
    failed = {}
    for case in cases:
        if case.name in EXCEPTIONS:
            continue
        why = _mismatch(case)
        if why:
            failed[case.name] = f"opset {case.opset}: {why}"
    assert not failed, f"{len(failed)} of {len(cases)}\n" + "\n".join(f"{k}: {v}" for k, v in failed.items())
