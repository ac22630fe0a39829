"""Generated recurrent layers against the onnx reference, and the floor where that one has no answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from cpp_cases import close, needs_compiler, random
from onnx.reference import ReferenceEvaluator
from torch import Tensor

from offers import offered, why_not
from ridgeline.base.spec import Body, Op, Site, Target, TensorSpec
from ridgeline.ir.body import model_proto
from ridgeline.ir.infer import type_proto
from ridgeline.kernels.floor import call_floor
from ridgeline.tactics.cpu.cpp_recurrent import CppRecurrent

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
OPERANDS = ("x", "w", "r", "b", "lens", "h", "c", "p")


@pytest.fixture
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tmp_path_factory.getbasetemp()) / "cpp-recurrent"


def _layer(
    kind: str, steps: int, batch: int, size: int, hidden: int, *, bias: bool = True, states: bool = False,
    peepholes: bool = False, lens: tuple[int, ...] | None = None, threads: int = 1, **attrs: Any,
) -> tuple[Site, dict[str, Tensor]]:  # fmt: skip
    n, rows = 2 if attrs.get("direction") == "bidirectional" else 1, GATES[kind] * hidden
    is_first = bool(attrs.get("layout", 0))
    state = (batch, n, hidden) if is_first else (n, batch, hidden)
    given = {
        "x": random(*((batch, steps) if is_first else (steps, batch)), size),
        "w": random(n, rows, size, seed=1) / size**0.5,
        "r": random(n, rows, hidden, seed=2) / hidden**0.5,
    }
    if bias:
        given["b"] = random(n, 2 * rows, seed=3)
    if lens is not None:
        given["lens"] = torch.tensor(lens, dtype=torch.int32)
    if states:
        given["h"] = random(*state, seed=4)
        given |= {"c": random(*state, seed=5)} if kind == "LSTM" else {}
    if peepholes:
        given["p"] = random(n, 3 * hidden, seed=6)
    reads = tuple(name if name in given else "" for name in OPERANDS[: 8 if kind == "LSTM" else 6])
    shapes = {
        "y": (batch, steps, n, hidden) if is_first else (steps, n, batch, hidden), "y_h": state, "y_c": state
    }  # fmt: skip
    outputs = ("y", "y_h", "y_c")[: 3 if kind == "LSTM" else 2]
    op = Op(kind, reads, outputs, {"hidden_size": hidden, **attrs})
    specs = {n: TensorSpec(str(t.dtype).removeprefix("torch."), tuple(t.shape)) for n, t in given.items()}
    specs |= {name: TensorSpec("float32", shapes[name]) for name in outputs}
    weights = frozenset({"w", "r", "b", "p"} & given.keys())
    return Site(Body(tuple(given), outputs, (op,)), specs, weights, {}, Target(threads=threads)), given


def _floor(op: Op, given: dict[str, Tensor], dtype: torch.dtype) -> list[Tensor]:
    cast = {n: t.to(dtype) if t.is_floating_point() else t for n, t in given.items()}
    return [t for t in call_floor(op, [cast.get(name) for name in op.inputs]) if t is not None]


def _run(cache_dir: Path, site: Site, given: dict[str, Tensor]) -> list[list[Tensor]]:
    """The outputs of every config."""
    tactic = CppRecurrent(cache_dir=cache_dir)
    assert why_not(tactic, site) is None
    made = []
    for config in offered(tactic, site).configs:
        launch = offered(tactic, site).bind(config, {name: given[name] for name in site.weights})
        outs = [torch.full(spec.shape, float("nan")) for spec in site.outputs]
        launch.frozen([given[name] for name in site.body.inputs], outs)()
        made.append(outs)
    return made


def _check(cache_dir: Path, site: Site, given: dict[str, Tensor]) -> None:
    op = site.body.ops[0]
    plain, exact = (
        dict(zip(op.outputs, _floor(op, given, t), strict=True)) for t in (torch.float32, torch.float64)
    )
    for outs in _run(cache_dir, site, given):
        for name, got in zip(site.body.outputs, outs, strict=True):
            close(got, plain[name], exact[name])


@needs_compiler
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("LSTM", {}), ("LSTM", {"states": True, "peepholes": True}), ("LSTM", {"bias": False}),
        ("GRU", {"linear_before_reset": 1}), ("GRU", {"states": True}), ("RNN", {"states": True}),
    ],
)  # fmt: skip
def test_against_the_onnx_reference(cache_dir: Path, kind: str, more: dict[str, Any], layout: int) -> None:
    site, given = _layer(kind, 7, 3, 5, 19, **more)
    op = site.body.ops[0]
    present = [name for name in op.inputs if name]
    inputs = {name: type_proto(site.specs[name]) for name in present}
    outputs = {name: onnx.TypeProto() for name in op.outputs}
    model = model_proto([op], inputs=inputs, outputs=outputs, constants={}, opset_imports={"": 14})
    made = ReferenceEvaluator(model).run(None, {n: given[n].numpy() for n in present})
    want = dict(zip(op.outputs, made, strict=True))
    if layout:  # the same numbers, batch first: the reference knows that layout only in part
        site, _ = _layer(kind, 7, 3, 5, 19, layout=1, **more)
        given |= {n: given[n].transpose(0, 1).contiguous() for n in ("x", "h", "c") if n in given}
        want = {n: a.transpose(2, 0, 1, 3) if a.ndim == 4 else a.swapaxes(0, 1) for n, a in want.items()}
    for outs in _run(cache_dir, site, given):
        for name, got in zip(site.body.outputs, outs, strict=True):
            # a few dozen roundings of values around one
            np.testing.assert_allclose(got.numpy(), want[name], rtol=0, atol=64 * 2.0**-23)


@needs_compiler
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("LSTM", {"clip": 0.6, "peepholes": True, "layout": 1}), ("LSTM", {"input_forget": 1}),
        ("GRU", {"linear_before_reset": 1, "clip": 0.4}), ("GRU", {"layout": 1}), ("RNN", {"clip": 0.4}),
    ],
)  # fmt: skip
def test_lengths_directions_and_clips(
    cache_dir: Path, kind: str, more: dict[str, Any], direction: str
) -> None:
    site, given = _layer(
        kind, 6, 7, 9, 37, direction=direction, states=True, lens=(6, 3, 1, 0, 2, 5, 6), **more
    )
    _check(cache_dir, site, given)


@needs_compiler
@pytest.mark.parametrize(
    ("kind", "steps", "batch", "size", "hidden", "more"),
    [
        ("LSTM", 1, 1, 1, 1, {}), ("LSTM", 3, 2, 130, 128, {"direction": "bidirectional"}),
        ("GRU", 40, 3, 70, 260, {"linear_before_reset": 1}), ("GRU", 5, 1, 3, 310, {}),
        ("LSTM", 6, 5, 20, 300, {}), ("LSTM", 3, 70, 6, 260, {"direction": "reverse"}),
        ("RNN", 30, 4, 33, 500, {"direction": "bidirectional", "layout": 1}), ("RNN", 9, 25, 40, 17, {}),
    ],
)  # fmt: skip
def test_sizes_on_two_threads(
    cache_dir: Path, kind: str, steps: int, batch: int, size: int, hidden: int, more: dict[str, Any]
) -> None:
    site, given = _layer(kind, steps, batch, size, hidden, threads=2, states=True, **more)
    _check(cache_dir, site, given)


@needs_compiler
@pytest.mark.parametrize(
    "name",
    [
        "Relu",
        "Softsign",
        "Softplus",
        "Affine",
        "LeakyRelu",
        "Elu",
        "ThresholdedRelu",
        "ScaledTanh",
        "HardSigmoid",
    ],
)
def test_activations(cache_dir: Path, name: str) -> None:
    attrs = {"activations": [name], "activation_alpha": [0.7], "activation_beta": [0.3]}
    site, given = _layer("RNN", 3, 2, 5, 18, **attrs)
    _check(cache_dir, site, given)


@needs_compiler
def test_outputs_that_nobody_reads(cache_dir: Path) -> None:
    site, given = _layer("LSTM", 4, 2, 5, 18)
    only = replace(site, body=replace(site.body, outputs=("y_c",)))
    _check(cache_dir, only, given)


def test_refusals() -> None:
    tactic = CppRecurrent()
    site, _ = _layer("LSTM", 4, 2, 5, 18)
    assert "W is computed" in (why_not(tactic, replace(site, weights=frozenset({"r", "b"}))) or "")
    wide = {n: replace(s, dtype="float64") for n, s in site.specs.items()}
    assert "want float32" in (why_not(tactic, replace(site, specs=wide)) or "")
    odd, _ = _layer("RNN", 4, 2, 5, 18, activations=["Cosine"])
    assert "activations Cosine" in (why_not(tactic, odd) or "")
    assert "want cpu" in (why_not(tactic, replace(site, target=Target("cuda"))) or "")
