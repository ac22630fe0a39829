"""Generated kernels at infinities, NaN and near the largest number, against the onnx reference evaluator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx.helper as oh
import pytest
import torch
from cpp_cases import empty, needs_compiler
from onnx.reference import ReferenceEvaluator
from torch import Tensor
from triton_cases import make_site, run_stages

from ridgeline.spec import Op, Site, Target
from ridgeline.tactics.cpp import CppPointwise, CppReduce
from ridgeline.tactics.triton_codegen import TritonPointwise, TritonRows

FLOATS = {torch.float32: (1, 1e-5), torch.float16: (10, 2e-3)}
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
        assert tactic.why_not(site) is None
        outputs = [empty(spec) for spec in site.outputs]
        tactic.bind(site, next(iter(tactic.configs(site))), {}).call(list(inputs.values()), outputs)
        return outputs

    return run


@pytest.fixture(scope="module")
def triton() -> Run:
    def run(site: Site, inputs: Mapping[str, Tensor], reduces: bool) -> list[Tensor]:
        tactic = (TritonRows if reduces else TritonPointwise)()
        assert tactic.why_not(site) is None
        return run_stages(site, tactic.stages(site, next(iter(tactic.configs(site)))), inputs)

    return run


def reference(ops: list[Op], inputs: Mapping[str, Tensor], constants: Mapping[str, np.ndarray]) -> list[Any]:
    """Every op's result, each computed from the inputs."""
    nodes = [oh.make_node(op.op_type, op.inputs, op.outputs, **op.attrs) for op in ops]
    given = [oh.make_tensor_value_info(n, FLOATS[t.dtype][0], t.shape) for n, t in inputs.items()]
    # as many powers as bases: numpy takes the root for a single 0.5, which differs at -inf
    whole = {n: a if a.ndim else np.full(len(SPECIAL), a) for n, a in constants.items()}
    held = [oh.make_tensor(n, oh.np_dtype_to_tensor_dtype(a.dtype), a.shape, a) for n, a in whole.items()]
    outputs = [oh.make_empty_tensor_value_info(op.outputs[0]) for op in ops]
    graph = oh.make_graph(nodes, "special", given, outputs, held)
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 23)], ir_version=10)
    with np.errstate(all="ignore"):
        results: list[Any] = ReferenceEvaluator(model).run(None, {n: t.numpy() for n, t in inputs.items()})
    return results


def check(
    run: Run, ops: list[Op], inputs: Mapping[str, Tensor], constants: Mapping[str, np.ndarray] | None = None,
    *, target: Target, reduces: bool = False,
) -> None:  # fmt: skip
    names = [op.outputs[0] for op in ops]
    site = make_site(ops, inputs, names, constants=constants, target=target)
    wants = reference(ops, inputs, constants or {})
    slack = FLOATS[next(iter(inputs.values())).dtype][1]
    for op, got, want in zip(ops, run(site, inputs, reduces), wants, strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=slack, atol=slack, err_msg=f"{op.op_type} {op.attrs}")


@pytest.fixture(params=[pytest.param("cpp", marks=needs_compiler), "triton"])
def kernel(request: pytest.FixtureRequest) -> tuple[Run, Target]:
    is_cpp = request.param == "cpp"
    return request.getfixturevalue(request.param), Target(threads=1) if is_cpp else Target("cuda", "sm_90")


@pytest.mark.parametrize("dtype", FLOATS)
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
