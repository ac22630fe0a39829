"""Norms with the products behind them, for `kernels_gpu`: one kernel against our two, and PyTorch's."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bench.kernel_cases import Case, linear
from bench.pair_cases import BETWEEN, OPERAND_ERROR, PairCase, peers_of
from ridgeline.base.spec import Op
from ridgeline.tactics.cuda.triton_codegen import TritonRows
from ridgeline.tactics.cuda.triton_linear import TritonGemm

EPSILON = 1e-5


def _constants(depth: int, *, is_centred: bool) -> dict[str, np.ndarray]:
    one, two = (np.random.default_rng(seed).standard_normal(depth) for seed in (1, 2))
    made = {"g": 1 + 0.1 * one} | ({"t": 0.1 * two} if is_centred else {})
    return {name: array.astype(np.float16) for name, array in made.items()}


def normed(
    name: str, rows: int, columns: int, depth: int, *, gelu: bool = False, is_shared: bool = False,
    norm: str = "LayerNormalization",
) -> PairCase:  # fmt: skip
    product = linear(name, rows, columns, depth, gelu=gelu)
    is_centred = not norm.startswith("RMS")
    held = partial(_constants, depth, is_centred=is_centred)
    given = ("x", "g", "t") if is_centred else ("x", "g")
    op = Op(norm, given, (BETWEEN,), {"epsilon": EPSILON})
    made = PairCase(
        f"{product.name} {'layer' if is_centred else 'rms'}{' shared' if is_shared else ''}",
        product.ops, product.shapes, {}, product.exact, product.flops, depth, product.follows,
        operand_error=OPERAND_ERROR, product=product, first=(op,),
        held=held, tactics=(TritonRows(), TritonGemm()), is_shared=is_shared,
    )  # fmt: skip

    def apply(x: Tensor) -> Tensor:
        known = {n: torch.from_numpy(a).to(x.device, x.dtype) for n, a in held().items()}
        if not is_centred:
            return F.rms_norm(x, (depth,), known["g"], EPSILON)
        return F.layer_norm(x, (depth,), known["g"], known["t"], EPSILON)

    # magnitudes are of the normed rows, whatever the sign of x
    def exact(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        is_magnitude = bool((w >= 0).all() & (x >= 0).all())
        rows_of_x = 4 * torch.ones_like(x) if is_magnitude else apply(x)
        return rows_of_x @ w + b

    return replace(made, peers=peers_of(made, "norm", apply), exact=exact)


def normed_cases() -> list[Case]:
    """Of BERT-base, ViT-B and GPT-2 at batch 1, a larger ViT, and a decoder's prompt."""
    rms = "RMSNormalization"
    return [
        normed("bert qkv", 128, 2304, 768, is_shared=True),
        normed("bert up", 128, 3072, 768, gelu=True, is_shared=True),
        normed("vit qkv", 197, 2304, 768), normed("vit up", 197, 3072, 768, gelu=True),
        normed("gpt2 qkv", 128, 2304, 768), normed("gpt2 up", 128, 3072, 768, gelu=True),
        normed("vit-l qkv", 197, 3072, 1024), normed("bert qkv", 512, 2304, 768, is_shared=True),
        normed("llama qkv", 64, 3072, 2048, norm=rms), normed("llama qkv", 1, 3072, 2048, norm=rms),
    ]  # fmt: skip
