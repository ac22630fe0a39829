"""Ops that draw numbers. A seed gives the numbers that ONNX's own reference draws; without one they follow
torch's generator, so that `torch.manual_seed` repeats them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ridgeline.kernels.floor.dtypes import DTYPES
from ridgeline.kernels.floor.registry import floor

FLOAT, INT32 = 1, 6
Draw: TypeAlias = Callable[..., Tensor]


def _uniform(
    shape: Sequence[int],
    device: torch.device | None,
    *,
    low: float = 0.0,
    high: float = 1.0,
    seed: float | None = None,
) -> Tensor:
    """Numbers from [low, high)."""
    if seed is None:
        drawn = torch.rand(tuple(shape), dtype=torch.float64, device=device)
    else:
        drawn = torch.as_tensor(np.random.RandomState(int(seed)).uniform(0, 1, tuple(shape))).to(device)
    return low + (high - low) * drawn


def _normal(
    shape: Sequence[int],
    device: torch.device | None,
    *,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
) -> Tensor:
    """Numbers around `mean` with a standard deviation of `scale`."""
    if seed is None:
        drawn = torch.randn(tuple(shape), dtype=torch.float64, device=device)
    else:
        drawn = torch.as_tensor(np.random.RandomState(int(seed)).randn(*shape)).to(device)
    return mean + scale * drawn


def _of_shape(*, draw: Draw, shape: Sequence[int], dtype: int = FLOAT, **attrs: Any) -> Tensor:
    return draw(shape, None, **attrs).to(DTYPES[dtype])


def _like(x: Tensor, *, draw: Draw, dtype: int | None = None, **attrs: Any) -> Tensor:
    return draw(x.shape, x.device, **attrs).to(x.dtype if dtype is None else DTYPES[dtype])


_DRAWS: dict[str, Draw] = {"RandomUniform": _uniform, "RandomNormal": _normal}
for _key, _draw in _DRAWS.items():
    floor(_key)(partial(_of_shape, draw=_draw))
    floor(f"{_key}Like")(partial(_like, draw=_draw))


@floor("Bernoulli")
def bernoulli(x: Tensor, *, dtype: int | None = None, seed: float | None = None) -> Tensor:
    drawn = _uniform(x.shape, x.device, seed=seed) < x
    return drawn.to(x.dtype if dtype is None else DTYPES[dtype])


@floor("Multinomial")
def multinomial(x: Tensor, *, sample_size: int = 1, dtype: int = INT32, seed: float | None = None) -> Tensor:
    """Classes by their log-probabilities: the first whose running sum exceeds the draw."""
    chance = torch.softmax(x.double(), dim=-1).cumsum(dim=-1)
    drawn = _uniform((x.shape[0], sample_size), x.device, seed=seed)
    places = torch.searchsorted(chance, drawn, right=True)
    return places.clamp_max(x.shape[-1] - 1).to(DTYPES[dtype])


@floor("Dropout")
def dropout(
    x: Tensor,
    ratio: Tensor | None = None,
    training_mode: Tensor | None = None,
    *,
    seed: int | None = None,
    n_outputs: int = 1,
) -> tuple[Tensor, ...]:
    chance = 0.5 if ratio is None else float(ratio.item())
    if training_mode is None or not training_mode.item() or chance == 0:
        return (x,) if n_outputs == 1 else (x, torch.ones_like(x, dtype=torch.bool))
    mask = _uniform(x.shape, x.device, seed=seed) >= chance
    return torch.where(mask, x / (1 - chance), 0).to(x.dtype), mask
