"""Norms in types that ONNX's ops do not take: half values by float32 weights, and double."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import ridgeline


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.rows = nn.ModuleList([nn.LayerNorm(8), nn.LayerNorm(8, bias=False), nn.RMSNorm(8, eps=1e-6)])
        self.channels = nn.ModuleList(
            [nn.GroupNorm(2, 8), nn.BatchNorm1d(8), nn.InstanceNorm1d(8, affine=True)]
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        rows = self.linear(x)
        image = torch.stack([rows, 2 * rows, rows * rows], -1)
        return [*(norm(rows) for norm in self.rows), *(norm(image) for norm in self.channels)]


class Autocast(nn.Module):
    def __init__(self, half: torch.dtype) -> None:
        super().__init__()
        self.norms, self.half = Norms(), half

    def forward(self, x: Tensor) -> list[Tensor]:
        with torch.autocast("cpu", dtype=self.half):
            return self.norms(x)


def drawn(module: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for parameter in module.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return module.eval()


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_autocast_keeps_the_weights_of_norms_in_float32(half: torch.dtype) -> None:
    engine = ridgeline.build(drawn(Autocast(half)), torch.randn(4, 8), level=0, progress=False)
    assert engine.report.verified
    assert {port.dtype for port in engine.outputs} == {str(half).removeprefix("torch.")}


def test_norms_in_double_hold_their_epsilon_in_double() -> None:
    """As an attribute it would be a float32, and results off by 1e-13."""
    x = torch.randn(4, 8, dtype=torch.float64)
    assert ridgeline.build(drawn(Norms().double()), x, level=0, progress=False).report.verified
