"""`ridgeline.build` of modules and exported programs: names, dims, checks, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnxscript.rewriter import RewriteRuleSet
from torch import Tensor, nn
from torch.export import Dim
from torch_modules import QUICK, WIDTH, Encoder, assert_agrees, ids, seeded

import ridgeline
from ridgeline.errors import InputError, OptionError, UnsupportedError, VerifyError
from ridgeline.frontend import torch_export
from ridgeline.frontend.from_onnx import load
from ridgeline.frontend.from_torch import Sample, export_module
from ridgeline.frontend.torch_export import as_source
from ridgeline.passes.pipeline import canonicalise
from ridgeline.verify.module import ENGINE, EXPORT, check_sample
from ridgeline.verify.reference import Reference


@pytest.fixture(scope="module")
def encoder() -> nn.Module:
    return seeded(Encoder())


@pytest.fixture(scope="module")
def engine(encoder: nn.Module) -> ridgeline.Engine:
    """With both dims named; the length is bounded, the batch is not."""
    dims = {0: "batch", 1: Dim("length", max=64)}
    return ridgeline.build(
        encoder,
        {"ids": ids(2, 9), "mask": torch.ones(2, 9, dtype=torch.int64)},
        dynamic_shapes={"ids": dims, "mask": dims},
        level=0,
    )


def test_ports_keep_names_and_dims(engine: ridgeline.Engine) -> None:
    assert [str(port) for port in engine.inputs] == ["int64[batch,length]"] * 2
    assert [port.name for port in engine.inputs] == ["ids", "mask"]
    assert [port.name for port in engine.outputs] == ["states", "pooled"]
    assert engine.outputs[0].dims == ("batch", "length", WIDTH)
    assert engine.plan.model == "Encoder"


def test_the_example_is_what_is_planned_for(engine: ridgeline.Engine) -> None:
    assert engine.plan.planned_shapes["ids"].shape == (2, 9)
    assert not any("guessed" in warning for warning in engine.report.warnings)
    assert "export" in engine.report.stage_seconds


def test_the_module_itself_is_among_the_checks(engine: ridgeline.Engine) -> None:
    assert engine.report.verified
    names = {check.name for check in engine.report.checks}
    assert {EXPORT, ENGINE} <= names


def test_other_sizes_run(engine: ridgeline.Engine, encoder: nn.Module) -> None:
    words, mask = ids(3, 5), torch.ones(3, 5, dtype=torch.int64)
    mask[1, 3:] = 0
    made = engine.run({"ids": words, "mask": mask})
    want = type(encoder(words))(made["states"], made["pooled"])
    assert_agrees(want, encoder, (words, mask))


def test_an_export_takes_no_rewrite_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """They try every rule at every node, some against every other node: minutes on a detector."""
    monkeypatch.setattr(RewriteRuleSet, "apply_to_model", lambda *_: pytest.fail("rules were applied"))
    made = load(export_module(seeded(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.SiLU())),
                              (torch.ones(1, 3, 8, 8),), {}).model)  # fmt: skip
    canonicalise(made.model)
    assert sorted(node.op_type for node in made.model.graph) == ["Conv", "Mul", "Sigmoid"]


def test_an_export_that_computes_something_else_is_caught(
    engine: ridgeline.Engine, encoder: nn.Module
) -> None:
    feeds = {"x": torch.ones(2, 3)}
    exported = export_module(seeded(nn.Linear(3, 3)), (feeds["x"],), {})
    reference = Reference(load(exported.model), threads=1)
    wrong = Sample(exported.sample.feeds, lambda feeds: {"output": torch.zeros(2, 3)}, 0.0)
    with pytest.raises(VerifyError, match="exported graph does not compute what the module computes"):
        check_sample(engine, reference, wrong, runs_here=False)
    rows = check_sample(engine, reference, exported.sample, runs_here=False)
    assert [row.name for row in rows] == [EXPORT]


def test_a_program_brings_its_own_inputs(tmp_path: Path) -> None:
    x = torch.randn(3, 4)
    module = seeded(nn.Sequential(nn.Linear(4, 5), nn.ReLU()))
    program = torch.export.export(module, (x,), dynamic_shapes=({0: Dim("rows")},))
    engine = ridgeline.build(program, **QUICK)
    assert engine.inputs[0].dims == (f"{engine.inputs[0].name}.0", 4)
    assert engine.report.verified
    ridgeline.load(engine.save(tmp_path / "program.ridge"))
    with pytest.raises(OptionError, match="brings its own example inputs"):
        ridgeline.build(program, (x,))


def test_an_example_of_one_row_leaves_the_rows_free() -> None:
    module = seeded(nn.Linear(4, 5))
    engine = ridgeline.build(module, torch.randn(1, 4), dynamic_shapes=({0: "rows"},), **QUICK)
    assert engine.inputs[0].dims == ("rows", 4)
    x = torch.randn(6, 4)
    assert_agrees(engine.run({engine.inputs[0].name: x})["output"], module, (x,))


def test_large_weights_go_through_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_export, "LARGE_BYTES", 16)
    module = seeded(nn.Linear(16, 32))
    with as_source(export_module(module, (torch.randn(2, 16),), {}).model) as source:
        assert isinstance(source, Path)
        assert (source.parent / "weights.bin").stat().st_size >= module.weight.nbytes
        weights = load(source).model.graph.initializers.values()
        assert any(np.array_equal(w.const_value.numpy(), module.weight.detach()) for w in weights)


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x - 1


class Changes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        self.calls.add_(1)
        state.mul_(2)
        return x + state


class Draws(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


X = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("module", "example", "error", "message"),
    [
        (nn.Dropout(), X, UnsupportedError, r"(?s)training mode.*module\.eval\(\)"),
        (Branches().eval(), X, UnsupportedError, r"(?s)cannot trace.*data-dependent.*backend"),
        (Changes().eval(), (X, X.clone()), UnsupportedError, r"(?s)in place.*calls.*state"),
        (Draws().eval(), X, UnsupportedError, "random numbers"),
        (nn.Identity().eval(), X, UnsupportedError, "computes nothing"),
        (nn.Linear(4, 4).eval(), X, InputError, "does not run with these inputs"),
        (nn.Linear(3, 4).eval(), (X, X), InputError, "does not take these arguments"),
        (nn.Linear(3, 4).eval(), None, InputError, "needs example inputs"),
    ],
    ids=["training", "branch", "in place", "random", "identity", "shape", "arguments", "no example"],
)
def test_refusals_say_why(module: nn.Module, example: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ridgeline.build(module, example)


def test_a_dim_that_cannot_change_is_said() -> None:
    with pytest.raises(UnsupportedError, match=r"(?s)Constraints violated.*leave such dims out"):
        ridgeline.build(seeded(nn.Linear(3, 4)), X, dynamic_shapes=({1: "width"},))


def test_examples_are_for_modules(tiny_model: Path) -> None:
    with pytest.raises(OptionError, match="are for PyTorch modules"):
        ridgeline.build(tiny_model, (X,))
