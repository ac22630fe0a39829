"""Products through cuBLASLt, with the bias and activation it can take; what is left is one generated kernel.

1x1 convolutions on channels-last images are such products too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.devices import Device
from ridgeline.base.library_math import library_math
from ridgeline.base.spec import TF32, Config, Site
from ridgeline.kernels.triton.compiler import KernelStore
from ridgeline.kernels.triton.source import Kernel
from ridgeline.tactics.base import Call, Footprint, Launch, Offer, Refused, once
from ridgeline.tactics.cuda.own_kernels import KernelTactic
from ridgeline.tactics.cuda.triton_codegen import TritonPointwise
from ridgeline.tactics.offer import read_offer
from ridgeline.tactics.predict import cublas_us
from ridgeline.tactics.read.conv import ConvSite, read_conv
from ridgeline.tactics.read.epilogue import constant_tensors, spec_of
from ridgeline.tactics.read.linear import LinearSite, order_weight, read_linear
from ridgeline.tactics.read.remainder import Taken, rest_of, take_epilogue
from ridgeline.tactics.shared_copies import shared_copy

DTYPES = ("float16", "bfloat16", "float32")
# M rows, K summed over, N columns


Product: TypeAlias = LinearSite | ConvSite  # y[M, N] = x[M, K] @ w[K, N] inside a region


def rows_of(product: Product, tensor: Tensor) -> Tensor:
    """[.., channels] or a channels-last image as a matrix; always a view."""
    last = tensor.movedim(product.channel_axis, -1)
    return last.view(-1, last.shape[-1])


def read_product(site: Site, dtypes: Sequence[str] = DTYPES) -> Product:
    """The product of the region; `RefusedError` where it is none that cuBLAS takes."""
    if [op.key for op in site.body.ops].count("Conv") == 1:
        return _read_conv(site, dtypes)
    linear = read_linear(site)
    if linear.x.dtype not in dtypes:
        raise RefusedError(f"activations are {linear.x.dtype}, want {', '.join(dtypes)}")
    if linear.is_x_transposed:
        raise RefusedError("the activation is transposed")
    return linear


def _read_conv(site: Site, dtypes: Sequence[str]) -> ConvSite:
    conv = read_conv(site)
    if not conv.is_pointwise:
        kernel, stride = list(conv.kernel), list(conv.stride)
        raise RefusedError(f"kernel {kernel} stride {stride} is no plain product, want 1x1")
    if conv.x.layout != "channels_last" and conv.x.shape[2:] != (1,) * conv.rank:
        raise RefusedError("the image is not channels last")
    if conv.rank != 2 or conv.x.dtype not in dtypes:
        raise RefusedError(f"{conv.rank} spatial axes of {conv.x.dtype}")
    return conv


class Cublas(KernelTactic):
    """epilogue(x · W) by cuBLASLt."""

    name = "cublas"

    def offer(self, site: Site) -> Offer | Refused:
        product = read_product(site)
        taken = self._take(site, product)
        rest = read_rest(rest_of(site, taken.value), self.store)
        if rest.site is None and product.channel_axis == 1 and site.outputs[0].layout != "channels_last":
            return Refused("the result is not channels last")
        footprint = Footprint(
            True, packed_bytes=spec_of(site, product.weight).nbytes, scratch_bytes=rest.scratch_bytes
        )
        return Offer(
            self._configs(),
            bind=partial(self._bind, site, product, taken, rest),
            kernels=rest.kernels,
            footprint=lambda config: footprint,
            predict_us=partial(self._predict_us, site, product.depth, rest.site),
            compiles=rest.site is not None,
        )

    def _configs(self) -> Sequence[Config]:
        return ({"weight": "nk"}, {"weight": "kn"})

    def _predict_us(self, site: Site, depth: int, rest: Site | None, config: Config, device: Device) -> float:
        return cublas_us(site, depth, rest, device)

    def _take(self, site: Site, product: Product) -> Taken:
        found = take_epilogue(site, product, activations=("relu", "gelu_tanh"))
        if not found.biases:
            # with no bias the addend of the product is free for a residual; activations need a bias
            return take_epilogue(site, product, takes_residual=True)
        return found

    def _bind(
        self,
        site: Site,
        product: Product,
        taken: Taken,
        rest: Rest,
        config: Config,
        weights: Mapping[str, Tensor],
    ) -> Launch:
        wanted = (product.weight, *taken.biases)
        constants = {n: t.to("cuda") for n, t in constant_tensors(site, weights).items() if n in wanted}
        weight_kn = product.weight_kn(constants[product.weight])
        weight = shared_copy(order_weight(weight_kn, str(config.get("weight", "nk"))), weight_kn)
        bias = product.bias(constants, taken.biases)
        fill = self._bind_fill(site, product, taken, weight, bias, config)
        packed = weight.nbytes + (bias.nbytes if bias is not None else 0)
        if rest.site is None:
            return Launch(fill, writes_out=True, packed_bytes=packed)
        return after_library(site, rest.site, fill, rest.bind(weights), packed_bytes=packed)

    def _bind_fill(
        self, site: Site, product: Product, taken: Taken, weight: Tensor, bias: Tensor | None, config: Config
    ) -> Call:
        slot, rows = product.slot, partial(rows_of, product)
        addend = site.body.inputs.index(taken.residual) if taken.residual else -1
        rounds = product.anchor.math == TF32

        def fill(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> None:
            x, y = rows(inputs[slot]), rows(outputs[0])
            with library_math(rounds=rounds):
                if taken.activation and bias is not None:
                    torch._addmm_activation(bias, x, weight, use_gelu=taken.activation == "gelu_tanh", out=y)
                elif bias is not None:
                    torch.addmm(bias, x, weight, out=y)
                elif addend >= 0:
                    torch.addmm(rows(inputs[addend]), x, weight, out=y)
                else:
                    torch.mm(x, weight, out=y)

        return fill


@dataclass(frozen=True)
class Rest:
    """What one generated kernel does after a library, as a site of its own; None: nothing is left to do."""

    site: Site | None = None
    offer: Offer | None = None

    @property
    def scratch_bytes(self) -> int:
        """Of the library's result, which only the kernel reads."""
        return 0 if self.site is None else self.site.specs[self.site.body.inputs[0]].nbytes

    def kernels(self, config: Config) -> Sequence[Kernel]:
        return () if self.offer is None else self.offer.kernels(self.offer.configs[0])

    def bind(self, weights: Mapping[str, Tensor]) -> Launch:
        assert self.offer is not None, "there is a rest"
        return self.offer.bind(self.offer.configs[0], weights)


def read_rest(site: Site | None, store: KernelStore) -> Rest:
    """`RefusedError` where no kernel can be generated for the rest."""
    if site is None:
        return Rest()
    offer = read_offer(TritonPointwise(store=store), site)
    if isinstance(offer, Refused):
        raise RefusedError(offer.reason)
    return Rest(site, offer)


def after_library(site: Site, rest: Site, fill: Call, after: Launch, *, packed_bytes: int) -> Launch:
    """A library call into scratch, then a generated kernel from there to the outputs."""
    spec = rest.specs[rest.body.inputs[0]]
    slots = [site.body.inputs.index(name) for name in rest.body.inputs[1:]]

    def freeze(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> Callable[[], object]:
        between = torch.empty_strided(
            spec.shape, spec.strides, dtype=getattr(torch, spec.dtype), device=outputs[0].device
        )
        finish = after.frozen([between, *(inputs[i] for i in slots)], outputs)

        def call() -> None:
            fill(inputs, (between,))
            finish()

        return call

    return Launch(
        once(freeze), writes_out=True, freeze=freeze, packed_bytes=packed_bytes + after.packed_bytes,
        note=after.note,
    )  # fmt: skip
