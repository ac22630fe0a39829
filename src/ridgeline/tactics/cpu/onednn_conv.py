"""Convolutions through oneDNN: weights reordered once, bias and what follows taken over as post-ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ridgeline.base.spec import Config, Site
from ridgeline.tactics.base import Launch, Offer, Refused, Tactic
from ridgeline.tactics.cpu.onednn_linear import Run, bind_allocating, fusible, unary_args
from ridgeline.tactics.read.conv import ConvSite, read_float_conv
from ridgeline.tactics.read.epilogue import Binary, Step, Unary, constant_tensors


class OneDnnConv(Tactic):
    """y = post(conv(x, w) + b) in one oneDNN call."""

    name = "onednn.conv"
    runs_on = "cpu"

    def offer(self, site: Site) -> Offer:
        conv = read_float_conv(site)
        # packed weights always run channels_last inside; plain ones can stay in NCHW from end to end
        layouts = ["channels_last"]
        if {conv.x.layout, *(spec.layout for spec in site.outputs)} == {"contiguous"}:
            layouts.append("contiguous")
        configs: list[Config] = [
            {"layout": layout, "post_ops": p} for layout in layouts for p in _post_op_choices(conv)
        ]
        return Offer(configs, partial(_bind, site, conv, _bind_conv))


class OneDnnConvTranspose(Tactic):
    """y = post(conv_transpose(x, w) + b) in one oneDNN call."""

    name = "onednn.conv_transpose"
    runs_on = "cpu"

    def offer(self, site: Site) -> Offer | Refused:
        conv = read_float_conv(site, "ConvTranspose")
        if not conv.is_symmetric:
            return Refused(
                f"pads begin {conv.pads_begin} and end {conv.pads_end} differ, torch passes on one"
            )
        if min(conv.pads_begin) < 0:
            return Refused(f"pads {conv.pads_begin} are negative")
        configs = [{"post_ops": p} for p in _post_op_choices(conv)]
        return Offer(configs, partial(_bind, site, conv, _bind_transposed))


@dataclass(frozen=True)
class _Parts:
    """What one oneDNN call is made of; a 1-D convolution is a 2-D one over an image of one row."""

    shape: ConvSite
    weight: Tensor
    bias: Tensor | None
    fused: tuple[Step, ...]
    is_packed: bool


def _bind(
    site: Site,
    conv: ConvSite,
    bind_run: Callable[[Site, _Parts], Run],
    config: Config,
    weights: Mapping[str, Tensor],
) -> Launch:
    constants = constant_tensors(site, weights)
    fused = _fusible(conv) if config["post_ops"] else ()
    weight, shape = constants[conv.weight], conv
    if conv.rank == 1:
        weight, shape = weight.unsqueeze(2), _as_row(conv)
    is_packed = config.get("layout", "channels_last") == "channels_last"
    run = _with_views(conv, bind_run(site, _Parts(shape, weight, conv.bias(constants), fused, is_packed)))
    return bind_allocating(site, conv, run, constants, n_fused=len(fused))


def _post_op_choices(conv: ConvSite) -> tuple[bool, ...]:
    # whether a post-op beats torch's own pass over the result differs by layer, so both are timed
    return (True, False) if _fusible(conv) else (False,)


def _fusible(conv: ConvSite) -> tuple[Step, ...]:
    """The longest head of the steps after the bias that one oneDNN call takes as post-ops."""
    steps, head = conv.steps, fusible(conv.steps)
    if not head or isinstance(head[0], Unary):
        return head
    takes_binary = conv.anchor.op_type == "Conv" and conv.rank > 1
    return () if not takes_binary else steps[:2] if steps[1:2] == (Unary("relu"),) else head


def _as_row(conv: ConvSite) -> ConvSite:
    """The 1-D convolution as a 2-D one over an image of one row."""
    batch, channels, length = conv.x.shape
    return replace(
        conv,
        x=replace(conv.x, shape=(batch, channels, 1, length)),
        kernel=(1, *conv.kernel),
        stride=(1, *conv.stride),
        dilation=(1, *conv.dilation),
        pads_begin=(0, *conv.pads_begin),
        pads_end=(0, *conv.pads_end),
        output_padding=(0, *conv.output_padding),
    )


def _padded_shape(conv: ConvSite) -> list[int]:
    if conv.is_symmetric:
        return [*conv.x.shape]
    spatial = zip(conv.x.shape[2:], conv.pads_begin, conv.pads_end, strict=True)
    return [*conv.x.shape[:2], *(size + begin + end for size, begin, end in spatial)]


def _bind_conv(site: Site, parts: _Parts) -> Run:
    shape, weight, bias, fused = parts.shape, parts.weight, parts.bias, parts.fused
    pads = shape.pads_begin if shape.is_symmetric else (0,) * shape.rank
    geometry = ([*pads], [*shape.stride], [*shape.dilation], shape.groups)
    if parts.is_packed:
        weight = torch.ops.mkldnn._reorder_convolution_weight(weight, *geometry, _padded_shape(shape))
    if fused and isinstance(fused[0], Binary):
        slot, kind = site.body.inputs.index(fused[0].other), fused[0].name
        after = "relu" if len(fused) == 2 else None
        with_other = torch.ops.mkldnn._convolution_pointwise.binary
        return lambda x, inputs: with_other(
            x, inputs[slot], weight, bias, *geometry, kind, None, after, [], ""
        )
    op, post = torch.ops.mkldnn._convolution_pointwise.default, unary_args(fused)
    return lambda x, _: op(x, weight, bias, *geometry, *post)


def _bind_transposed(site: Site, parts: _Parts) -> Run:
    shape, bias = parts.shape, parts.bias
    sizes = (shape.pads_begin, shape.output_padding, shape.stride, shape.dilation)
    geometry = (*([*each] for each in sizes), shape.groups)
    packed = torch.ops.mkldnn._reorder_convolution_transpose_weight(parts.weight, *geometry, [*shape.x.shape])
    op, post = torch.ops.mkldnn._convolution_transpose_pointwise.default, unary_args(parts.fused)
    return lambda x, _: op(x, packed, bias, *geometry, *post)


def _with_views(conv: ConvSite, run: Run) -> Run:
    """The call with uneven pads applied first, and a 1-D activation seen as an image of one row."""
    if conv.is_symmetric and conv.rank > 1:
        return run
    sides = zip(reversed(conv.pads_begin), reversed(conv.pads_end), strict=True)
    pads = [] if conv.is_symmetric else [side for pair in sides for side in pair]
    is_row = conv.rank == 1

    def run_viewed(x: Tensor, inputs: Sequence[Any]) -> Any:
        if pads:
            x = F.pad(x, pads)
        return run(x.unsqueeze(2), inputs).squeeze(2) if is_row else run(x, inputs)

    return run_viewed
