"""Products through cuBLASLt, with the bias and activation it can take; what is left is one generated kernel.

1x1 convolutions on channels-last images are such products too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ridgeline.base.spec import Config, Op, Site, TensorSpec
from ridgeline.kernels.triton.compiler import COMPILED_HERE, CompileError, KernelStore
from ridgeline.kernels.triton.source import Kernel
from ridgeline.tactics.base import Footprint, Launch, Tactic
from ridgeline.tactics.cuda.own_kernels import compile_ahead
from ridgeline.tactics.cuda.triton_codegen import TritonPointwise
from ridgeline.tactics.read.conv import read_conv
from ridgeline.tactics.read.epilogue import constant_tensors, find_anchor, sum_biases
from ridgeline.tactics.read.linear import read_linear
from ridgeline.tactics.read.remainder import Absorbed, rest_of, spec_of, take_moves

DTYPES = ("float16", "bfloat16", "float32")
Fill: TypeAlias = Callable[[Sequence[Any], Sequence[Tensor]], None]
# M rows, K summed over, N columns


@dataclass(frozen=True)
class Product:
    """y[M, N] = x[M, K] @ w[K, N] inside a region, and how its operands lie."""

    anchor: Op
    slot: int
    weight: str
    depth: int
    columns: int
    channel_axis: int
    bias_scale: float
    weight_kn: Callable[[Tensor], Tensor]
    y: TensorSpec

    def rows_of(self, tensor: Tensor) -> Tensor:
        """[.., channels] or a channels-last image as a matrix; always a view."""
        last = tensor.movedim(1, -1) if self.channel_axis == 1 else tensor
        return last.view(-1, last.shape[-1])


def read_product(site: Site) -> Product | str:
    """The product of the region, or why it is none that cuBLAS takes."""
    if site.target.kind != "cuda":
        return f"target is {site.target}, cuBLAS runs on cuda"
    conv = find_anchor(site.body, ("Conv",))
    if isinstance(conv, Op):
        return _read_conv(site)
    linear = read_linear(site)
    if isinstance(linear, str):
        return linear
    if linear.x.dtype not in DTYPES:
        return f"activations are {linear.x.dtype}, want {', '.join(DTYPES)}"
    if linear.is_x_transposed:
        return "the activation is transposed"
    return Product(
        anchor=linear.anchor, slot=linear.slot, weight=linear.weight, depth=linear.depth,
        columns=linear.columns, channel_axis=-1, bias_scale=linear.beta, weight_kn=linear.weight_kn,
        y=linear.y,
    )  # fmt: skip


def _read_conv(site: Site) -> Product | str:
    conv = read_conv(site, "Conv")
    if isinstance(conv, str):
        return conv
    if not conv.is_pointwise:
        return f"kernel {list(conv.kernel)} stride {list(conv.stride)} is no plain product, want 1x1"
    if conv.x.layout != "channels_last" and conv.x.shape[2:] != (1,) * conv.rank:
        return "the image is not channels last"
    if conv.rank != 2 or conv.x.dtype not in DTYPES:
        return f"{conv.rank} spatial axes of {conv.x.dtype}"
    return Product(
        anchor=conv.anchor, slot=conv.slot, weight=conv.weight, depth=conv.x.shape[1],
        columns=conv.channels, channel_axis=1, bias_scale=1.0,
        weight_kn=lambda w: w.reshape(w.shape[0], -1).t(), y=conv.y,
    )  # fmt: skip


class Cublas(Tactic):
    """epilogue(x · W) by cuBLASLt."""

    name = "cublas"

    def __init__(self, *, store: KernelStore = COMPILED_HERE) -> None:
        self.store = store
        self._pointwise = TritonPointwise(store=store)

    def why_not(self, site: Site) -> str | None:
        product = read_product(site)
        if isinstance(product, str):
            return product
        taken = self._absorb(site, product)
        rest = rest_of(site, taken.value)
        if isinstance(rest, str):
            return rest
        if rest is not None:
            return self._pointwise.why_not(rest)
        if product.channel_axis == 1 and site.outputs[0].layout != "channels_last":
            return "the result is not channels last"
        return None

    def configs(self, site: Site) -> Iterable[Config]:
        return ({"weight": "nk"}, {"weight": "kn"})

    def precompile(self, jobs: Sequence[tuple[Site, Config]]) -> list[CompileError]:
        return compile_ahead(self, jobs, store=self.store)

    def kernels(self, site: Site, config: Config) -> Sequence[Kernel]:
        rest = self.rest(site, config)
        return (
            () if rest is None else self._pointwise.kernels(rest, next(iter(self._pointwise.configs(rest))))
        )

    def footprint(self, site: Site, config: Config) -> Footprint:
        product = read_product(site)
        assert isinstance(product, Product), f"a refused site came back: {product}"
        between = 0 if (rest := self.rest(site, config)) is None else rest.specs[rest.body.inputs[0]].nbytes
        return Footprint(True, packed_bytes=spec_of(site, product.weight).nbytes, scratch_bytes=between)

    def rest(self, site: Site, config: Config) -> Site | None:
        """What one generated kernel does after the library."""
        return self._rest(site)

    def _absorb(self, site: Site, product: Product) -> Absorbed:
        axis = product.channel_axis
        found = take_moves(site, product.anchor, channel_axis=axis, activations=("relu", "gelu_tanh"))
        if not found.biases:
            # with no bias the addend of the product is free for a residual; activations need a bias
            return take_moves(site, product.anchor, channel_axis=axis, takes_residual=True)
        return found

    def _rest(self, site: Site) -> Site | None:
        product = read_product(site)
        assert isinstance(product, Product), f"a refused site came back: {product}"
        rest = rest_of(site, self._absorb(site, product).value)
        assert not isinstance(rest, str), f"a refused site came back: {rest}"
        return rest

    def bind(self, site: Site, config: Config, weights: Mapping[str, Tensor]) -> Launch:
        product = read_product(site)
        assert isinstance(product, Product), f"a refused site came back: {product}"
        taken = self._absorb(site, product)
        rest = self._rest(site)
        wanted = (product.weight, *taken.biases)
        constants = {n: t.to("cuda") for n, t in constant_tensors(site, weights).items() if n in wanted}
        weight = self._lay(product.weight_kn(constants[product.weight]), config)
        if product.bias_scale != 1.0:
            own = product.anchor.inputs[2]
            constants[own] = constants[own] * product.bias_scale
        bias = sum_biases(taken.biases, constants, product.columns)
        fill = self._bind_fill(site, product, taken, weight, bias, config)
        packed = weight.nbytes + (bias.nbytes if bias is not None else 0)
        if rest is None:
            return Launch(fill, writes_out=True, packed_bytes=packed)
        after = self._pointwise.bind(rest, next(iter(self._pointwise.configs(rest))), weights)
        return after_library(site, rest, fill, after, packed_bytes=packed)

    def _lay(self, weight_kn: Tensor, config: Config) -> Tensor:
        """The weight in the order the config asks for; always as [K, N]."""
        return weight_kn.contiguous() if config["weight"] == "kn" else weight_kn.t().contiguous().t()

    def _bind_fill(
        self,
        site: Site,
        product: Product,
        taken: Absorbed,
        weight: Tensor,
        bias: Tensor | None,
        config: Config,
    ) -> Fill:
        slot, rows = product.slot, product.rows_of
        addend = site.body.inputs.index(taken.residual) if taken.residual else -1

        def fill(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> None:
            x, y = rows(inputs[slot]), rows(outputs[0])
            if taken.activation and bias is not None:
                torch._addmm_activation(bias, x, weight, use_gelu=taken.activation == "gelu_tanh", out=y)
            elif bias is not None:
                torch.addmm(bias, x, weight, out=y)
            elif addend >= 0:
                torch.addmm(rows(inputs[addend]), x, weight, out=y)
            else:
                torch.mm(x, weight, out=y)

        return fill


def after_library(
    site: Site,
    rest: Site,
    fill: Callable[[Sequence[Any], Sequence[Tensor]], object],
    after: Launch,
    *,
    packed_bytes: int,
) -> Launch:
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

    def call(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> None:
        freeze(inputs, outputs)()

    return Launch(
        call, writes_out=True, freeze=freeze, packed_bytes=packed_bytes + after.packed_bytes,
        note=after.note,
    )  # fmt: skip
