"""Pairs of regions that one kernel runs, for `kernels_gpu`: our two kernels apart are among the peers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.kernel_cases import Case
from ridgeline.base.spec import Body, Op, Site, Target, TensorSpec
from ridgeline.kernels.triton.source import Kernel
from ridgeline.tactics.base import Offer, Tactic
from ridgeline.tactics.offer import require_offer

# of each of the two kernels, the first so many that are offered, in every combination
FIRSTS_TRIED, PRODUCTS_TRIED = 2, 4
# what is between is rounded to half before the product, or the weight with a norm's scale in it; roundings of
# hundreds of terms go either way, and an eighth of the worst is eight times what they add up to
OPERAND_ERROR = 2.0**-13
BETWEEN = "n"


@dataclass(frozen=True)
class PairCase(Case):
    """`product` reads what `first` makes of x and of constants; `is_shared`: that is an output too."""

    product: Case = field(kw_only=True)
    first: tuple[Op, ...] = field(kw_only=True)
    held: Callable[[], dict[str, np.ndarray]] = field(kw_only=True)  # makes the constants
    tactics: tuple[Tactic, Tactic] = field(kw_only=True)  # that run the two apart
    is_shared: bool = field(default=False, kw_only=True)

    def site(self, target: Target) -> Site:
        alone, before = self.product.site(target), self.first_site(target)
        one, *rest = alone.body.ops
        ops = (*self.first, replace(one, inputs=(BETWEEN, *one.inputs[1:])), *rest)
        outputs = (BETWEEN, "y") if self.is_shared else ("y",)
        body = Body(alone.body.inputs, outputs, ops, before.body.constants)
        specs = {**before.specs, **alone.specs}
        return Site(body, specs, alone.weights, {}, target, name=self.name)

    def first_site(self, target: Target) -> Site:
        spec = self.product.site(target).specs["x"]
        constants = self.held()
        made = {name: spec for op in self.first for name in op.outputs}
        given = {name: TensorSpec("float16", array.shape) for name, array in constants.items()}
        body = Body(("x",), (BETWEEN,), self.first, constants)
        return Site(body, {"x": spec, **made, **given}, frozenset(), {}, target)

    def apart(self, target: Target) -> tuple[Offer, Offer]:
        """What comes first, and our product."""
        first, second = self.tactics
        product = self.product.site(target)
        return require_offer(first, self.first_site(target)), require_offer(second, product)

    def peer_kernels(self, target: Target) -> list[Kernel]:
        first, product = self.apart(target)
        configs = [(first, c) for c in first.configs[:FIRSTS_TRIED]]
        configs += [(product, c) for c in product.configs[:PRODUCTS_TRIED]]
        return [kernel for offer, config in configs for kernel in offer.kernels(config)]


class Apart:
    """Our two kernels as two launches, at these places among what is offered."""

    def __init__(self, case: PairCase, first: int, product: int) -> None:
        self._case, self._first, self._product = case, first, product
        self._calls: dict[int, Callable[[], object]] = {}
        self._kept: list[Tensor] = []

    def __call__(self, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        if not self._calls:
            spec = self._case.product.site(Target("cuda", "sm_90")).specs["y"]
            y = torch.empty_strided(spec.shape, spec.strides, dtype=x.dtype, device=x.device)
            self._kept = [torch.empty_like(x), y]
        if id(w) not in self._calls:
            self._calls[id(w)] = self._bound(x, w, b)
        self._calls[id(w)]()
        return self._kept[1]

    def _bound(self, x: Tensor, w: Tensor, b: Tensor) -> Callable[[], object]:
        target = Target("cuda", "sm_{}{}".format(*torch.cuda.get_device_capability()))
        between, y = self._kept
        one, two = self._case.apart(target)
        first = one.bind(one.configs[min(self._first, len(one.configs) - 1)], {})
        second = two.bind(two.configs[min(self._product, len(two.configs) - 1)], {"w": w, "b": b})
        calls = first.frozen([x], [between]), second.frozen([between, w, b], [y])
        return partial(_both, *calls)


def _both(first: Callable[[], object], second: Callable[[], object]) -> None:
    first()
    second()


def peers_of(case: PairCase, what: str, apply: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """Our two kernels in every combination, and PyTorch with the library for the product."""
    library = next(iter(case.product.peers.values()))
    peers: dict[str, Any] = {
        f"{what} {one}, product {two}": Apart(case, one, two)
        for one in range(FIRSTS_TRIED)
        for two in range(PRODUCTS_TRIED)
    }
    peers["torch, library"] = lambda x, w, b: library(apply(x), w, b)
    return peers
