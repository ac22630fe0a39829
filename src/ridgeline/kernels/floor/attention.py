"""Attention and what goes with it: rotary positions, linear attention with a state, SwiGLU gates.

B batch, H heads, S queries, T keys, D head size.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ridgeline.kernels.floor.activation import swish
from ridgeline.kernels.floor.dtypes import DTYPES
from ridgeline.kernels.floor.registry import floor


def _heads(x: Tensor, count: int | None) -> Tensor:
    """[B, S, H * D] -> [B, H, S, D]; four axes stay as they are."""
    if x.ndim == 4:
        return x
    assert count, "three-axis Attention inputs need q_num_heads and kv_num_heads"
    return x.reshape(*x.shape[:2], count, -1).transpose(1, 2)


def _mask(
    mask: Tensor | None,
    *,
    n_queries: int,
    n_keys: int,
    offset: Tensor | int,
    is_causal: bool,
    left: int,
    right: int,
    n_valid_keys: Tensor | None,
    device: torch.device,
) -> Tensor | None:
    """Every constraint as one mask, boolean or additive; None when nothing is masked."""
    if mask is not None and mask.shape[-1] < n_keys:
        unseen = False if mask.dtype == torch.bool else -math.inf
        mask = F.pad(mask, (0, n_keys - mask.shape[-1]), value=unseen)
    allowed: Tensor | None = None
    keys = torch.arange(n_keys, device=device)
    if is_causal or left >= 0 or right >= 0:
        place = torch.arange(n_queries, device=device)[:, None] + offset  # [S, 1] or [B, 1, S, 1]
        allowed = torch.ones((), dtype=torch.bool, device=device)
        if is_causal:
            allowed = allowed & (keys <= place)
        if left >= 0:
            allowed = allowed & (place - keys <= left)
        if right >= 0:
            allowed = allowed & (keys - place <= right)
    if n_valid_keys is not None:
        valid = keys < n_valid_keys.reshape(-1, 1, 1, 1)
        allowed = valid if allowed is None else allowed & valid
    if mask is None or allowed is None:
        return mask if allowed is None else allowed
    return mask & allowed if mask.dtype == torch.bool else torch.where(allowed, mask, -math.inf)


def _broadcast_to(mask: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Broadcasts one query, or one row of the batch, to the rows that the mask has."""
    rows = mask.shape[-2] if mask.ndim > 1 and q.shape[2] == 1 else q.shape[2]
    batch = mask.shape[0] if mask.ndim == 4 and q.shape[0] == 1 else q.shape[0]
    if (batch, rows) == (q.shape[0], q.shape[2]):
        return q, k, v
    q = q.expand(batch, -1, rows, -1)
    return q, k.expand(batch, -1, -1, -1), v.expand(batch, -1, -1, -1)


@floor("Attention")
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    nonpad_kv_seqlen: Tensor | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
    n_outputs: int = 1,
) -> tuple[Tensor, ...]:
    has_flat_heads = q.ndim == 3
    q, k, v = _heads(q, q_num_heads), _heads(k, kv_num_heads), _heads(v, kv_num_heads)
    k = k if past_key is None else torch.cat([past_key, k], dim=2)
    v = v if past_value is None else torch.cat([past_value, v], dim=2)
    if attn_mask is not None:
        q, k, v = _broadcast_to(attn_mask, q, k, v)
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    n_past = 0 if past_key is None else past_key.shape[2]
    offset = n_past if nonpad_kv_seqlen is None else (nonpad_kv_seqlen - q.shape[2]).reshape(-1, 1, 1, 1)
    has_window = left_window_size >= 0 or right_window_size >= 0
    is_fused = n_outputs < 4 and not softcap
    # on the CPU, without a mask, torch treats a row of NaN scores as one whose keys are all masked
    needs_mask = q.is_cpu
    is_sdpa_causal = (
        bool(is_causal) and attn_mask is None and nonpad_kv_seqlen is None
        and not (n_past or has_window or needs_mask)
    )  # fmt: skip
    mask = _mask(
        attn_mask, n_queries=q.shape[2], n_keys=k.shape[2], offset=offset,
        is_causal=bool(is_causal) and not (is_sdpa_causal and is_fused), left=left_window_size,
        right=right_window_size, n_valid_keys=nonpad_kv_seqlen, device=q.device,
    )  # fmt: skip
    scores: Tensor | None = None
    if is_fused:
        if mask is None and needs_mask:
            mask = q.new_zeros(1, 1).expand(q.shape[2], k.shape[2])
        y = F.scaled_dot_product_attention(
            q, k, v, mask if mask is None or mask.dtype == torch.bool else mask.to(q.dtype),
            is_causal=is_sdpa_causal, scale=factor, enable_gqa=q.shape[1] != k.shape[1],
        )  # fmt: skip
        if mask is not None:
            # a query whose keys are all masked gets zeros, not the result of the softmax
            y = torch.where(_is_blind(mask), 0, y)
    else:
        y, scores = _plain_attention(
            q, k, v, mask, factor=factor, softcap=softcap, output_mode=qk_matmul_output_mode,
            precision=DTYPES[softmax_precision] if softmax_precision else torch.float32,
        )  # fmt: skip
    if has_flat_heads:
        y = y.transpose(1, 2).flatten(2)
    return (y, k, v) if scores is None else (y, k, v, scores)


