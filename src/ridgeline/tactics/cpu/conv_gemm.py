"""A 1x1 convolution as one matrix product over the channels, on the activation as it lies in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ridgeline.base.spec import Config, Site
from ridgeline.tactics.base import Launch, Offer, Refused, Tactic
from ridgeline.tactics.cpu.mkl_linear import bind_mkl, bind_product, order_weight
from ridgeline.tactics.cpu.onednn_linear import Run, bind_onednn
from ridgeline.tactics.read.conv import ConvSite, read_float_conv
from ridgeline.tactics.read.epilogue import bind_epilogue, bind_steps, constant_tensors, sum_biases

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
    biases, steps = conv.epilogue.split_bias()
    bias = sum_biases((*conv.biases, *biases), constants, conv.channels)
    weight_kn = constants[conv.weight].reshape(conv.channels, -1).t()
    finish = bind_epilogue(site, conv.epilogue, steps, constants)
    library, _, order = str(config["gemm"]).partition(".")
    slot, packed_bytes = conv.slot, constants[conv.weight].nbytes
    if library != "aten":
        run = _bind_packed(site, library, weight_kn, bias, rows=conv.x.numel // conv.x.shape[1])
        return Launch(
            lambda inputs, _: finish(run(inputs[slot].movedim(1, -1), inputs).movedim(-1, 1), inputs),
            packed_bytes=packed_bytes,
            note=conv.epilogue.note,
        )
    fill = _bind_fill(conv, weight_kn, bias, order)
    if conv.epilogue.is_all_of(site.body) and site.outputs[0].layout == conv.x.layout:
        applies = bind_steps(site, steps, constants)

        def call(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> None:
            fill(inputs[slot], outputs[0])
            for apply in applies:
                apply(outputs[0], inputs)

        return Launch(call, writes_out=True, packed_bytes=packed_bytes)
    shape, strides = conv.y.shape, replace(conv.y, layout=conv.x.layout).strides

    def call_allocating(inputs: Sequence[Any], _: Sequence[Tensor]) -> tuple[Tensor, ...]:
        y = torch.empty_strided(shape, strides)
        fill(inputs[slot], y)
        return finish(y, inputs)

    return Launch(call_allocating, packed_bytes=packed_bytes, note=conv.epilogue.note)


def _bind_packed(site: Site, library: str, weight_kn: Tensor, bias: Tensor | None, *, rows: int) -> Run:
    if library == "mkl":
        return bind_mkl(weight_kn, bias, rows=rows)
    return bind_onednn(site, weight_kn, bias, rows=rows, fused=())


def _bind_fill(
    conv: ConvSite, weight_kn: Tensor, bias: Tensor | None, order: str
) -> Callable[[Tensor, Tensor], object]:
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
