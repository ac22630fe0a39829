"""Convolutions through oneDNN: weights reordered once, bias and what follows taken over as post-ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from ridgeline.base.spec import Config, Site
from ridgeline.tactics.base import Launch, Tactic
from ridgeline.tactics.read.conv import ConvSite, read_cpu_conv, require_conv
from ridgeline.tactics.read.epilogue import (
    Binary,
    RunOp,
    Step,
    Unary,
    bind_rest,
    bind_steps,
    constant_tensors,
    sum_biases,
)

# the convolution alone, from the activation and the region's inputs to the value its post-ops give
Run: TypeAlias = Callable[[Tensor, Sequence[Any]], Any]


class OneDnnConv(Tactic):
    """y = post(conv(x, w) + b) in one oneDNN call."""

    name = "onednn.conv"

    def __init__(self, run_op: RunOp) -> None:
        self._run_op = run_op

    def why_not(self, site: Site) -> str | None:
        conv = read_cpu_conv(site, "Conv")
        return conv if isinstance(conv, str) else None

    def configs(self, site: Site) -> Iterable[Config]:
        conv = require_conv(site, "Conv")
        # packed weights always run channels_last inside; plain ones can stay in NCHW from end to end
        layouts = ["channels_last"]
        if {conv.x.layout, *(spec.layout for spec in site.outputs)} == {"contiguous"}:
            layouts.append("contiguous")
        choices = _post_op_choices(conv)
        return ({"layout": layout, "post_ops": post_ops} for layout in layouts for post_ops in choices)

    def bind(self, site: Site, config: Config, weights: Mapping[str, Tensor]) -> Launch:
        conv = require_conv(site, "Conv")
        constants = constant_tensors(site, weights)
        biases, steps = conv.epilogue.split_bias()
        bias = sum_biases((*conv.biases, *biases), constants, conv.channels)
        fused = _fusible(conv) if config["post_ops"] else ()
        weight, shape = constants[conv.weight], conv
        if conv.rank == 1:
            weight, shape = weight.unsqueeze(2), _as_row(conv)
        pads = shape.pads_begin if shape.is_symmetric else (0,) * shape.rank
        geometry = ([*pads], [*shape.stride], [*shape.dilation], shape.groups)
        if config["layout"] == "channels_last":
            weight = torch.ops.mkldnn._reorder_convolution_weight(weight, *geometry, _padded_shape(shape))
        run = _bind_conv(site, fused, weight=weight, bias=bias, geometry=geometry)
        return _bind_launch(
            site, conv, run, steps=steps[len(fused) :], constants=constants, run_op=self._run_op
        )


class OneDnnConvTranspose(Tactic):
    """y = post(conv_transpose(x, w) + b) in one oneDNN call."""

    name = "onednn.conv_transpose"

    def __init__(self, run_op: RunOp) -> None:
        self._run_op = run_op

    def why_not(self, site: Site) -> str | None:
        conv = read_cpu_conv(site, "ConvTranspose")
        if isinstance(conv, str):
            return conv
        if not conv.is_symmetric:
            return f"pads begin {conv.pads_begin} and end {conv.pads_end} differ, torch passes on one"
        return f"pads {conv.pads_begin} are negative" if min(conv.pads_begin) < 0 else None

    def configs(self, site: Site) -> Iterable[Config]:
        conv = require_conv(site, "ConvTranspose")
        return ({"post_ops": post_ops} for post_ops in _post_op_choices(conv))

    def bind(self, site: Site, config: Config, weights: Mapping[str, Tensor]) -> Launch:
        conv = require_conv(site, "ConvTranspose")
        constants = constant_tensors(site, weights)
        biases, steps = conv.epilogue.split_bias()
        bias = sum_biases((*conv.biases, *biases), constants, conv.channels)
        fused = _fusible(conv) if config["post_ops"] else ()
        weight, shape = constants[conv.weight], conv
        if conv.rank == 1:
            weight, shape = weight.unsqueeze(2), _as_row(conv)
        geometry = (
            [*shape.pads_begin],
            [*shape.output_padding],
            [*shape.stride],
            [*shape.dilation],
            shape.groups,
        )
        packed = torch.ops.mkldnn._reorder_convolution_transpose_weight(weight, *geometry, [*shape.x.shape])
        op = torch.ops.mkldnn._convolution_transpose_pointwise.default
        post = _unary_args(fused)

        def run(x: Tensor, _: Sequence[Any]) -> Any:
            return op(x, packed, bias, *geometry, *post)

        return _bind_launch(
            site, conv, run, steps=steps[len(fused) :], constants=constants, run_op=self._run_op
        )


def _post_op_choices(conv: ConvSite) -> tuple[bool, ...]:
    # whether a post-op beats torch's own pass over the result differs by layer, so both are timed
    return (True, False) if _fusible(conv) else (False,)


def _fusible(conv: ConvSite) -> tuple[Step, ...]:
    """The longest head of the steps after the bias that one oneDNN call takes as post-ops."""
    steps = conv.epilogue.split_bias()[1]
    if steps and isinstance(steps[0], Unary):
        return steps[:1]
    takes_binary = conv.anchor.op_type == "Conv" and conv.rank > 1
    if takes_binary and steps and isinstance(steps[0], Binary) and steps[0].is_full:
        return steps[:2] if steps[1:2] == (Unary("relu"),) else steps[:1]
    return ()


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


def _unary_args(fused: Sequence[Step]) -> tuple[str, list[float], str]:
    post = fused[0] if fused else Unary("none")
    assert isinstance(post, Unary), f"{post} is not a unary post-op"
    return post.name, [*post.scalars], post.algorithm


def _bind_conv(
    site: Site, fused: Sequence[Step], *, weight: Tensor, bias: Tensor | None, geometry: tuple[Any, ...]
) -> Run:
    if fused and isinstance(fused[0], Binary):
        slot, kind = site.body.inputs.index(fused[0].other), fused[0].name
        after = "relu" if len(fused) == 2 else None
        with_other = torch.ops.mkldnn._convolution_pointwise.binary

        def run_with_other(x: Tensor, inputs: Sequence[Any]) -> Any:
            return with_other(x, inputs[slot], weight, bias, *geometry, kind, None, after, [], "")

        return run_with_other
    op, post = torch.ops.mkldnn._convolution_pointwise.default, _unary_args(fused)

    def run(x: Tensor, _: Sequence[Any]) -> Any:
        return op(x, weight, bias, *geometry, *post)

    return run


def _bind_launch(
    site: Site,
    conv: ConvSite,
    run: Run,
    *,
    steps: Sequence[Step],
    constants: Mapping[str, Tensor],
    run_op: RunOp,
) -> Launch:
    applies = bind_steps(site, steps, constants)
    finish = bind_rest(site, conv.epilogue, run_op=run_op, constants=constants)
    run, slot = _with_views(conv, run), conv.slot

    def call(inputs: Sequence[Any], _: Sequence[Tensor]) -> tuple[Tensor, ...]:
        y = run(inputs[slot], inputs)
        for apply in applies:
            apply(y, inputs)
        return finish(y, inputs)

    note = ", ".join(op.op_type for op in conv.epilogue.rest)
    return Launch(
        call,
        packed_bytes=constants[conv.weight].nbytes,
        note=f"op by op after the call: {note}" if note else "",
    )


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
