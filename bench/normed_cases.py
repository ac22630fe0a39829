"""Norms with the products behind them, for `kernels_gpu`: one kernel against our two, and PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bench.kernel_cases import Case, linear
from ridgeline.base.spec import Body, Op, Site, Target, TensorSpec
from ridgeline.kernels.triton.source import Kernel
from ridgeline.tactics.base import Offer
from ridgeline.tactics.cuda.triton_codegen import TritonRows
from ridgeline.tactics.cuda.triton_linear import TritonGemm
from ridgeline.tactics.offer import require_offer

EPSILON = 1e-5
# of each of the two kernels, the first so many that are offered, in every combination
ROWS_TRIED, PRODUCTS_TRIED = 2, 4
# normed rows are rounded to half before the product, or the weight with the norm's scale in it; roundings of
# hundreds of terms go either way, and an eighth of the worst is eight times what they add up to
OPERAND_ERROR = 2.0**-13


@dataclass(frozen=True)
class NormedCase(Case):
    """`product` reads the norm of x; `is_shared`: the normed rows are an output too, as in BERT."""

    product: Case = field(kw_only=True)
    norm: str = field(kw_only=True)
    is_shared: bool = field(kw_only=True)

    @property
    def norm_op(self) -> Op:
        given = ("x", "g", "t") if self.norm == "LayerNormalization" else ("x", "g")
        return Op(self.norm, given, ("n",), {"epsilon": EPSILON})

    @property
    def constants(self) -> dict[str, np.ndarray]:
        one, two = (np.random.default_rng(seed).standard_normal(self.shapes["x"][1]) for seed in (1, 2))
        made = {"g": 1 + 0.1 * one, "t": 0.1 * two}
        return {name: made[name].astype(np.float16) for name in self.norm_op.inputs[1:]}

    def site(self, target: Target) -> Site:
        alone = self.product.site(target)
        first, *rest = alone.body.ops
        ops = (self.norm_op, replace(first, inputs=("n", *first.inputs[1:])), *rest)
        outputs = ("n", "y") if self.is_shared else ("y",)
        body = Body(alone.body.inputs, outputs, ops, self.constants)
        return replace(alone, body=body, specs={**alone.specs, "n": alone.specs["x"]}, name=self.name)

    def norm_site(self, target: Target) -> Site:
        spec = TensorSpec("float16", self.shapes["x"])
        body = Body(("x",), ("n",), (self.norm_op,), self.constants)
        return Site(body, {"x": spec, "n": spec}, frozenset(), {}, target)

    def apart(self, target: Target) -> tuple[Offer, Offer]:
        """Our norm, and our product."""
        return (
            require_offer(TritonRows(), self.norm_site(target)),
            require_offer(TritonGemm(), self.product.site(target)),
        )

    def peer_kernels(self, target: Target) -> list[Kernel]:
        norm, product = self.apart(target)
        configs = [(norm, c) for c in norm.configs[:ROWS_TRIED]]
        configs += [(product, c) for c in product.configs[:PRODUCTS_TRIED]]
        return [kernel for offer, config in configs for kernel in offer.kernels(config)]


class Apart:
    """Our norm and our product as two launches, at these places among what is offered."""

    def __init__(self, case: NormedCase, rows: int, product: int) -> None:
        self._case, self._rows, self._product = case, rows, product
        self._calls: dict[int, Callable[[], object]] = {}
        self._kept: list[Tensor] = []

    def __call__(self, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        if not self._calls:
            self._kept = [torch.empty_like(x), x.new_empty(self._case.shapes["y"])]
        if id(w) not in self._calls:
            self._calls[id(w)] = self._bound(x, w, b)
        self._calls[id(w)]()
        return self._kept[1]

    def _bound(self, x: Tensor, w: Tensor, b: Tensor) -> Callable[[], object]:
        target = Target("cuda", "sm_{}{}".format(*torch.cuda.get_device_capability()))
        normed, y = self._kept
        norm, product = self._case.apart(target)
        first = norm.bind(norm.configs[min(self._rows, len(norm.configs) - 1)], {})
        second = product.bind(product.configs[min(self._product, len(product.configs) - 1)], {"w": w, "b": b})
        calls = first.frozen([x], [normed]), second.frozen([normed, w, b], [y])
        return partial(_both, *calls)


def _both(first: Callable[[], object], second: Callable[[], object]) -> None:
    first()
    second()


def normed(
    name: str, rows: int, columns: int, depth: int, *, gelu: bool = False, is_shared: bool = False,
    norm: str = "LayerNormalization",
) -> NormedCase:  # fmt: skip
    product = linear(name, rows, columns, depth, gelu=gelu)
    made = NormedCase(
        f"{product.name} {'rms' if norm.startswith('RMS') else 'layer'}{' shared' if is_shared else ''}",
        product.ops, product.shapes, {}, product.exact, product.flops, depth, product.follows,
        operand_error=OPERAND_ERROR, product=product, norm=norm, is_shared=is_shared,
    )  # fmt: skip

    def apply(x: Tensor) -> Tensor:
        held = {n: torch.from_numpy(a).to(x.device, x.dtype) for n, a in made.constants.items()}
        if norm.startswith("RMS"):
            return F.rms_norm(x, (depth,), held["g"], EPSILON)
        return F.layer_norm(x, (depth,), held["g"], held["t"], EPSILON)

    # magnitudes are of the normed rows, whatever the sign of x
    def exact(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        is_magnitude = bool((w >= 0).all() & (x >= 0).all())
        rows_of_x = 4 * torch.ones_like(x) if is_magnitude else apply(x)
        return rows_of_x @ w + b

    (library,) = product.peers.values()
    peers: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
        f"norm {r}, product {p}": Apart(made, r, p) for r in range(ROWS_TRIED) for p in range(PRODUCTS_TRIED)
    }
    peers["torch, cublas"] = lambda x, w, b: library(apply(x), w, b)
    return replace(made, peers=peers, exact=exact)


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
