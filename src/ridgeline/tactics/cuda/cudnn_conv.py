"""Convolutions through cuDNN on channels-last images: plain, with bias and ReLU, or with a residual as well.

What the library leaves of the epilogue is one generated kernel; all forms are timed with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ridgeline.base.spec import Config, Site
from ridgeline.kernels.triton.compiler import COMPILED_HERE, CompileError, KernelStore
from ridgeline.kernels.triton.source import Kernel
from ridgeline.tactics.base import Footprint, Launch, Tactic
from ridgeline.tactics.cuda.cublas import DTYPES
from ridgeline.tactics.cuda.own_kernels import compile_ahead
from ridgeline.tactics.cuda.triton_codegen import TritonPointwise
from ridgeline.tactics.read.conv import ConvSite, read_conv, require_conv
from ridgeline.tactics.read.epilogue import constant_tensors, sum_biases
from ridgeline.tactics.read.remainder import BIAS, RAW, Absorbed, rest_of, spec_of, take_moves


class CudnnConv(Tactic):
    """y = epilogue(conv(x, w) + b) by cuDNN."""

    name = "cudnn"

    def __init__(self, *, store: KernelStore = COMPILED_HERE) -> None:
        self.store = store
        self._pointwise = TritonPointwise(store=store)

    def why_not(self, site: Site) -> str | None:
        if site.target.kind != "cuda":
            return f"target is {site.target}, cuDNN runs on cuda"
        conv = read_conv(site, "Conv")
        if isinstance(conv, str):
            return conv
        if conv.rank != 2:
            return f"{conv.rank} spatial axes, want 2"
        if conv.x.dtype not in DTYPES:
            return f"activations are {conv.x.dtype}, want {', '.join(DTYPES)}"
        if not conv.is_symmetric:
            return f"pads {list(conv.pads_begin)} and {list(conv.pads_end)} differ"
        if conv.y.layout != "channels_last":
            return "the result is not channels last"
        return None if any(True for _ in self.configs(site)) else "the rest of the region cannot be generated"

    def configs(self, site: Site) -> Iterable[Config]:
        conv = require_conv(site, "Conv")
        for form in ("add_relu", "relu", "plain"):
            taken = _absorb(site, conv, form)
            if taken is None:
                continue
            rest = self._rest(site, conv, form)
            if rest is None or (not isinstance(rest, str) and self._pointwise.why_not(rest) is None):
                yield {"form": form}

    def precompile(self, jobs: Sequence[tuple[Site, Config]]) -> list[CompileError]:
        return compile_ahead(self, jobs, store=self.store)

    def kernels(self, site: Site, config: Config) -> Sequence[Kernel]:
        rest = self.rest(site, config)
        return (
            () if rest is None else self._pointwise.kernels(rest, next(iter(self._pointwise.configs(rest))))
        )

    def footprint(self, site: Site, config: Config) -> Footprint:
        weight = spec_of(site, require_conv(site, "Conv").weight)
        return Footprint(self.rest(site, config) is not None, packed_bytes=weight.nbytes)

    def rest(self, site: Site, config: Config) -> Site | None:
        """What one generated kernel does after the library."""
        rest = self._rest(site, require_conv(site, "Conv"), str(config["form"]))
        assert not isinstance(rest, str), f"a refused site came back: {rest}"
        return rest

    def _rest(self, site: Site, conv: ConvSite, form: str) -> Site | str | None:
        taken = _absorb(site, conv, form)
        assert taken is not None, f"{form} was not offered"
        # the library's plain form adds its bias in a kernel of its own: ours does that with the rest
        is_bias_left = form == "plain" and bool(taken.biases)
        return rest_of(site, taken.value, bias_shape=(conv.channels, 1, 1) if is_bias_left else None)

    def bind(self, site: Site, config: Config, weights: Mapping[str, Tensor]) -> Launch:
        conv, form = require_conv(site, "Conv"), str(config["form"])
        taken = _absorb(site, conv, form)
        assert taken is not None, f"{form} was not offered"
        constants = constant_tensors(site, weights)
        weight = constants[conv.weight].to("cuda").contiguous(memory_format=torch.channels_last)
        bias = sum_biases(taken.biases, constants, conv.channels)
        if bias is None and form != "plain":
            bias = torch.zeros(conv.channels, dtype=weight.dtype)
        bias = None if bias is None else bias.to("cuda")
        run = _bind_run(site, conv, taken, form, weight, bias)
        rest = self._rest(site, conv, form)
        assert not isinstance(rest, str), f"a refused site came back: {rest}"
        if rest is None:
            return Launch(lambda inputs, _: (run(inputs),), packed_bytes=weight.nbytes)
        packed = dict(weights)
        if BIAS in rest.body.inputs and bias is not None:
            packed[BIAS] = bias = bias.view(-1, 1, 1)
        after = self._pointwise.bind(rest, next(iter(self._pointwise.configs(rest))), packed)
        given = [None if n in (RAW, BIAS) else site.body.inputs.index(n) for n in rest.body.inputs[1:]]

        def call(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> None:
            others = [bias if place is None else inputs[place] for place in given]
            after.run([run(inputs), *others], outputs)

        return Launch(call, writes_out=True, packed_bytes=weight.nbytes + after.packed_bytes)


def _absorb(site: Site, conv: ConvSite, form: str) -> Absorbed | None:
    if form == "plain":
        own = (*conv.anchor.inputs, "")[2]
        return Absorbed(conv.anchor.outputs[0], (own,) if own else ())
    taken = take_moves(
        site, conv.anchor, channel_axis=1, activations=("relu",), takes_residual=form == "add_relu"
    )
    is_offered = taken.activation == "relu" and bool(taken.residual) == (form == "add_relu")
    return taken if is_offered else None


def _bind_run(
    site: Site, conv: ConvSite, taken: Absorbed, form: str, weight: Tensor, bias: Tensor | None
) -> Callable[[Sequence[Any]], Tensor]:
    slot, stride, dilation = conv.slot, list(conv.stride), list(conv.dilation)
    padding, groups = list(conv.pads_begin), conv.groups
    last = torch.channels_last
    residual = site.body.inputs.index(taken.residual) if taken.residual else -1

    def run(inputs: Sequence[Any]) -> Tensor:
        x = inputs[slot].contiguous(memory_format=last)
        # the fastest plan for these sizes, found at the first call and kept by the library
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False):
            if form == "relu":
                return torch.cudnn_convolution_relu(x, weight, bias, stride, padding, dilation, groups)
            if form == "add_relu":
                z = inputs[residual].contiguous(memory_format=last)
                return torch.cudnn_convolution_add_relu(
                    x, weight, z, 1.0, bias, stride, padding, dilation, groups
                )
            return torch.conv2d(x, weight, None, stride, padding, dilation, groups)

    return run
