"""Attention on the GPU through torch: flash, cuDNN, memory-efficient and plain SDPA, each a config.

Operands are strided views of the region's inputs; the backends copy only what they cannot address.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ridgeline.base.library_math import library_math
from ridgeline.base.spec import TF32, Site, Target
from ridgeline.errors import UnsupportedError, first_line
from ridgeline.tactics.base import Footprint, Offer, Tactic
from ridgeline.tactics.cpu.sdpa import is_blind
from ridgeline.tactics.predict import sdpa_us
from ridgeline.tactics.read.attention import Attend, AttentionSite, read_attention

# B batch, H heads, S queries, T keys, D head width

BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
HALF = ("float16", "bfloat16")


class CudaSdpa(Tactic):
    """y = softmax(scale · q kᵀ + mask) v by one of torch's backends."""

    name = "cuda.sdpa"
    runs_on = "cuda"

    def offer(self, site: Site) -> Offer:
        attention = read_attention(site)
        return Offer(
            [{"backend": name} for name in _backends(attention, site.target)],
            bind=lambda config, weights: attention.launch(_bind_attend(attention, str(config["backend"]))),
            footprint=lambda config: Footprint(writes_out=False),
            predict_us=lambda config, device: sdpa_us(
                site, str(config["backend"]), device, is_causal=attention.is_causal
            ),
        )


def _backends(attention: AttentionSite, target: Target) -> list[str]:
    """Those that may have a plan; what they still refuse, they say when called."""
    _, _, queries, keys = attention.scores
    # SDPA's triangle starts in the upper left corner; flash-style kernels begin it at the last key
    is_square = not attention.is_causal or queries == keys
    # flash and cuDNN have kernels of tiles alone
    is_half = attention.dtype in HALF and target.has_async_copies
    found = ["cudnn"] if is_half and is_square else []
    if is_half and is_square and not attention.mask_dtype and attention.width == attention.value_width:
        found.append("flash")
    return [*found, *(["efficient"] if attention.dtype != "float64" else []), "math"]


def _bind_attend(attention: AttentionSite, name: str) -> Attend:
    if not attention.mask_dtype:
        return _bind_backend(attention, name, is_causal=attention.is_causal)
    inner = _bind_backend(attention, name, is_causal=False)
    # SDPA takes a mask or the triangle, so the triangle joins the mask
    join = attention.bind_causal_mask() if attention.is_causal else None

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        assert mask is not None, "a site with a mask passes it"
        whole = mask if join is None else join(mask)
        # a query that may see no key gets zeros, where some backends give NaN
        y: Tensor = inner(q, k, v, whole)
        return y.masked_fill_(is_blind(whole), 0.0)

    return attend


def _bind_backend(attention: AttentionSite, name: str, *, is_causal: bool) -> Attend:
    backend, scale, is_grouped = BACKENDS[name], attention.scale, attention.groups > 1
    rounds = attention.math == TF32

    def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        with sdpa_kernel(backend), library_math(rounds=rounds):
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=is_grouped
            )

    has_plan = False

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        nonlocal has_plan
        if not has_plan:
            _require_plan(sdpa, name, q, k, v, mask)
            has_plan = True
        return sdpa(q, k, v, mask)

    return attend


def _require_plan(sdpa: Attend, name: str, *operands: Any) -> None:
    """Raise with torch's reasons: it says them in warnings, and only "no available kernel" as the error."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            sdpa(*operands)
        except RuntimeError as error:
            texts = [first_line(w.message) for w in said if isinstance(w.message, Warning)]
            # a headline names each backend; the reason is the next warning
            reasons = [text for text in texts if "not used because" not in text] or [first_line(error)]
            raise UnsupportedError(f"torch's {name} attention: {'; '.join(reasons)}") from error
