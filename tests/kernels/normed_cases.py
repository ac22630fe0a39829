"""Spans of a norm and the product behind it, as sites."""

from __future__ import annotations

from typing import Any

import torch
from product_cases import GPU, op, random
from torch import Tensor

from ridgeline.base.spec import Body, Site, Target, TensorSpec

LAYER, RMS = "LayerNormalization", "RMSNormalization"


def span(
    rows: int, columns: int, depth: int, dtype: torch.dtype = torch.float16, *, norm: str = LAYER,
    follows: str = "", is_shared: bool = False, target: Target = GPU, **attrs: Any,
) -> tuple[Site, dict[str, Tensor]]:  # fmt: skip
    """n = norm(x), y = follows(n · w + c); `is_shared`: n is an output as well, the first one."""
    shapes = {"x": (rows, depth), "g": (depth,), "b": (depth,), "w": (depth, columns), "c": (columns,)}
    shapes |= {"r": (rows, columns)} if follows == "Add" else {}
    if norm == RMS:
        del shapes["b"]
    ops = [
        op(norm, "x g b" if norm == LAYER else "x g", "n", epsilon=1e-5, **attrs),
        op("MatMul", "n w", "p"),
        op("Add", "p c", "q" if follows else "y"),
    ]
    if follows:
        ops.append(op(follows, "q r" if follows == "Add" else "q", "y"))
    tensors = {name: random(*shape, dtype=dtype) for name, shape in shapes.items()}
    tensors["w"] = (tensors["w"].double() * depth**-0.5).to(dtype)
    kind = str(dtype).removeprefix("torch.")
    made = {"n": (rows, depth)} | dict.fromkeys(("p", "q", "y"), (rows, columns))
    specs = {name: TensorSpec(kind, shape) for name, shape in (shapes | made).items()}
    body = Body(tuple(shapes), ("n", "y") if is_shared else ("y",), tuple(ops))
    return Site(body, specs, frozenset(shapes) - {"x", "r"}, {}, target), tensors
