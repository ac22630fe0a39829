"""Pointwise ops with the 1x1 convolutions behind them, for `kernels_gpu`: one kernel against our two."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from bench.kernel_cases import Case, conv
from bench.pair_cases import BETWEEN, OPERAND_ERROR, PairCase, peers_of
from ridgeline.base.spec import Op
from ridgeline.tactics.cuda.triton_codegen import TritonPointwise
from ridgeline.tactics.cuda.triton_conv import TritonConv1x1

SCALE = (Op("Mul", ("x", "s"), (BETWEEN,)),)  # a number for every image and channel
ACTIVATE = (Op("Mul", ("x", "g"), ("u",)), Op("Add", ("u", "t"), ("v",)), Op("Relu", ("v",), (BETWEEN,)))


def _constants(images: int, channels: int, *, is_scaled: bool) -> dict[str, np.ndarray]:
    """None of them negative, so that magnitudes of x give magnitudes of what is between."""
    shapes = {"s": (images, channels, 1, 1)} if is_scaled else dict.fromkeys("gt", (1, channels, 1, 1))
    made = {name: np.random.default_rng(ord(name)).random(shape) for name, shape in shapes.items()}
    return {name: array.astype(np.float16) for name, array in made.items()}


def _before(
    name: str, batch: int, channels: int, columns: int, size: int, *, is_scaled: bool = True
) -> PairCase:
    product = conv(batch, channels, columns, 1, 1, size, name=f"{name} b{batch}")
    held = partial(_constants, batch, channels, is_scaled=is_scaled)
    made = PairCase(
        f"{product.name} {'scaled' if is_scaled else 'activated'}",
        product.ops, product.shapes, {}, product.exact, product.flops, channels, product.follows,
        product.last, operand_error=OPERAND_ERROR, product=product, first=SCALE if is_scaled else ACTIVATE,
        held=held, tactics=(TritonPointwise(), TritonConv1x1()),
    )  # fmt: skip

    def apply(x: Tensor) -> Tensor:
        known = {n: torch.from_numpy(a).to(x.device, x.dtype) for n, a in held().items()}
        return x * known["s"] if is_scaled else torch.relu(x * known["g"] + known["t"])

    return replace(
        made,
        peers=peers_of(made, "ops", apply),
        exact=lambda x, w, b: product.exact(apply(x), w, b),
    )


def prologue_cases() -> list[Case]:
    """Of EfficientNet-B0, RegNetY-800MF and MobileNetV3, and of a pre-activation network."""
    scaled = (
        ("effnet", 16, 32, 16, 112), ("effnet", 16, 96, 24, 56), ("effnet", 16, 144, 40, 28),
        ("effnet", 16, 480, 80, 14), ("effnet", 16, 672, 112, 14), ("effnet", 16, 1152, 192, 7),
        ("effnet", 1, 96, 24, 56), ("effnet", 1, 672, 112, 14), ("effnet", 1, 1152, 320, 7),
        ("regnet_y", 16, 64, 64, 56), ("regnet_y", 16, 144, 144, 28), ("regnet_y", 16, 320, 320, 14),
        ("mobilenet_v3", 32, 120, 40, 28),
    )  # fmt: skip
    activated = (("resnet_v2", 16, 256, 128, 28), ("resnet_v2", 16, 1024, 256, 14))
    return [
        *(_before(*shape) for shape in scaled),
        *(_before(*shape, is_scaled=False) for shape in activated),
    ]
