"""Signals: discrete Fourier transforms, windows and mel filters. Complex numbers are a last axis of two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ridgeline.kernels.floor.dtypes import DTYPES, widened
from ridgeline.kernels.floor.registry import floor


def _complex(x: Tensor) -> Tensor:
    wide = widened(x)
    return wide.squeeze(-1) if x.shape[-1] == 1 else torch.view_as_complex(wide.contiguous())


def _pairs(x: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.view_as_real(x.resolve_conj()).to(dtype) if x.is_complex() else x.unsqueeze(-1).to(dtype)


@floor("DFT")
def dft(
    x: Tensor,
    dft_length: Tensor | None = None,
    axis: Tensor | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> Tensor:
    along = (-2 if axis is None else int(axis.item())) % x.ndim
    length = None if dft_length is None else int(dft_length.item())
    signal = _complex(x)
    if inverse and onesided:
        return _pairs(torch.fft.irfft(signal, length, along), x.dtype)
    if inverse:
        return _pairs(torch.fft.ifft(signal, length, along), x.dtype)
    if onesided and not signal.is_complex():
        return _pairs(torch.fft.rfft(signal, length, along), x.dtype)
    full = torch.fft.fft(signal, length, along)
    return _pairs(full.narrow(along, 0, full.shape[along] // 2 + 1) if onesided else full, x.dtype)


@floor("STFT")
def stft(
    x: Tensor,
    frame_step: Tensor,
    window: Tensor | None = None,
    frame_length: Tensor | None = None,
    *,
    onesided: int = 1,
) -> Tensor:
    signal = _complex(x) if x.ndim == 3 else widened(x)  # [batch, samples]
    if frame_length is not None:
        length = int(frame_length.item())
    else:
        length = signal.shape[1] if window is None else window.shape[0]
    frames = signal.unfold(1, length, int(frame_step.item()))  # [batch, frames, length]
    if window is not None:
        frames = frames * F.pad(window, (0, length - window.shape[0])).to(frames.real.dtype)
    if onesided and not frames.is_complex():
        return _pairs(torch.fft.rfft(frames), x.dtype)
    full = torch.fft.fft(frames)
    return _pairs(full[..., : length // 2 + 1] if onesided else full, x.dtype)


def _cosines(
    size: Tensor, *, weights: Sequence[float], output_datatype: int = 1, periodic: int = 1
) -> Tensor:
    """The sum of weights[k] * cos(2 pi k n / N), with N one less when the window is symmetric."""
    count = int(size.item())
    turn = torch.arange(count, dtype=torch.float64) * (2 * math.pi / max(count if periodic else count - 1, 1))
    total = torch.zeros_like(turn)
    for k, weight in enumerate(weights):
        total += weight * torch.cos(k * turn)
    return total.to(size.device, DTYPES[output_datatype])


floor("HannWindow")(partial(_cosines, weights=(0.5, -0.5)))
floor("HammingWindow")(partial(_cosines, weights=(25 / 46, -21 / 46)))
floor("BlackmanWindow")(partial(_cosines, weights=(0.42, -0.5, 0.08)))


@floor("MelWeightMatrix")
def mel_weight_matrix(
    num_mel_bins: Tensor,
    dft_length: Tensor,
    sample_rate: Tensor,
    lower_edge_hertz: Tensor,
    upper_edge_hertz: Tensor,
    *,
    output_datatype: int = 1,
) -> Tensor:
    n_bins, length, rate = (int(x.item()) for x in (num_mel_bins, dft_length, sample_rate))
    low, high = (2595 * math.log10(1 + x.item() / 700) for x in (lower_edge_hertz, upper_edge_hertz))
    mels = np.arange(n_bins + 2) * ((high - low) / (n_bins + 2)) + low
    hertz = 700 * (10 ** (mels / 2595) - 1)
    edges = ((length + 1) * hertz // rate).astype(np.int64)
    left, centre, right = (edges[i : i + n_bins][None, :] for i in range(3))
    at = np.arange(length // 2 + 1)[:, None]
    rising = np.where(centre == left, 1.0, (at - left) / np.maximum(centre - left, 1))
    falling = (right - at) / np.maximum(right - centre, 1)
    weights = np.where((at >= left) & (at <= centre), rising, 0.0)
    weights = np.where((at >= centre) & (at < right), falling, weights)
    return torch.from_numpy(weights).to(DTYPES[output_datatype])
