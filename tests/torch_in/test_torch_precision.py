"""Modules in lower precision: what the export is held to, and data of any batch."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_modules import QUICK, seeded

import ridgeline
from ridgeline import builder
from ridgeline.errors import InputError, ModelError, OptionError, PrecisionError, VerifyError
from ridgeline.frontend import torch_export
from ridgeline.frontend.from_torch import Exported, export_module
from ridgeline.options import Options
from ridgeline.torch_in.built import Replayed, _higher
from ridgeline.verify.module import ENGINE, EXPORT

SILENT: dict[str, Any] = {**QUICK, "progress": False}
UNVERIFIED: dict[str, Any] = {**SILENT, "verify": "off"}


def mlp() -> nn.Module:
    return seeded(nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32)))


def rows(count: int) -> Tensor:
    return torch.randn(count, 64, generator=torch.Generator().manual_seed(count))


def test_a_lowered_export_is_compared_with_the_module_before_it_is_lowered() -> None:
    """Codes of a weight are far from the module, by float's measure, at every size that is tried."""
    engine = ridgeline.build(mlp(), rows(8), dynamic_shapes=({0: "batch"},), precision="w8", **SILENT)
    (row,) = [check for check in engine.report.checks if check.name in (EXPORT, ENGINE)]
    assert row.name == EXPORT
    assert 0 < row.tolerance < 1e-4
    assert engine.inputs[0].dims == ("batch", 64)
    assert engine.run({"input": rows(1)})["output"].shape == (1, 32)  # the guards let one row through


@pytest.mark.parametrize("when", ["example", "other sizes"])
def test_a_wrong_export_is_refused_although_it_is_lowered(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = mlp()

    def wrong(exported: Exported) -> Exported:
        run = exported.sample.run

        def off(feeds: Any) -> dict[str, Tensor]:
            is_off = when == "example" or len(feeds["input"]) != 8
            return {name: made + 0.01 * is_off for name, made in run(feeds).items()}

        return replace(exported, sample=replace(exported.sample, run=off))

    def export(*given: Any) -> Exported:
        return wrong(export_module(module, (rows(8),), {}, dynamic_shapes=({0: "batch"},)))

    monkeypatch.setattr(builder, "export", export)
    with pytest.raises(VerifyError, match="the exported graph does not compute what the module computes"):
        ridgeline.build(module, rows(8), precision="fp16", **SILENT)


def test_data_of_any_batch_serves_calls_of_any_other() -> None:
    module, data = mlp(), rows(60)
    # the last batch has four rows, and an iterator can be gone through once
    compiled = ridgeline.compile(module, precision="w8", data=iter(data.split(8)), **UNVERIFIED)
    with torch.no_grad():
        for count in (5, 8):
            got, want = compiled(rows(count)), module(rows(count))
            assert (got - want).norm() <= 0.1 * want.norm()
    found = [engine.report.precision for engine in compiled.engines]
    assert [engine.inputs[0].dims for engine in compiled.engines] == [(5, 64), ("input.0", 64)]
    assert all(each is not None and each.samples > 1 for each in found)


def test_items_of_an_iterator_are_kept_for_every_build_and_copy() -> None:
    data = Replayed(iter(range(4)))
    first, second = iter(data), iter(data)
    assert [next(first), next(second), next(second), next(first), next(first)] == [0, 0, 1, 1, 2]
    assert list(deepcopy(data)) == list(data) == [0, 1, 2, 3]


def test_a_call_that_cannot_be_quantised_runs_in_float_with_a_warning() -> None:
    module, x = mlp(), rows(1)
    compiled = ridgeline.compile(module, precision="int8", data=rows(16).split(8), **UNVERIFIED)
    said = "int8 cannot be had for this call, which runs in fp32 instead: nothing in this model can be quanti"
    with torch.no_grad(), pytest.warns(RuntimeWarning, match=said):
        torch.testing.assert_close(compiled(x), module(x))
    (engine,) = compiled.engines
    assert any(said in line and "one row" in line for line in engine.report.warnings)
    with pytest.raises(PrecisionError, match="can be quantised"):  # nobody waits for a result here
        ridgeline.compile(module, x, precision="int8", data=rows(16).split(8), **UNVERIFIED)


def test_sizes_that_the_data_has_are_open_and_wrong_data_is_refused() -> None:
    module = seeded(nn.Sequential(nn.Linear(8, 16), nn.Flatten(0, 1), nn.Linear(16, 8)))
    data = [torch.randn(2, length, 8) for length in (3, 5, 4)]
    compiled = ridgeline.compile(module, precision="fp16", data=data, **UNVERIFIED)
    with torch.no_grad():
        compiled(torch.randn(2, 7, 8))
    assert compiled.engines[0].inputs[0].dims == ("input.0", "input.1", 8)
    wrong = ridgeline.compile(module, precision="fp16", data=[torch.randn(2, 3, 9)], **UNVERIFIED)
    with (
        torch.no_grad(),
        pytest.raises(OptionError, match=r"(?s)sample 0 has 'input'.*want  float32\[2,7,8\]"),
    ):
        wrong(torch.randn(2, 7, 8))


class Recurrent(nn.Module):
    """Each row depends on those before it, and the number of rows is fixed by the trace."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        states = [self.linear(x[0])]
        for i in range(1, len(x)):
            states.append(self.linear(x[i] + states[-1]))
        return torch.stack(states)


def test_a_later_call_that_the_data_does_not_fit_runs_in_float_with_a_warning() -> None:
    module = seeded(Recurrent())
    compiled = ridgeline.compile(module, precision="fp16", data=torch.randn(3, 3, 8), **UNVERIFIED)
    with torch.no_grad():
        compiled(torch.randn(3, 8))
        with pytest.warns(RuntimeWarning, match=r"fp16 cannot be had for this call.*another shape"):
            torch.testing.assert_close(compiled(x := torch.randn(2, 8)), module(x))


def test_a_module_is_quantised_and_what_was_made_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_export, "LARGE_BYTES", 16)  # its weights go through a folder
    module, x = mlp(), rows(8)
    made = ridgeline.quantize(module, x, data=rows(60).split(7))
    assert {port.shape.numpy() for port in made.model.graph.inputs} == {(8, 64)}
    assert made.judged_rows
    assert made.held_out
    engine = ridgeline.build(made, **UNVERIFIED)
    with torch.no_grad():
        got, want = engine.run({"input": x})["output"], module(x)
    assert 0 < (got - want).norm() <= 0.2 * want.norm()


def test_quantize_says_what_it_takes() -> None:
    with pytest.raises(InputError, match="a module needs example inputs"):
        ridgeline.quantize(mlp())
    with pytest.raises(ModelError, match=r"(?s)got   int.*help: a torch.nn.Module goes into"):
        ridgeline.quantize(5)
    with pytest.raises(OptionError, match="are for PyTorch modules"):
        ridgeline.quantize(b"", rows(1))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"precision": "fp16", "io": "fp16"}, "takes and gives the types of the module"),
        ({"precision": "int8", "data": 5}, "the data is no data set"),
        ({"precision": "int8", "data": "nowhere"}, "nowhere"),
    ],
)
def test_options_that_no_call_can_have_are_refused_at_once(given: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        ridgeline.compile(mlp(), **given)


def test_on_a_gpu_half_comes_before_the_module_s_own_types() -> None:
    asked = Options(target="cuda:sm_90", precision="int8", budget=0.1)
    half = _higher(asked)
    assert (half.precision, half.budget) == ("fp16", 0.1)
    assert _higher(half).precision == "typed"
    assert _higher(replace(asked, target="cpu")).precision == "typed"
