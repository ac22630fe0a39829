"""Products and contractions of matrices: MatMul, Gemm, Einsum, determinants."""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.kernels.floor.integers import through_int64
from ridgeline.kernels.floor.registry import floor, into, placed

_matmul = through_int64(torch.matmul)
floor("MatMul", out=into(_matmul))(_matmul)


@floor("Gemm")
@through_int64
def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    out: Tensor | None = None,
) -> Tensor:
    left, right = a.T if transA else a, b.T if transB else b
    if not a.dtype.is_floating_point:
        product = _scaled(torch.mm(left, right), alpha)
        return placed((product if c is None else product + _scaled(c, beta)).to(a.dtype), out)
    if c is None or beta == 0:
        product = torch.mm(left, right, out=out)
        return product if alpha == 1 else product.mul_(alpha)
    return torch.addmm(c, left, right, beta=beta, alpha=alpha, out=out)


def _scaled(x: Tensor, factor: float) -> Tensor:
    """Times a float; as it is for 1, since not every integer is one."""
    return x if factor == 1 else x * factor


@floor("Einsum")
def einsum(*inputs: Tensor, equation: str) -> Tensor:
    # sums of small integers come back as int64
    return torch.einsum(equation, *inputs).to(inputs[0].dtype)


floor("Det")(torch.det)
