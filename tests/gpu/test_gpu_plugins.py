"""Kernels of plugins on the GPU: the two examples, workspace and state of each context, and a bad one."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import parser

import ridgeline
from ridgeline.plugins import CATALOG, NvrtcTactic, OpSite, Plugin, Schema, Spec, register_op, unregister
from ridgeline.plugins.gpu_tactics import has_nvrtc

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"
needs_nvrtc = pytest.mark.skipif(not has_nvrtc(), reason="cuda-core is not installed, which brings NVRTC")
RBF = """
<ir_version: 10, opset_import: ["": 18, "acme.rbf": 1]>
rbf (float[N, 16] x, float[50, 16] w) => (float[N, 50] y) <float minus_gamma = {-0.1}> {
    d = acme.rbf.SquaredDistance (x, w)
    s = Mul (d, minus_gamma)
    y = Exp (s)
}
"""
COUNT = """
<ir_version: 10, opset_import: ["": 18, "acme.image": 1]>
count (uint8[N, 4096] x) => (float[N, 256] y) {
    counts = acme.image.Histogram (x)
    y = Cast <to = 1> (counts)
}
"""
SCALED = """
<ir_version: 10, opset_import: ["": 18, "acme": 1]>
scaled (float[8, 32] x) => (float[8, 32] y) { y = acme.Scaled <by = 3.0> (x) }
"""
SOURCE = """
extern "C" __global__ void scaled(
    const float* x, float* y, float* work, const float* ones, long long n, double by
) {
    for (long long i = threadIdx.x; i < n; i += 128) {
        work[i] = x[i] * ones[0];
        y[i] = work[i] * (float)by;
    }
    EXTRA
}
"""


@pytest.fixture(autouse=True)
def _forget_plugins() -> Iterator[None]:
    yield
    for plugin in {plugin.name for plugin in CATALOG.plugins()}:
        unregister(plugin)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made: list[str] = []

    def register(folder: str, name: str) -> Any:
        monkeypatch.syspath_prepend(str(EXAMPLES / folder))
        module = importlib.import_module(name)
        module.register()
        made.append(name)
        return module

    yield register
    for name in made:
        del sys.modules[name]


def candidates(engine: ridgeline.Engine, tactic: str, op_type: str) -> list[Any]:
    """Of the steps that run the op: elsewhere the tactic refuses."""
    steps = [step for step in engine.plan.steps if op_type in step.op_types]
    return [c for step in steps for c in (step, *step.losers) if c.tactic == tactic]


def array(value: Any) -> np.ndarray:
    return value.cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def test_a_triton_kernel_runs_with_what_follows_it(example: Any, tmp_path: Path) -> None:
    module = example("02_triton_op", "acme_rbf")
    engine = ridgeline.build(parser.parse_model(RBF), target="cuda", profiles={"x": "1..33..64x16"}, level=1)
    assert engine.report.verified
    (step,) = engine.plan.steps
    assert step.op_types == ("SquaredDistance", "Mul", "Exp")
    timed = candidates(engine, "acme.distance.triton", "SquaredDistance")
    assert len(timed) == 3
    assert all(getattr(c, "refused", None) is None and c.median_us is not None for c in timed), timed
    feeds = engine.example_inputs(seed=1)
    want = module.radial_basis(torch.from_numpy(feeds["x"]), torch.from_numpy(feeds["w"]), 0.1).numpy()
    np.testing.assert_allclose(array(engine.run(feeds)["y"]), want, rtol=1e-5, atol=1e-6)
    again = ridgeline.load(engine.save(tmp_path / "rbf.ridge"))
    np.testing.assert_array_equal(array(again.run(feeds)["y"]), array(engine.run(feeds)["y"]))
    short = {"x": feeds["x"][:5], "w": feeds["w"]}
    np.testing.assert_allclose(array(engine.run(short)["y"]), want[:5], rtol=1e-5, atol=1e-6)


@needs_nvrtc
def test_cuda_source_is_compiled_timed_and_right(example: Any, tmp_path: Path) -> None:
    example("04_cuda_op", "acme_histogram")
    engine = ridgeline.build(parser.parse_model(COUNT), target="cuda", profiles={"x": (3, 4096)}, level=1)
    timed = candidates(engine, "acme.histogram.cuda", "Histogram")
    assert len(timed) == 2
    assert all(getattr(c, "refused", None) is None and c.median_us is not None for c in timed), timed
    x = np.random.default_rng(0).integers(0, 256, (3, 4096), np.uint8)
    want = np.stack([np.bincount(row, minlength=256) for row in x])
    np.testing.assert_array_equal(array(engine.run({"x": x})["y"]), want)
    again = ridgeline.load(engine.save(tmp_path / "count.ridge"))
    np.testing.assert_array_equal(array(again.run({"x": x})["y"]), want)


def register_scaled(extra: str, states: list[torch.Tensor]) -> None:
    def state(at: OpSite) -> torch.Tensor:
        states.append(torch.ones(1, device="cuda"))
        return states[-1]

    tactic = NvrtcTactic(
        "acme.scaled.cuda", op="acme::Scaled", source=SOURCE.replace("EXTRA", extra), function="scaled",
        grid=lambda at, config: (1,), threads=lambda at, config: 128,
        scalars=lambda at: (at.inputs[0].numel, at.attrs["by"]),
        workspace_bytes=lambda at, config: at.inputs[0].nbytes, state=state,
    )  # fmt: skip

    def same(x: Spec, *, by: float) -> Spec:
        return x

    register_op(
        Schema("acme::Scaled", {"x": "float32"}, {"y": "float32"}, {"by": float}),
        shapes=same, reference=lambda x, by: x * by, tactics=[tactic], plugin=Plugin("acme-scaled", "1.0"),
    )  # fmt: skip


@needs_nvrtc
def test_every_context_has_its_own_workspace_and_state() -> None:
    states: list[torch.Tensor] = []
    register_scaled("", states)
    engine = ridgeline.build(parser.parse_model(SCALED), target="cuda", level=0)
    assert engine.plan.steps[0].tactic == "acme.scaled.cuda"
    before = len(states)
    x = np.random.default_rng(0).standard_normal((8, 32), np.float32)
    for context in (engine.context(), engine.context()):
        for _ in range(2):
            np.testing.assert_allclose(array(context.run({"x": x})["y"]), 3 * x, rtol=1e-6)
    assert len(states) == before + 2


@needs_nvrtc
@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ("if (threadIdx.x == 0) y[n] = 1;", "writes outside output 0: 4 bytes after its end"),
        ("if (threadIdx.x == 0) work[-1] = 1;", "writes outside its workspace: 4 bytes before its start"),
        ("if (threadIdx.x == 0) y[0] = 0.0f / 0.0f;", "output 0 has 1 NaN"),
    ],
)
def test_a_bad_kernel_is_refused_and_named(extra: str, said: str) -> None:
    register_scaled(extra, [])
    engine = ridgeline.build(parser.parse_model(SCALED), target="cuda", level=0)
    assert engine.plan.steps[0].tactic == "aten"
    (refused,) = candidates(engine, "acme.scaled.cuda", "Scaled")
    assert said in refused.refused
    assert "plugin acme-scaled 1.0" in refused.refused
