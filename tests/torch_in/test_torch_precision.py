"""Modules in lower precision: what the export is held to, and data of any batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_modules import QUICK, seeded

import ridgeline
from ridgeline import builder
from ridgeline.errors import VerifyError
from ridgeline.frontend.from_torch import Exported, export_module
from ridgeline.verify.module import ENGINE, EXPORT

SILENT: dict[str, Any] = {**QUICK, "progress": False}


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