def _is_blind(mask: Tensor) -> Tensor:
    """[..., S, 1]: the queries to which every key is masked."""
    is_masked = ~mask if mask.dtype == torch.bool else mask == -math.inf
    return is_masked.all(-1, keepdim=True)


def _plain_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    factor: float,
    softcap: float,
    output_mode: int,
    precision: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """The formula step by step, for the outputs and the cap that fused kernels do not offer."""
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    wide = torch.promote_types(precision, q.dtype)
    scores = torch.matmul(q.to(wide) * math.sqrt(factor), k.to(wide).transpose(2, 3) * math.sqrt(factor))
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    biased = scores
    if mask is not None:
        biased = torch.where(mask, scores, -math.inf) if mask.dtype == torch.bool else scores + mask
    weights = torch.softmax(biased, -1)
    if mask is not None:
        weights = torch.where(_is_blind(mask), 0, weights)
    shown = {2: biased, 3: weights}.get(output_mode, scores)
    return torch.matmul(weights.to(q.dtype), v), shown.to(q.dtype)


@floor("RotaryEmbedding")
def rotary_embedding(
    x: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    position_ids: Tensor | None = None,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Tensor:
    heads = x.transpose(1, 2) if x.ndim == 4 else x.reshape(*x.shape[:2], num_heads, -1)  # [B, S, H, D]
    width = rotary_embedding_dim or heads.shape[-1]
    if position_ids is not None:
        cos_cache, sin_cache = cos_cache[position_ids], sin_cache[position_ids]
    cos, sin = cos_cache.unsqueeze(-2), sin_cache.unsqueeze(-2)  # [B, S, 1, width / 2]
    turned, kept = heads[..., :width], heads[..., width:]
    a, b = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    pair = cos * a - sin * b, sin * a + cos * b
    turned = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    result = torch.cat([turned, kept], -1) if kept.shape[-1] else turned
    return result.transpose(1, 2) if x.ndim == 4 else result.flatten(2)


@floor("LinearAttention")
def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past_state: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    kv_num_heads: int,
    q_num_heads: int,
    chunk_size: int = 64,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
) -> tuple[Tensor, Tensor]:
    q, k, v = (
        _heads(x, n).float() for x, n in ((query, q_num_heads), (key, kv_num_heads), (value, kv_num_heads))
    )
    factor = scale or 1 / math.sqrt(q.shape[-1])
    fade = (
        None if decay is None else _heads(decay, kv_num_heads).float().exp().unsqueeze(-1)
    )  # [B, H, S, D, 1]
    rate = None if beta is None else _heads(beta, beta.shape[-1]).float()
    state = q.new_zeros(k.shape[0], k.shape[1], k.shape[-1], v.shape[-1])
    state = state if past_state is None else past_state.float()
    rows = []
    for step in range(q.shape[2]):
        if fade is not None:
            state = state * fade[:, :, step]
        update = v[:, :, step]
        if rate is not None:
            seen = torch.einsum("bhdm,bhd->bhm", state, k[:, :, step])
            update = rate[:, :, step] * (update - seen)
        state = state + k[:, :, step, :, None] * update[:, :, None, :]
        read = state.repeat_interleave(q_num_heads // kv_num_heads, 1)
        rows.append(factor * torch.einsum("bhd,bhdm->bhm", q[:, :, step], read))
    result = torch.stack(rows, 1).flatten(2)
    kept = query.dtype if past_state is None else past_state.dtype
    return result.to(query.dtype), state.to(kept)


@floor("SwiGLU")
def swiglu(a: Tensor, b: Tensor, *, alpha: float = 1.0) -> Tensor:
    return swish(a, alpha=alpha) * b
