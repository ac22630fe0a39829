"""The `out` forms of floor ops: they fill poisoned outputs of any layout with what `run` returns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ridgeline.base.spec import Op
from ridgeline.kernels.floor import FLOOR, call_floor


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) + 0.1


def _ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


X, Y, ROW = _random(2, 4, 3, 5), _random(2, 4, 3, 5, seed=1), _random(5, seed=2)
A, B, C = _random(6, 8), _random(8, 5, seed=1), _random(5, seed=2)
IDS = torch.tensor([[0, 3, -1], [2, 2, 5]])

CASES: dict[str, list[tuple[list[Tensor | None], dict[str, Any]]]] = {
    **{
        key: [([X], {})]
        for key in (
            "Acos", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor", "Log",
            "Reciprocal", "Round", "Sigmoid", "Sin", "Sinh", "Sqrt", "Tan", "Tanh", "Neg", "Relu",
            "HardSwish", "GlobalAveragePool", "Identity",
        )
    },
    **{
        key: [([X, Y], {}), ([X, ROW], {}), ([ROW, Y], {}), ([IDS, IDS + 1], {})]
        for key in ("Add", "Sub", "Mul", "Max", "Min", "Equal", "Greater", "GreaterOrEqual", "Less",
                    "LessOrEqual", "Pow")
    },
    **{key: [([X > 0.5, Y > 0.5], {})] for key in ("And", "Or", "Xor")},
    **{
        key: [
            ([X, _ints(2, 3)], {}), ([X, _ints(-1)], {"keepdims": 0}), ([X], {}), ([X.half(), _ints(1)], {}),
        ]
        for key in (
            "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
            "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp",
        )
    },
    "Acosh": [([X + 1], {})],
    "Not": [([X > 0.5], {})],
    "Div": [([X, Y], {}), ([X, ROW], {}), ([IDS, torch.tensor(2)], {})],
    "Where": [([X > 0.5, X, Y], {}), ([X > 0.5, X, ROW], {})],
    "Clip": [([X, torch.tensor(0.3), None], {}), ([X, None, torch.tensor(0.8)], {}), ([X, None, None], {})],
    "LeakyRelu": [([X - 0.5], {"alpha": 0.2})],
    "HardSigmoid": [([X - 0.5], {"alpha": 0.3, "beta": 0.4}), ([X - 0.5], {"alpha": 1 / 6})],
    "Gelu": [([X], {}), ([X], {"approximate": "tanh"})],
    "MatMul": [([A, B], {}), ([X, _random(5, 7)], {}), ([X, Y.transpose(2, 3)], {})],
    "Gemm": [
        ([A, B, C], {}), ([A, B, C], {"alpha": 0.5, "beta": 2.0}),
        ([A, B.T.contiguous(), None], {"transB": 1}),
        ([A.T.contiguous(), B, None], {"transA": 1, "alpha": 3.0}),
    ],
    "Softmax": [([X], {}), ([X], {"axis": 1}), ([X.half()], {})],
    "LayerNormalization": [([X, ROW, ROW + 1], {}), ([X, ROW, None], {}), ([X, Y[0, 0], None], {"axis": 2})],
    "Concat": [([X, Y], {"axis": 1}), ([X, Y, X], {"axis": -1})],
    "Split": [([X], {"num_outputs": 2, "axis": 1}), ([X, _ints(1, 3)], {"axis": 1})],
    "Cast": [([X], {"to": 10}), ([X], {"to": 11})],
    "Transpose": [([X], {"perm": [0, 2, 3, 1]}), ([X], {})],
    "Expand": [([ROW, _ints(2, 4, 3, 1)], {}), ([X[:, :, :1], _ints(2, 4, 3, 5)], {})],
    "Gather": [([A, IDS], {}), ([X, _ints(1, 0, -1)], {"axis": 2}), ([A, torch.tensor(-2)], {})],
    "Slice": [([X, _ints(1, 4), _ints(3, -9), _ints(1, 3), _ints(1, -2)], {})],
    "Reshape": [([X, _ints(0, -1, 5)], {})],
    "Squeeze": [([X[:, :1], _ints(1)], {})],
    "Unsqueeze": [([X, _ints(0, -1)], {})],
    "Flatten": [([X], {"axis": 2})],
}  # fmt: skip


def _poisoned(like: Tensor, layout: torch.memory_format) -> Tensor:
    poison = float("nan") if like.dtype.is_floating_point else (True if like.dtype == torch.bool else -77)
    return torch.full(like.shape, poison, dtype=like.dtype).contiguous(memory_format=layout)


def test_every_out_form_has_a_case() -> None:
    assert sorted(CASES) == sorted(key for key, entry in FLOOR.items() if entry.out is not None)


@pytest.mark.parametrize("key", sorted(CASES))
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["nchw", "nhwc"])
def test_out_equals_run(key: str, layout: torch.memory_format) -> None:
    write = FLOOR[key].out
    assert write is not None
    for given, attrs in CASES[key]:
        outputs = ("a", "b") if key == "Split" else ("a",)
        inputs = [
            x.contiguous(memory_format=layout) if x is not None and x.ndim == 4 and x.is_contiguous() else x
            for x in given
        ]
        with torch.inference_mode():
            wanted = call_floor(Op(key, (), outputs, attrs), given)
            targets = []
            for want in wanted:
                assert want is not None
                targets.append(_poisoned(want, layout if want.ndim == 4 else torch.contiguous_format))
            places = [(t.data_ptr(), t.stride()) for t in targets]
            write(*inputs, out=targets, **attrs)
        assert [(t.data_ptr(), t.stride()) for t in targets] == places
        for target, want in zip(targets, wanted, strict=True):
            torch.testing.assert_close(target, want, equal_nan=True)
