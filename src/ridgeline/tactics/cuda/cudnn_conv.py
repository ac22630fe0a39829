"""Convolutions through cuDNN on channels-last images: plain, with bias and ReLU, or with a residual as well.

What the library leaves of the epilogue is one generated kernel; all forms are timed with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.library_math import library_math
from ridgeline.base.spec import TF32, Config, Site
from ridgeline.tactics.base import Footprint, Launch, Offer, Refused
from ridgeline.tactics.cuda.cublas import DTYPES, Rest, read_rest
from ridgeline.tactics.cuda.own_kernels import KernelTactic
from ridgeline.tactics.predict import cudnn_us
from ridgeline.tactics.read.conv import ConvSite, read_conv
from ridgeline.tactics.read.epilogue import constant_tensors, spec_of
from ridgeline.tactics.read.remainder import BIAS, RAW, Taken, rest_of, take_epilogue
from ridgeline.tactics.shared_copies import shared_copy


class CudnnConv(KernelTactic):
    """y = epilogue(conv(x, w) + b) by cuDNN."""

    name = "cudnn"

    def offer(self, site: Site) -> Offer | Refused:
        conv = read_conv(site)
        if conv.rank != 2:
            return Refused(f"{conv.rank} spatial axes, want 2")
        if conv.x.dtype not in DTYPES:
            return Refused(f"activations are {conv.x.dtype}, want {', '.join(DTYPES)}")
        if not conv.is_symmetric:
            return Refused(f"pads {list(conv.pads_begin)} and {list(conv.pads_end)} differ")
        if conv.y.layout != "channels_last":
            return Refused("the result is not channels last")
        forms = self._forms(site, conv)
        if not forms:
            return Refused("the rest of the region cannot be generated")
        packed_bytes = spec_of(site, conv.weight).nbytes

        def rest(config: Config) -> Rest:
            return forms[str(config["form"])][1]

        return Offer(
            [{"form": form} for form in forms],
            bind=lambda config, weights: _bind(
                site, conv, str(config["form"]), *forms[str(config["form"])], weights
            ),
            kernels=lambda config: rest(config).kernels(config),
            footprint=lambda config: Footprint(rest(config).site is not None, packed_bytes=packed_bytes),
            predict_us=lambda config, device: cudnn_us(site, conv, rest(config).site, device),
            compiles=True,
        )

    def _forms(self, site: Site, conv: ConvSite) -> dict[str, tuple[Taken, Rest]]:
        """The fused calls that the region has, if one generated kernel does what each leaves."""
        found: dict[str, tuple[Taken, Rest]] = {}
        for form in ("add_relu", "relu", "plain"):
            taken = _take(site, conv, form)
            if taken is None:
                continue
            # the library's plain form adds its bias in a kernel of its own: ours does that with the rest
            is_bias_left = form == "plain" and bool(taken.biases)
            with suppress(RefusedError):
                rest = rest_of(site, taken.value, bias_shape=(conv.channels, 1, 1) if is_bias_left else None)
                found[form] = (taken, read_rest(rest, self.store))
        return found


def _bind(
    site: Site, conv: ConvSite, form: str, taken: Taken, rest: Rest, weights: Mapping[str, Tensor]
) -> Launch:
    constants = constant_tensors(site, weights)
    stored = constants[conv.weight].to("cuda")
    weight = shared_copy(stored.contiguous(memory_format=torch.channels_last), stored)
    bias = conv.bias(constants, taken.biases)
    if bias is None and form != "plain":
        bias = torch.zeros(conv.channels, dtype=weight.dtype)
    bias = None if bias is None else bias.to("cuda")
    run = _bind_run(site, conv, taken, form, weight, bias)
    if rest.site is None:
        return Launch(lambda inputs, _: (run(inputs),), packed_bytes=weight.nbytes)
    names, packed = rest.site.body.inputs, dict(weights)
    if BIAS in names and bias is not None:
        packed[BIAS] = bias = bias.view(-1, 1, 1)
    after = rest.bind(packed)
    given = [None if n in (RAW, BIAS) else site.body.inputs.index(n) for n in names[1:]]

    def call(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> None:
        others = [bias if place is None else inputs[place] for place in given]
        after.run([run(inputs), *others], outputs)

    return Launch(call, writes_out=True, packed_bytes=weight.nbytes + after.packed_bytes)


def _take(site: Site, conv: ConvSite, form: str) -> Taken | None:
    if form == "plain":
        return Taken(conv.anchor.outputs[0], conv.biases)
    taken = take_epilogue(site, conv, activations=("relu",), takes_residual=form == "add_relu")
    is_offered = taken.activation == "relu" and bool(taken.residual) == (form == "add_relu")
    return taken if is_offered else None


def _bind_run(
    site: Site, conv: ConvSite, taken: Taken, form: str, weight: Tensor, bias: Tensor | None
) -> Callable[[Sequence[Any]], Tensor]:
    slot, stride, dilation = conv.slot, list(conv.stride), list(conv.dilation)
    padding, groups = list(conv.pads_begin), conv.groups
    last = torch.channels_last
    residual = site.body.inputs.index(taken.residual) if taken.residual else -1

    def run(inputs: Sequence[Any]) -> Tensor:
        x = inputs[slot].contiguous(memory_format=last)
        # the fastest plan for these sizes, found at the first call and kept by the library
        with library_math(rounds=conv.anchor.math == TF32, benchmark=True):
            if form == "relu":
                return torch.cudnn_convolution_relu(x, weight, bias, stride, padding, dilation, groups)
            if form == "add_relu":
                z = inputs[residual].contiguous(memory_format=last)
                return torch.cudnn_convolution_add_relu(
                    x, weight, z, 1.0, bias, stride, padding, dilation, groups
                )
            return torch.conv2d(x, weight, None, stride, padding, dilation, groups)

    return run
