"""Generated kernels at infinities, NaN and near the largest number, against the onnx reference evaluator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from cpp_cases import empty, needs_compiler
from onnx.reference import ReferenceEvaluator
from torch import Tensor
from triton_cases import make_site, run_stages

from offers import offered, stages_of, why_not
from ridgeline.base.spec import Op, Site, Target
from ridgeline.tactics.cpu.cpp import CppPointwise, CppReduce
from ridgeline.tactics.cuda.triton_codegen import TritonPointwise, TritonRows

SLACK = {torch.float32: 1e-5, torch.float16: 2e-3}
SPECIAL = [0.0, torch.inf, -torch.inf, torch.nan, 3e38, -3e38, 89.0, -89.0, 0.5, -0.5, -1.0, 3.0, -3.0]
UNARY: list[tuple[str, dict[str, Any]]] = [
    ("HardSwish", {}),
    ("Gelu", {}),
    ("Gelu", {"approximate": "tanh"}),
    ("ThresholdedRelu", {"alpha": 1.0}),
    ("ThresholdedRelu", {"alpha": -2.0}),
    ("HardSigmoid", {"alpha": 0.2, "beta": 0.5}),
    ("Sigmoid", {}),
    ("Softplus", {}),
]
Run = Callable[[Site, Mapping[str, Tensor], bool], list[Tensor]]


@pytest.fixture(scope="module")
def cpp(tmp_path_factory: pytest.TempPathFactory) -> Run:
    cache = Path(tmp_path_factory.mktemp("cpp"))

    def run(site: Site, inputs: Mapping[str, Tensor], reduces: bool) -> list[Tensor]:
        tactic = (CppReduce if reduces else CppPointwise)(cache_dir=cache)
        assert why_not(tactic, site) is None
        outputs = [empty(spec) for spec in site.outputs]
        offered(tactic, site).bind(offered(tactic, site).configs[0], {}).call(list(inputs.values()), outputs)
        return outputs

    return run


@pytest.fixture(scope="module")
def triton() -> Run:
    def run(site: Site, inputs: Mapping[str, Tensor], reduces: bool) -> list[Tensor]:
        tactic = (TritonRows if reduces else TritonPointwise)()
        assert why_not(tactic, site) is None
        return run_stages(site, stages_of(tactic, site, offered(tactic, site).configs[0]), inputs)

    return run


def reference(ops: list[Op], inputs: Mapping[str, Tensor], constants: Mapping[str, np.ndarray]) -> list[Any]:
    """Every op's result, each computed from the inputs."""
    # as many powers as bases: numpy takes the root for a single 0.5, which differs at -inf
    whole = {n: a if a.ndim else np.full(len(SPECIAL), a) for n, a in constants.items()}
    feeds = {n: t.numpy() for n, t in inputs.items()} | whole
    values = {
        n: ir.Value(name=n, type=ir.TensorType(ir.DataType.from_numpy(a.dtype))) for n, a in feeds.items()
    }
    nodes = [
        ir.node(
            op.op_type,
            [values[n] for n in op.inputs],
            attributes=dict(op.attrs),
            outputs=[ir.Value(name=out)],
        )
        for op in ops
        for out in op.outputs
    ]
    outputs = [node.outputs[0] for node in nodes]
    graph = ir.Graph(list(values.values()), outputs, nodes=nodes, opset_imports={"": 23}, name="special")
    with np.errstate(all="ignore"):
        results: list[Any] = ReferenceEvaluator(ir.to_proto(ir.Model(graph, ir_version=10))).run(None, feeds)
    return results


def check(
    run: Run, ops: list[Op], inputs: Mapping[str, Tensor], constants: Mapping[str, np.ndarray] | None = None,
    *, target: Target, reduces: bool = False,
) -> None:  # fmt: skip
    names = [op.outputs[0] for op in ops]
    site = make_site(ops, inputs, names, constants=constants, target=target)
    wants = reference(ops, inputs, constants or {})
    slack = SLACK[next(iter(inputs.values())).dtype]
    for op, got, want in zip(ops, run(site, inputs, reduces), wants, strict=True):
        np.testing.assert_allclose(
            got.numpy(), want, rtol=slack, atol=slack, err_msg=f"{op.op_type} {op.attrs}"
        )


@pytest.fixture(params=[pytest.param("cpp", marks=needs_compiler), "triton"])
def kernel(request: pytest.FixtureRequest) -> tuple[Run, Target]:
    is_cpp = request.param == "cpp"
    return request.getfixturevalue(request.param), Target(threads=1) if is_cpp else Target("cuda", "sm_90")


@pytest.mark.parametrize("dtype", SLACK)
def test_activations(kernel: tuple[Run, Target], dtype: torch.dtype) -> None:
    run, target = kernel
    ops = [Op(name, ("x",), (f"y{i}",), attrs) for i, (name, attrs) in enumerate(UNARY)]
    check(run, ops, {"x": torch.tensor(SPECIAL).to(dtype)}, target=target)


def test_powers(kernel: tuple[Run, Target]) -> None:
    run, target = kernel
    bases = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1.0, -1.0, 2.0, -2.0]
    powers = [0.0, torch.inf, -torch.inf, torch.nan, 0.5, -0.5, 1.5, -1.0, -3.0, 2.0, 3.0]
    pairs = torch.cartesian_prod(torch.tensor(bases), torch.tensor(powers))
    x, y = (column.contiguous() for column in pairs.unbind(1))
    check(run, [Op("Pow", ("x", "y"), ("z",))], {"x": x, "y": y}, target=target)


def test_powers_that_are_constants(kernel: tuple[Run, Target]) -> None:
    run, target = kernel
    constants = {f"c{i}": np.float32(p).reshape(()) for i, p in enumerate((0.5, -0.5, 2.0, 3.0, -1.0))}
    ops = [Op("Pow", ("x", name), (f"y{name}",)) for name in constants]
    check(run, ops, {"x": torch.tensor(SPECIAL)}, constants, target=target)


@pytest.mark.parametrize("name", ["ReduceMax", "ReduceMin", "ReduceSum", "ReduceProd"])
def test_nothing_to_reduce(kernel: tuple[Run, Target], name: str) -> None:
    run, target = kernel
    axes = {"axes": np.array([1])}
    ops = [Op(name, ("x", "axes"), ("y",), {"keepdims": 0})]
    check(run, ops, {"x": torch.zeros(3, 0)}, axes, target=target, reduces=True)
