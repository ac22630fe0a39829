"""Kernels of plugins for a GPU, as far as they can be seen without one: described, compiled, interpreted."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import parser

import ridgeline
from interpreted import interpret
from ridgeline.base.spec import Body, Config, Op, Site, Target, TensorSpec
from ridgeline.errors import PluginError
from ridgeline.kernels.triton.compiler import Compiled, KernelStore, compile_kernels
from ridgeline.kernels.triton.source import Kernel
from ridgeline.plugins import NvrtcTactic, Plugin, TritonTactic, gpu_tactics
from ridgeline.tactics.base import Offer, Refused
from ridgeline.tactics.offer import read_offer

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"
M, N, K = 33, 50, 7
RBF = f"""
<ir_version: 10, opset_import: ["": 18, "acme.rbf": 1]>
rbf (float[{M}, {K}] x, float[{N}, {K}] w) => (float[{M}, {N}] y) <float g = {{-0.1}}> {{
    d = acme.rbf.SquaredDistance (x, w)
    s = Mul (d, g)
    y = Exp (s)
}}
"""


COPY = """
import triton
import triton.language as tl


@triton.jit
def copy(x_ptr):
    tl.store(x_ptr, tl.load(x_ptr + 1))
"""


@pytest.fixture
def rbf(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(EXAMPLES / "02_triton_op"))
    import acme_rbf

    ridgeline.plugins.register.LOADING.set(Plugin("acme-rbf", "1.0"))
    acme_rbf.register()
    ridgeline.plugins.register.LOADING.set(None)
    yield acme_rbf
    del sys.modules["acme_rbf"]


def rbf_site(target: Target) -> Site:
    body = Body(
        ("x", "w"), ("y",),
        (Op("SquaredDistance", ("x", "w"), ("d",), domain="acme.rbf"), Op("Relu", ("d",), ("y",))),
    )  # fmt: skip
    made = TensorSpec("float32", (M, N))
    specs = {"x": TensorSpec("float32", (M, K)), "w": TensorSpec("float32", (N, K)), "d": made, "y": made}
    return Site(body, specs, frozenset(), {}, target)


def tactic_of(module: Any, **changes: Any) -> TritonTactic:
    more = {"scalars": module.sizes, "configs": lambda at: [{"BM": 16, "BN": 32}], "epilogue_axis": -1}
    fields = {"op": module.OP, "kernel": module.distance_kernel, "grid": module.grid} | more | changes
    return TritonTactic("acme.test", **fields)


def test_what_follows_the_op_is_fused_into_its_kernel_and_compiled(rbf: Any, tmp_path: Path) -> None:
    engine = ridgeline.build(parser.parse_model(RBF), target="cuda:sm_90", level=0)
    (step,) = engine.plan.steps
    assert step.op_types == ("SquaredDistance", "Mul", "Exp")
    assert step.tactic == "acme.distance.triton"
    assert step.kernels
    again = ridgeline.load(engine.save(tmp_path / "rbf.ridge"))
    assert again.plan.steps[0].kernels == step.kernels


def test_a_kernel_is_found_by_compilers_that_started_before_its_module_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signature = (("x_ptr", "*fp32"),)
    ours = Kernel("copy", "", signature, text=COPY)
    (tmp_path / "acme_late.py").write_text(COPY.replace("copy", "late"))
    store = KernelStore(cache_dir=tmp_path / "cubin")
    assert isinstance(compile_kernels([ours], "sm_90", store=store)[0], Compiled)
    monkeypatch.syspath_prepend(str(tmp_path))
    (made,) = compile_kernels([Kernel("late", "acme_late", signature)], "sm_90", store=store)
    assert isinstance(made, Compiled), made


def test_on_the_cpu_the_reference_runs_and_nothing_is_fused_into_it(rbf: Any) -> None:
    engine = ridgeline.build(parser.parse_model(RBF), level=0, threads=1)
    feeds = engine.example_inputs()
    want = rbf.radial_basis(torch.tensor(feeds["x"]), torch.tensor(feeds["w"]), 0.1)
    torch.testing.assert_close(torch.tensor(engine.run(feeds)["y"]), want)
    assert engine.plan.steps[0].op_types == ("SquaredDistance",)


def test_the_kernel_with_its_epilogue_computes_the_region(rbf: Any) -> None:
    tactic, site = tactic_of(rbf), rbf_site(Target("cuda", "sm_90"))
    at = tactic.read(site)
    kernel = tactic.describe(at, {"BM": 16, "BN": 32})
    x, w, y = torch.randn(M, K), torch.randn(N, K), torch.full((M, N), torch.nan)
    interpret(kernel, tactic.grid(at, {"BM": 16, "BN": 32}), [x, w, y, M, N, K])
    torch.testing.assert_close(y, rbf.reference(x, w).relu())
    assert not kernel.pdl


def test_a_kernel_without_an_epilogue_takes_the_op_alone(rbf: Any) -> None:
    tactic = tactic_of(rbf, epilogue_axis=None)
    offer = read_offer(tactic, rbf_site(Target("cuda", "sm_90")))
    assert isinstance(offer, Refused)
    assert "want acme.rbf::SquaredDistance alone" in offer.reason


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"configs": lambda at: [{"BM": 16}]}, "values for BN"),
        ({"scalars": lambda at: (1, 2)}, "values for depth"),
        ({"scalars": lambda at: (1, 2, 3, 4)}, "more parameters"),
    ],
)
def test_parameters_that_do_not_fit_are_named(rbf: Any, changes: Any, said: str) -> None:
    offer = read_offer(tactic_of(rbf, **changes), rbf_site(Target("cuda", "sm_90")))
    assert isinstance(offer, Offer)
    with pytest.raises(PluginError, match=said):
        offer.kernels(offer.configs[0])


def test_a_kernel_is_refused_on_the_cpu_and_in_main(rbf: Any) -> None:
    offer = read_offer(tactic_of(rbf), rbf_site(Target("cpu")))
    assert isinstance(offer, Refused)
    assert "want cuda" in offer.reason

    def kernel(x_ptr: Any) -> None: ...

    kernel.__module__ = "__main__"
    lone = tactic_of(rbf, kernel=type("Jit", (), {"fn": staticmethod(kernel)}))
    offer = read_offer(lone, rbf_site(Target("cuda", "sm_90")))
    assert isinstance(offer, Refused)
    assert "__main__" in offer.reason


def nvrtc(**fields: Any) -> NvrtcTactic:
    more: dict[str, Any] = {"grid": lambda at, config: (1,), "threads": lambda at, config: 128}
    return NvrtcTactic("acme.cuda", op="Relu", source="", function="relu", **more | fields)


def relu_site() -> Site:
    spec = TensorSpec("float32", (8,))
    body = Body(("x",), ("y",), (Op("Relu", ("x",), ("y",)),))
    return Site(body, {"x": spec, "y": spec}, frozenset(), {}, Target("cuda", "sm_90"))


def test_without_nvrtc_the_tactic_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_tactics, "has_nvrtc", lambda: False)
    offer = read_offer(nvrtc(), relu_site())
    assert isinstance(offer, Refused)
    assert "NVRTC" in offer.reason


@pytest.mark.parametrize("config", [{"THREADS": 256}, {"THREADS": 1024}], ids=str)
def test_the_cuda_example_compiles_without_a_gpu(config: Config) -> None:
    example = runpy.run_path(str(EXAMPLES / "04_cuda_op" / "acme_histogram.py"))
    cubin = gpu_tactics.nvrtc_cubin(gpu_tactics.macros(config) + example["SOURCE"], "sm_90")
    assert cubin[:4] == b"\x7fELF"


def test_an_error_in_cuda_source_is_quoted() -> None:
    with pytest.raises(PluginError, match='identifier "y" is undefined'):
        gpu_tactics.nvrtc_cubin('extern "C" __global__ void f(float* x) { x[0] = y; }', "sm_90")


def test_blocks_are_whole_warps() -> None:
    at = nvrtc().read(relu_site())
    with pytest.raises(PluginError, match="multiple of 32"):
        replace(nvrtc(), threads=lambda at, config: 100).runner(at, {})


def test_a_model_with_a_plugin_region_is_legal_onnx(rbf: Any, tmp_path: Path) -> None:
    engine = ridgeline.build(parser.parse_model(RBF), target="cuda:sm_90", level=0)
    functions = list(engine.model.functions.values())
    assert functions[0].opset_imports["acme.rbf"] == 1
    onnx.checker.check_model(onnx.load_from_string(_fused(engine, tmp_path)))


def _fused(engine: ridgeline.Engine, folder: Path) -> bytes:
    import zipfile

    with zipfile.ZipFile(engine.save(folder / "e.ridge")) as archive:
        return archive.read("fused.onnx")
