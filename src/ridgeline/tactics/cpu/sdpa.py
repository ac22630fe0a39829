"""Attention through torch: the fused operators of SDPA on strided views, and two products around a softmax.

Transposes and reshapes around the Attention op become views. Regions with a key-value cache are refused.
"""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ridgeline.base.spec import Site
from ridgeline.tactics.base import Offer, Refused, Tactic
from ridgeline.tactics.read.attention import Attend, AttentionSite, read_attention

# B batch, H heads, S queries, T keys, D head width


class Sdpa(Tactic):
    """y = softmax(scale * q @ kᵀ + mask) @ v by torch's fused operator."""

    name = "aten.sdpa"
    runs_on = "cpu"

    def offer(self, site: Site) -> Offer:
        attention = read_attention(site)
        kernels = ["auto"]
        # called directly, torch's operators take no grouped heads and add a bool mask as zeros and ones
        if attention.groups == 1 and attention.mask_dtype != "bool":
            kernels += ["flash", "math"] if attention.width == attention.value_width else ["math"]
        return Offer(
            [{"kernel": name} for name in kernels],
            lambda config, weights: attention.launch(_bind_attend(attention, str(config["kernel"]))),
        )


def _bind_attend(attention: AttentionSite, kernel: str) -> Attend:
    bind = partial(_bind_kernel, kernel, scale=attention.scale, is_grouped=attention.groups > 1)
    is_causal = attention.is_causal
    if not attention.mask_dtype and kernel != "math":
        # without a mask torch takes a row of NaN scores for one that sees no key, and gives zeros
        inner = bind(is_causal=is_causal and kernel == "flash")
        if is_causal and kernel != "flash":
            mask = attention.causal_bias()
        else:
            mask = torch.zeros(1, 1, dtype=getattr(torch, attention.dtype)).expand(attention.scores[2:])
        return lambda q, k, v, _: inner(q, k, v, mask)
    if attention.mask_dtype and is_causal:
        # SDPA takes one or the other, so the triangle joins the mask
        inner = bind(is_causal=False)
        join = attention.bind_causal_mask()
        return lambda q, k, v, mask: inner(q, k, v, None if mask is None else join(mask))
    return bind(is_causal=is_causal)


def _bind_kernel(kernel: str, *, scale: float, is_causal: bool, is_grouped: bool) -> Attend:
    if kernel == "flash":
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        return lambda q, k, v, mask: flash(q, k, v, 0.0, is_causal, attn_mask=mask, scale=scale)[0]
    if kernel == "math":
        plain = torch.ops.aten._scaled_dot_product_attention_math.default
        return lambda q, k, v, mask: plain(q, k, v, mask, 0.0, is_causal, None, scale=scale)[0]
    attend = F.scaled_dot_product_attention
    return lambda q, k, v, mask: attend(
        q, k, v, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=is_grouped
    )


def is_blind(mask: Tensor) -> Tensor:
    """[..., S or 1, 1]: the queries to which every key is masked. Attention gives zeros there."""
    is_masked = ~mask if mask.dtype == torch.bool else mask == -math.inf
    return is_masked.all(-1, keepdim=True)


class AttentionBmm(Tactic):
    """y = softmax(scale * q @ kᵀ + mask) @ v as two batched products around a softmax."""

    name = "aten.attention"
    runs_on = "cpu"

    def offer(self, site: Site) -> Offer | Refused:
        attention = read_attention(site)
        if attention.groups > 1:
            return Refused(f"{attention.groups} query heads share one key head")
        if attention.mask_dtype == "bool":
            return Refused("the mask is bool, not added")
        return Offer(({},), lambda config, weights: attention.launch(_bind_bmm(attention)))


def _bind_bmm(attention: AttentionSite) -> Attend:
    scale, width = attention.scale, attention.value_width
    batch, heads, queries, keys = attention.scores
    bias = attention.causal_bias() if attention.is_causal else None

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        # on AVX-512, 12 heads of 128x64: MKL's batched product takes 1.6x as long on a transposed view
        kt = k.transpose(2, 3).contiguous().flatten(0, 1)
        scores = q.new_empty((batch * heads, queries, keys))
        torch.baddbmm(scores, q.flatten(0, 1), kt, beta=0, alpha=scale, out=scores)
        # as the product's addend a mask is broadcast over all heads first, so that saves no pass
        if mask is not None:
            scores.view(batch, heads, queries, keys).add_(mask)
        if bias is not None:
            scores.add_(bias)
        torch.softmax(scores, -1, out=scores)
        y = torch.bmm(scores, v.flatten(0, 1))
        y = y.view(batch, heads, queries, width)
        if mask is not None:
            y.masked_fill_(is_blind(mask if bias is None else mask + bias), 0.0)
        return y

    return attend
