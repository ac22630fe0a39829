"""A 1x1 convolution as one matrix product over the channels, on the activation as it lies in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ridgeline.base.spec import Config, Site
from ridgeline.tactics.base import Launch, Offer, Refused, Tactic
from ridgeline.tactics.cpu.mkl_linear import Fill, bind_filling, bind_mkl, bind_product
from ridgeline.tactics.cpu.onednn_linear import Run, bind_allocating, bind_onednn
from ridgeline.tactics.read.conv import ConvSite, read_float_conv
from ridgeline.tactics.read.epilogue import constant_tensors
from ridgeline.tactics.read.linear import order_weight

# N batch, C channels in, O channels out, P positions


class ConvAsGemm(Tactic):
    """y[P, O] = x[P, C] @ w[C, O] + b, or y[O, P] = w[O, C] @ x[C, P] + b for one contiguous image."""

    name = "aten.conv.as_gemm"
    runs_on = "cpu"

    def offer(self, site: Site) -> Offer | Refused:
        conv = read_float_conv(site)
        if not conv.is_pointwise:
            kernel, stride = list(conv.kernel), list(conv.stride)
            return Refused(f"kernel {kernel} stride {stride} is no plain product, want 1x1")
        if conv.x.layout == "contiguous" and conv.x.shape[0] != 1:
            return Refused(f"{conv.x.shape[0]} contiguous images do not form one matrix")
        packed = ("onednn", "mkl") if torch._C.has_mkl else ("onednn",)
        gemms = ("aten.kn",) if conv.x.layout == "contiguous" else (*packed, "aten.kn", "aten.nk")
        return Offer([{"gemm": gemm} for gemm in gemms], partial(_bind, site, conv))


def _bind(site: Site, conv: ConvSite, config: Config, weights: Mapping[str, Tensor]) -> Launch:
    constants = constant_tensors(site, weights)
    bias = conv.bias(constants)
    weight_kn = conv.weight_kn(constants[conv.weight])
    library, _, order = str(config["gemm"]).partition(".")
    if library != "aten":
        product = _bind_packed(site, library, weight_kn, bias, rows=conv.x.numel // conv.depth)

        def run(x: Tensor, inputs: Sequence[Any]) -> Any:
            return product(x.movedim(1, -1), inputs).movedim(-1, 1)

        return bind_allocating(site, conv, run, constants)
    fill = _bind_fill(conv, weight_kn, bias, order)
    packed_bytes = constants[conv.weight].nbytes
    return bind_filling(site, conv, fill, constants, layout=conv.x.layout, packed_bytes=packed_bytes)


def _bind_packed(site: Site, library: str, weight_kn: Tensor, bias: Tensor | None, *, rows: int) -> Run:
    if library == "mkl":
        return bind_mkl(weight_kn, bias, rows=rows)
    return bind_onednn(site, weight_kn, bias, rows=rows, fused=())


def _bind_fill(conv: ConvSite, weight_kn: Tensor, bias: Tensor | None, order: str) -> Fill:
    """`fill(x, y)`: the product alone, written into `y`, both in the layout of the activation."""
    depth, columns = weight_kn.shape
    rows = conv.x.numel // depth
    if conv.x.layout == "contiguous":
        weight_nk = weight_kn.t().contiguous()
        if bias is None:
            return lambda x, y: torch.mm(weight_nk, x.view(depth, rows), out=y.view(columns, rows))
        column = bias.unsqueeze(1)
        return lambda x, y: torch.addmm(column, weight_nk, x.view(depth, rows), out=y.view(columns, rows))
    product = bind_product(order_weight(weight_kn, order), bias, is_bias_after=False)
    return lambda x, y: product(x.movedim(1, -1).reshape(rows, depth), y.movedim(1, -1).view(rows, columns))
