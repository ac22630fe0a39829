"""TF32 on the GPU: products round to its ten digits where that was asked for, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from networks import Net, mlp
from torch import Tensor

import ridgeline
from ridgeline.base.spec import TF32
from ridgeline.tactics.cache import TimingCache
from ridgeline.verify.metrics import relative_l2

QUICK: dict[str, Any] = {"target": "cuda", "level": 1, "verify": "fast", "progress": False}
# relative L2 errors of whole outputs: TF32 has ten digits, float32 twenty-three
EXACT_BELOW = 3e-6
ROUNDED = (1e-5, 2e-3)
LIBRARIES = ("cublas", "cudnn", "cuda.sdpa")
LEFT_OUT = {"ours": LIBRARIES, "libraries": ("triton",), "floor": ("triton", *LIBRARIES)}
Meaning = Callable[..., Tensor]


def linear() -> tuple[onnx.ModelProto, Meaning]:
    net = Net()
    w = net.weight(1024, 1024)
    net("MatMul", "x", w)
    weight = torch.from_numpy(onnx.numpy_helper.to_array(net.weights[0]).copy()).double()
    return net.model("float[512,1024] x", "float[512,1024]"), lambda x: x @ weight


def image() -> tuple[onnx.ModelProto, Meaning]:
    net = Net()
    w = net.weight(64, 64, 3, 3, scale=0.05)
    net("Conv", "x", w, pads=[1, 1, 1, 1])
    weight = torch.from_numpy(onnx.numpy_helper.to_array(net.weights[0]).copy()).double()
    return net.model("float[8,64,56,56] x", "float[8,64,56,56]"), lambda x: F.conv2d(x, weight, padding=1)


def attention() -> tuple[onnx.ModelProto, Meaning]:
    text = """<ir_version: 11, opset_import: ["": 23]>
    net (float[4,8,512,64] q, float[4,8,512,64] k, float[4,8,512,64] v) => (float[4,8,512,64] y) {
      y = Attention (q, k, v)
    }"""
    return onnx.parser.parse_model(text), F.scaled_dot_product_attention


MODELS = {"linear": linear, "image": image, "attention": attention}


def made(engine: ridgeline.Engine, feeds: dict[str, Any]) -> np.ndarray:
    (output,) = engine.run(feeds).values()
    return np.asarray(output.cpu() if isinstance(output, Tensor) else output)


def error_of(engine: ridgeline.Engine, meaning: Meaning) -> float:
    """Against float64, on numbers of about one size."""
    rng = np.random.default_rng(11)
    shapes = {name: spec.shape for name, spec in engine.plan.planned_shapes.items()}
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    want = meaning(*(torch.from_numpy(array).double() for array in feeds.values())).numpy()
    return relative_l2(made(engine, feeds), want)


@pytest.fixture
def tf32_everywhere() -> Iterator[None]:
    """A process that lets PyTorch round wherever it can."""
    holders = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
    before = [holder.fp32_precision for holder in holders]
    for holder in holders:
        holder.fp32_precision = "tf32"
    yield
    for holder, kind in zip(holders, before, strict=True):
        holder.fp32_precision = kind


@pytest.mark.parametrize("without", LEFT_OUT.values(), ids=LEFT_OUT)
@pytest.mark.parametrize("name", MODELS)
def test_float32_stays_float32(name: str, without: tuple[str, ...], tf32_everywhere: None) -> None:
    proto, meaning = MODELS[name]()
    engine = ridgeline.build(proto, without=without, **QUICK)
    assert engine.report.verified
    assert error_of(engine, meaning) < EXACT_BELOW, [step.tactic for step in engine.plan.steps]


@pytest.mark.parametrize("without", [LIBRARIES, ("triton",)], ids=["ours", "libraries"])
@pytest.mark.parametrize("name", MODELS)
def test_products_round_where_asked(name: str, without: tuple[str, ...]) -> None:
    if name == "attention" and "triton" in without:
        pytest.skip("torch's fast attention of float32 emulates it by three products, and is nearer")
    proto, meaning = MODELS[name]()
    engine = ridgeline.build(proto, precision=TF32, without=without, **QUICK)
    assert engine.report.verified
    assert engine.plan.precision == TF32
    assert engine.report.precision.nodes == {TF32: 1}
    error, tactics = error_of(engine, meaning), [step.tactic for step in engine.plan.steps]
    assert error < ROUNDED[1], tactics
    # the floor never rounds: where it is the faster one, nothing does
    assert error > ROUNDED[0] or tactics == ["aten"]


def test_a_network_rounds_inside_its_budget_and_its_file_does_the_same(tmp_path: Path) -> None:
    model = mlp(width=512)
    cache = tmp_path / "timings.toml"
    shape: dict[str, Any] = {"profiles": {"x": "256x512"}, "timing_cache": cache}
    exact = ridgeline.build(model, **QUICK | shape)
    known = set(TimingCache.read(cache).entries)
    engine = ridgeline.build(model, precision=TF32, **QUICK | shape | {"verify": "full"})
    assert engine.report.verified
    assert engine.report.sites_timed, "a timing of float32 was taken for one that rounds"
    assert known < set(TimingCache.read(cache).entries)
    assert 0 < engine.report.precision.error < ROUNDED[1]
    assert ridgeline.verify_engine(engine, model).verified
    feeds = engine.example_inputs(3)
    rounded, wanted = made(engine, feeds), made(exact, feeds)
    assert 1e-6 < relative_l2(rounded, wanted) < ROUNDED[1]
    engine.save(tmp_path / "m.ridge")
    again = ridgeline.load(tmp_path / "m.ridge")
    np.testing.assert_array_equal(made(again, feeds), rounded)
    exact_again = ridgeline.build(model, **QUICK | shape)
    assert exact_again.report.sites_timed == 0
    np.testing.assert_array_equal(made(exact_again, feeds), wanted)


def test_a_kept_network_is_exact() -> None:
    model = mlp(width=512)
    shape: dict[str, Any] = {"profiles": {"x": "256x512"}}
    kept = ridgeline.build(model, precision=TF32, keep=["fp32:*"], **QUICK | shape)
    assert kept.plan.precision == "fp32"
    assert kept.report.precision.error < EXACT_BELOW
