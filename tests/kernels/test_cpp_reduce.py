"""Generated row kernels: reductions and norms with pointwise work on either side."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cpp_cases import check, make_site, needs_compiler, random

from offers import why_not
from ridgeline.base.spec import Body, Op, Site, Target, TensorSpec
from ridgeline.tactics.cpu.cpp import CppReduce

REDUCES = ["Sum", "Mean", "Max", "Min", "L1", "L2", "SumSquare", "LogSumExp"]


@pytest.fixture
def tactic(tmp_path_factory: pytest.TempPathFactory) -> CppReduce:
    return CppReduce(cache_dir=Path(tmp_path_factory.getbasetemp()) / "cpp-reduce")


@needs_compiler
@pytest.mark.parametrize("cols", [1, 3, 17, 1000, 1023])
def test_residual_layer_norm_with_both_outputs(tactic: CppReduce, cols: int) -> None:
    inputs = {
        "x": random(2, 7, cols),
        "r": random(2, 7, cols, seed=1),
        "g": random(cols, seed=2),
        "b": random(cols, seed=3),
    }
    ops = [
        Op("Add", ("x", "r"), ("s",)),
        Op("LayerNormalization", ("s", "g", "b"), ("y",), {"axis": -1, "epsilon": 1e-6}),
    ]
    check(tactic, make_site(ops, inputs, ["s", "y"]), inputs)


@needs_compiler
@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (2, 12, 16, 128), (40, 1023)])
def test_masked_softmax(tactic: CppReduce, name: str, shape: tuple[int, ...]) -> None:
    mask = torch.where(random(shape[-1], seed=1) < 1, 0.0, -1e4)
    inputs = {"x": random(*shape) * 5, "m": mask, "d": torch.tensor(8.0)}
    ops = [
        Op("Div", ("x", "d"), ("a",)),
        Op("Add", ("a", "m"), ("b",)),
        Op(name, ("b",), ("y",), {"axis": -1}),
    ]
    check(tactic, make_site(ops, inputs, ["y"]), inputs)


@needs_compiler
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize(
    ("shape", "axes"), [((5, 17), [-1]), ((3, 4, 6, 7), [2, 3]), ((6, 1000), [1]), ((3, 70, 5), [0])]
)
def test_every_reduction(tactic: CppReduce, shape: tuple[int, ...], axes: list[int], keepdims: int) -> None:
    inputs = {"x": random(*shape)}
    ops = [Op(f"Reduce{n}", ("x",), (f"o_{n}",), {"axes": axes, "keepdims": keepdims}) for n in REDUCES]
    check(tactic, make_site(ops, inputs, [op.outputs[0] for op in ops]), inputs)


@needs_compiler
@pytest.mark.parametrize("shape", [(3, 768), (7, 9, 33)])
def test_rms_norm_spelt_out(tactic: CppReduce, shape: tuple[int, ...]) -> None:
    inputs = {"x": random(*shape), "w": random(shape[-1], seed=1), "eps": torch.tensor(1e-6)}
    ops = [
        Op("Mul", ("x", "x"), ("a",)), Op("ReduceMean", ("a",), ("m",), {"axes": [-1]}),
        Op("Add", ("m", "eps"), ("v",)), Op("Sqrt", ("v",), ("d",)), Op("Div", ("x", "d"), ("n",)),
        Op("Mul", ("n", "w"), ("y",)), Op("Sigmoid", ("y",), ("z",)),
        Op("RMSNormalization", ("x", "w"), ("k",)),
    ]  # fmt: skip
    check(tactic, make_site(ops, inputs, ["z", "k"]), inputs)


@needs_compiler
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("shape", [(1, 3, 5, 7), (2, 130, 7, 7), (2, 64, 33, 31)])
def test_spatial_mean(tactic: CppReduce, shape: tuple[int, ...], layout: str) -> None:
    x = random(*shape)
    inputs = {"x": x.contiguous(memory_format=torch.channels_last) if layout == "channels_last" else x}
    ops = [Op("Relu", ("x",), ("a",)), Op("GlobalAveragePool", ("a",), ("m",)), Op("Sigmoid", ("m",), ("y",))]
    check(tactic, make_site(ops, inputs, ["m", "y"], layouts=dict.fromkeys("x", layout)), inputs)


@needs_compiler
@pytest.mark.parametrize("axis", [1, 2])
def test_softmax_over_a_middle_axis(tactic: CppReduce, axis: int) -> None:
    inputs = {"x": random(3, 5, 6, 77), "s": random(77, seed=1)}
    ops = [Op("Mul", ("x", "s"), ("a",)), Op("Softmax", ("a",), ("y",), {"axis": axis})]
    check(tactic, make_site(ops, inputs, ["y"]), inputs)


@needs_compiler
def test_instance_norm(tactic: CppReduce) -> None:
    inputs = {"x": random(2, 5, 9, 7), "s": random(5, seed=1), "b": random(5, seed=2)}
    ops = [Op("InstanceNormalization", ("x", "s", "b"), ("n",)), Op("Relu", ("n",), ("y",))]
    check(tactic, make_site(ops, inputs, ["y"]), inputs)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_floats(tactic: CppReduce, dtype: torch.dtype) -> None:
    inputs = {"x": random(5, 300, dtype=dtype), "g": random(300, seed=1, dtype=dtype)}
    ops = [Op("LayerNormalization", ("x", "g"), ("n",)), Op("Softmax", ("n",), ("y",))]
    # torch at float64 is its own reference: a softmax behind a norm has no wider type to be judged by
    outputs = ["n"] if dtype == torch.float64 else ["n", "y"]
    check(tactic, make_site(ops, inputs, outputs), inputs)


@needs_compiler
def test_nan_inf_and_nothing(tactic: CppReduce) -> None:
    x = random(4, 40)
    x[0, 3], x[1, 5], x[2] = torch.nan, torch.inf, -torch.inf
    ops = [Op(f"Reduce{n}", ("x",), (f"o_{n}",), {"axes": [-1]}) for n in ("Max", "Min", "Sum", "LogSumExp")]
    ops.append(Op("Softmax", ("x",), ("y",)))
    check(tactic, make_site(ops, {"x": x}, [op.outputs[0] for op in ops]), {"x": x})
    nothing = {"x": torch.empty(0, 40)}
    check(tactic, make_site([Op("Softmax", ("x",), ("y",))], nothing, ["y"]), nothing)
    no_columns = {"x": torch.empty(3, 0)}
    check(tactic, make_site([Op("ReduceSum", ("x",), ("y",), {"axes": [1]})], no_columns, ["y"]), no_columns)


@needs_compiler
def test_refusals(tactic: CppReduce) -> None:
    def why(shape: tuple[int, ...], *ops: Op) -> str | None:
        inputs = {"x": torch.zeros(shape)}
        return why_not(tactic, make_site(ops, inputs, [ops[-1].outputs[0]]))

    assert why((4, 4), Op("Exp", ("x",), ("y",))) == "nothing is reduced"
    twice = Op("Softmax", ("x",), ("a",)), Op("Softmax", ("a",), ("y",), {"axis": 0})
    assert why((4, 4), *twice) == "two reductions run over different axes"
    apart = Op("ReduceSum", ("x",), ("y",), {"axes": [0, 2]})
    assert why((4, 4, 4), apart) == "the reduced axes are not neighbours in memory"
    long = "a row needs 400000 bytes of buffers, the stack gives 262144"
    assert why((2, 100_000), Op("Softmax", ("x",), ("y",))) == long
    gpu = Site(
        Body(("x",), ("x",), ()), {"x": TensorSpec("float32", (1,))}, frozenset(), {}, Target("cuda", "sm_90")
    )
    assert why_not(tactic, gpu) == "target is cuda:sm_90, want cpu"
