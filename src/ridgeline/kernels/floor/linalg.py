"""Products and contractions of matrices: MatMul, Gemm, Einsum, determinants."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ridgeline.kernels.floor.integers import through_int64
from ridgeline.kernels.floor.registry import floor

Outs = Sequence[Tensor]


def _matmul_out(a: Tensor, b: Tensor, *, out: Outs) -> None:
    torch.matmul(a, b, out=out[0])


@floor("MatMul", out=_matmul_out)
@through_int64
def matmul(a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a, b)


def _gemm_out(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    out: Outs,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> None:
    if not a.dtype.is_floating_point:
        out[0].copy_(gemm(a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB))
        return
    left, right = a.T if transA else a, b.T if transB else b
    if c is None or beta == 0:
        torch.mm(left, right, out=out[0])
        if alpha != 1:
            out[0].mul_(alpha)
    else:
        torch.addmm(c, left, right, beta=beta, alpha=alpha, out=out[0])


@floor("Gemm", out=_gemm_out)
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
) -> Tensor:
    left, right = a.T if transA else a, b.T if transB else b
    if not a.dtype.is_floating_point:
        product = _scaled(torch.mm(left, right), alpha)
        return (product if c is None else product + _scaled(c, beta)).to(a.dtype)
    if c is None or beta == 0:
        product = torch.mm(left, right)
        return product if alpha == 1 else product * alpha
    return torch.addmm(c, left, right, beta=beta, alpha=alpha)


def _scaled(x: Tensor, factor: float) -> Tensor:
    """Times a float; as it is for 1, since not every integer is one."""
    return x if factor == 1 else x * factor


@floor("Einsum")
def einsum(*inputs: Tensor, equation: str) -> Tensor:
    # sums of small integers come back as int64
    return torch.einsum(equation, *inputs).to(inputs[0].dtype)


@floor("Det")
def det(x: Tensor) -> Tensor:
    return torch.det(x)
