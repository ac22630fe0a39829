"""How a region around a matrix product with constant weights is read. Shared by the linear tactics."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Site
from ridgeline.tactics.read.epilogue import AnchorSite, Binary, is_constant, read_operands, split_epilogue

# M rows of activations, K summed over, N columns of weights


@dataclass(frozen=True, kw_only=True)
class LinearSite(AnchorSite):
    """y[M, N] = alpha * x[M, K] @ w[K, N], then biases and the epilogue."""

    rows: int
    depth: int
    is_x_transposed: bool
    is_weight_transposed: bool
    alpha: float

    channel_axis = -1

    def weight_kn(self, stored: Tensor) -> Tensor:
        """The weight as [K, N], alpha included; a view where it can be."""
        weight = stored.reshape(stored.shape[-2:])
        if self.is_weight_transposed:
            weight = weight.t()
        return weight if self.alpha == 1.0 else weight * self.alpha


def read_linear(site: Site) -> LinearSite:
    """The matrix product of the region; `RefusedError` where it is none with a constant weight."""
    anchor, data, weight, bias = read_operands(site, ("MatMul", "Gemm"))
    x, w, y = site.specs[data], site.specs[weight], site.specs[anchor.outputs[0]]
    if math.prod(w.shape[:-2]) != 1 or len(w.shape) < 2:
        raise RefusedError(f"weight has shape {list(w.shape)}, want one matrix")
    if len(w.shape) > max(len(x.shape), 2):
        raise RefusedError(f"weight has {len(w.shape)} axes and the activation {len(x.shape)}")
    if not x.numel or not y.numel:
        raise RefusedError("a tensor is empty")
    gemm = anchor.attrs if anchor.op_type == "Gemm" else {}
    beta = float(gemm.get("beta", 1.0))
    epilogue = split_epilogue(site, anchor, channel_axis=LinearSite.channel_axis)
    if bias and not _is_constant_row(site, bias):
        if bias not in site.body.inputs or beta != 1.0:
            raise RefusedError(f"C {bias!r} is neither a constant row nor a plain addend")
        addend = Binary("add", bias, site.specs[bias].shape == y.shape)
        made = (anchor.outputs[0], *epilogue.made)
        epilogue, bias = replace(epilogue, steps=(addend, *epilogue.steps), made=made), ""
    is_x_transposed = bool(gemm.get("transA", 0))
    depth = x.shape[0] if is_x_transposed else x.shape[-1]
    return LinearSite(
        anchor=anchor, x=x, y=y, slot=site.body.inputs.index(data), weight=weight,
        biases=(bias,) if bias else (), rows=x.numel // depth, depth=depth,
        is_x_transposed=is_x_transposed, is_weight_transposed=bool(gemm.get("transB", 0)),
        alpha=float(gemm.get("alpha", 1.0)), beta=beta, epilogue=epilogue,
    )  # fmt: skip


def order_weight(weight_kn: Tensor, order: str) -> Tensor:
    """The weight as [K, N], lying in memory by rows of K ("kn") or of N ("nk")."""
    return weight_kn.contiguous() if order == "kn" else weight_kn.t().contiguous().t()


def _is_constant_row(site: Site, name: str) -> bool:
    return is_constant(site, name) and math.prod(site.specs[name].shape[:-1]) == 1
