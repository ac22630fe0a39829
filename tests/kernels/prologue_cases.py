"""Spans of pointwise ops and the product behind them, as sites, and what they mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from product_cases import GPU, MEANING, make_site, op, random
from torch import Tensor

from ridgeline.base.spec import EPSILON, Op, Site, Target

HALF = torch.float16
SCALED = (op("Mul", "x s", "z"),)  # as squeeze and excitation have it: a number per image and channel
NORMED = (op("Mul", "x g", "u"), op("Add", "u t", "v"), op("Relu", "v", "z"))  # before a pre-activation block
GATED = (op("Sigmoid", "x", "u"), op("Mul", "x u", "v"), op("Mul", "v o", "z"))  # as a decoder's MLP
HARD = (op("HardSwish", "x", "u"), op("Div", "u d", "z"))
BEFORE = {"scaled": SCALED, "normed": NORMED, "gated": GATED, "hard": HARD}
CHANNELS_LAST = "x o u v z p y r"


def convolution(
    before: Sequence[Op], sizes: tuple[int, int, int, int, int], dtype: torch.dtype = HALF, *,
    follows: bool = False, target: Target = GPU,
) -> tuple[Site, dict[str, Tensor]]:  # fmt: skip
    """y = before(x) * w + b (+ r), of (images, height, width, channels, columns)."""
    images, height, width, depth, columns = sizes
    per_channel = (1, depth, 1, 1)
    whole = (images, depth, height, width)
    shapes = {"x": whole, "s": (images, depth, 1, 1), "o": whole}
    shapes |= {"g": per_channel, "t": (depth, 1, 1), "d": per_channel}
    shapes |= {"w": (columns, depth, 1, 1), "b": (columns,), "r": (images, columns, height, width)}
    ops = [*before, op("Conv", "z w b", "p" if follows else "y")]
    ops += [op("Add", "p r", "y")] if follows else []
    return _span(ops, shapes, dtype, depth, target)


def product(
    before: Sequence[Op], sizes: tuple[int, int, int], dtype: torch.dtype = HALF, *, target: Target = GPU
) -> tuple[Site, dict[str, Tensor]]:
    """y = before(x) · w + b, of (rows, depth, columns)."""
    rows, depth, columns = sizes
    shapes = {"x": (rows, depth), "s": (rows, 1), "o": (rows, depth)} | dict.fromkeys("gtd", (depth,))
    shapes |= {"w": (depth, columns), "b": (columns,)}
    ops = [*before, op("MatMul", "z w", "p"), op("Add", "p b", "y")]
    return _span(ops, shapes, dtype, depth, target)


def _span(
    ops: Sequence[Op], shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, depth: int, target: Target
) -> tuple[Site, dict[str, Tensor]]:
    read = {name for each in ops for name in each.inputs}
    tensors = {name: random(*shape, dtype=dtype) for name, shape in shapes.items() if name in read}
    tensors["w"] = (tensors["w"].double() * depth**-0.5).to(dtype)
    if "d" in tensors:
        tensors["d"] = (tensors["d"].double().abs() + 0.5).to(dtype)
    is_image = len(shapes["x"]) == 4
    site, _ = make_site(
        tensors, ops, weights=" ".join(read & set("gtdwb")), channels_last=CHANNELS_LAST if is_image else "",
        target=target,
    )  # fmt: skip
    return site, tensors


def between(site: Site, tensors: Mapping[str, Tensor]) -> Tensor:
    """What the product multiplies: computed in float32, rounded once."""
    values = {name: tensor.float() for name, tensor in tensors.items()}
    for node in site.body.ops:
        if node.op_type in ("Conv", "MatMul"):
            break
        values[node.outputs[0]] = MEANING[node.op_type](*(values[n] for n in node.inputs), **node.attrs)
    return values["z"].to(tensors["x"].dtype)


def alone(site: Site) -> Site:
    """The product by itself, of a given z."""
    ops = tuple(node for node in site.body.ops if not {"z", "u", "v"}.intersection(node.outputs))
    read = {name for node in ops for name in node.inputs}
    inputs = ("z", *(name for name in site.body.inputs if name in read))
    return replace(site, body=replace(site.body, inputs=inputs, ops=ops), weights=site.weights & read)


def meant(site: Site, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The outputs in float64 of that z, and the sum of the magnitudes of their terms."""
    z = between(site, tensors).double()
    made = []
    for sign in (lambda t: t, torch.abs):
        values = {name: sign(tensor.double()) for name, tensor in tensors.items()} | {"z": sign(z)}
        for node in alone(site).body.ops:
            values[node.outputs[0]] = MEANING[node.op_type](*(values[n] for n in node.inputs), **node.attrs)
        made.append(values["y"])
    return made[0], made[1]


def rounding_of(dtype: torch.dtype) -> float:
    return EPSILON[str(dtype).removeprefix("torch.")]
