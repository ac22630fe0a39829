"""Generated kernels at the ends of types, where they must give what the floor gives, bit by bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cpp_cases import dtype_name, empty, needs_compiler
from torch import Tensor

from offers import offered, why_not
from ridgeline.base.spec import Body, Op, Site, Target, TensorSpec
from ridgeline.kernels.cpp.dialect import step_text
from ridgeline.kernels.floor import call_floor
from ridgeline.kernels.scalar.program import Step
from ridgeline.tactics.cpu.cpp import CppPointwise, CppReduce, GeneratedCpp

UINT32, UINT64 = 12, 13
NAN, INF = float("nan"), float("inf")


def require_the_same(kind: type[GeneratedCpp], folder: Path, op: Op, *inputs: Tensor) -> None:
    (want,) = call_floor(op, inputs)
    values = dict(zip((*op.inputs, *op.outputs), (*inputs, want), strict=True))
    specs = {name: TensorSpec(dtype_name(t), tuple(t.shape)) for name, t in values.items()}
    arrays = {n: t.numpy() for n, t in zip(op.inputs, inputs, strict=True) if n == "axes"}
    site = Site(Body(op.inputs, op.outputs, (op,)), specs, frozenset(), arrays, Target(threads=1))
    tactic = kind(cache_dir=folder / "cpp-special")
    assert why_not(tactic, site) is None
    got = empty(specs[op.outputs[0]])
    offered(tactic, site).bind(offered(tactic, site).configs[0], {}).call(list(inputs), [got])
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_floats_become_unsigned_as_elsewhere(tmp_path: Path, dtype: torch.dtype) -> None:
    """A vector instruction saturates where a scalar one wraps."""
    numbers = [0.0, 300.7, -5.0, -300.5, 65536.5, 3e9, -1e9, NAN, INF, -INF, 1e19]
    for to, count in ((UINT64, 11), (UINT32, 7)):
        x = torch.tensor(numbers[:count] * 5, dtype=dtype)
        require_the_same(CppPointwise, tmp_path, Op("Cast", ("x",), ("y",), {"to": to}), x)


@needs_compiler
@pytest.mark.parametrize("bound", [NAN, 0.5, INF])
def test_a_bound_that_is_nan_makes_nan(tmp_path: Path, bound: float) -> None:
    x = torch.tensor([1.0, -2.0, NAN, INF, -INF] * 8)
    require_the_same(CppPointwise, tmp_path, Op("Clip", ("x", "low"), ("y",)), x, torch.tensor(bound))


@needs_compiler
@pytest.mark.parametrize("kind", ["ReduceMean", "ReduceL2"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_integers_are_divided_and_rooted_as_doubles(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    rows = [[7, -2, 2, 1], [-7, 0, 0, 0], [100, 100, 100, 101]]
    if kind == "ReduceMean" and dtype == torch.int64:
        rows.append([2**62 + 7, 0, 0, 0])  # no double
    op = Op(kind, ("x", "axes"), ("y",), {"keepdims": 0})
    require_the_same(CppReduce, tmp_path, op, torch.tensor(rows, dtype=dtype), torch.tensor([1]))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_floats_reach_narrow_integers_by_way_of_32_bits(dtype: str) -> None:
    """Else it is the compiler's choice what 65504 becomes, and that differs from processor to processor."""
    assert step_text(Step("", "int32", "{0}", ("x",), cast=dtype)).endswith("(int)x")
