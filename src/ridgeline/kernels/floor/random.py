"""Ops that draw numbers. A seed gives the numbers that ONNX's own reference draws; without one they follow
torch's generator, so that `torch.manual_seed` repeats them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ridgeline.kernels.floor.dtypes import DTYPES
from ridgeline.kernels.floor.registry import floor

FLOAT, INT32 = 1, 6


def _uniform(shape: Sequence[int], seed: float | None, device: torch.device | None = None) -> Tensor:
    """Numbers from [0, 1)."""
    if seed is None:
        return torch.rand(tuple(shape), dtype=torch.float64, device=device)
    return torch.as_tensor(np.random.RandomState(int(seed)).uniform(0, 1, tuple(shape))).to(device)


def _normal(shape: Sequence[int], seed: float | None, device: torch.device | None = None) -> Tensor:
    """Numbers around 0 with variance 1."""
    if seed is None:
        return torch.randn(tuple(shape), dtype=torch.float64, device=device)
    return torch.as_tensor(np.random.RandomState(int(seed)).randn(*shape)).to(device)


@floor("RandomUniform")
def random_uniform(
    *,
    shape: Sequence[int],
    low: float = 0.0,
    high: float = 1.0,
    seed: float | None = None,
    dtype: int = FLOAT,
) -> Tensor:
    return (low + (high - low) * _uniform(shape, seed)).to(DTYPES[dtype])


@floor("RandomUniformLike")
def random_uniform_like(
    x: Tensor, *, low: float = 0.0, high: float = 1.0, seed: float | None = None, dtype: int | None = None
) -> Tensor:
    drawn = low + (high - low) * _uniform(x.shape, seed, x.device)
    return drawn.to(x.dtype if dtype is None else DTYPES[dtype])


@floor("RandomNormal")
def random_normal(
    *,
    shape: Sequence[int],
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    dtype: int = FLOAT,
) -> Tensor:
    return (mean + scale * _normal(shape, seed)).to(DTYPES[dtype])


@floor("RandomNormalLike")
def random_normal_like(
    x: Tensor, *, mean: float = 0.0, scale: float = 1.0, seed: float | None = None, dtype: int | None = None
) -> Tensor:
    drawn = mean + scale * _normal(x.shape, seed, x.device)
    return drawn.to(x.dtype if dtype is None else DTYPES[dtype])


@floor("Bernoulli")
def bernoulli(x: Tensor, *, dtype: int | None = None, seed: float | None = None) -> Tensor:
    drawn = _uniform(x.shape, seed, x.device) < x
    return drawn.to(x.dtype if dtype is None else DTYPES[dtype])


@floor("Multinomial")
def multinomial(x: Tensor, *, sample_size: int = 1, dtype: int = INT32, seed: float | None = None) -> Tensor:
    """Classes by their log-probabilities: the first whose running sum exceeds the draw."""
    chance = torch.softmax(x.double(), dim=-1).cumsum(dim=-1)
    drawn = _uniform((x.shape[0], sample_size), seed, x.device)
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
    mask = _uniform(x.shape, seed, x.device) >= chance
    return torch.where(mask, x / (1 - chance), 0).to(x.dtype), mask
