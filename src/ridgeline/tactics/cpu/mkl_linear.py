"""Linear layers through MKL: a weight packed for one row count, or plain products into the output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ridgeline.base.spec import Config, Layout, Site
from ridgeline.tactics.base import Launch, Offer, Refused, Tactic
from ridgeline.tactics.cpu.onednn_linear import HALVES, Run, bind_allocating, read_packed_linear
from ridgeline.tactics.read.epilogue import AnchorSite, bind_epilogue, bind_steps, constant_tensors
from ridgeline.tactics.read.linear import LinearSite, order_weight, read_linear

# product(x, out) fills out with x @ w, plus the bias if there is one
Fill: TypeAlias = Callable[[Tensor, Tensor], object]
# up to here the product is bound by reading the weight, and a bias outside it is worth timing too
FEW_ROWS = 4


class MklLinear(Tactic):
    """y = x @ w + b with the weight packed by MKL's sgemm."""

    name = "mkl.linear"
    runs_on = "cpu"

    def offer(self, site: Site) -> Offer | Refused:
        if not torch._C.has_mkl:
            return Refused("this torch was built without MKL")
        return Offer(({},), partial(_bind_packed, site, read_packed_linear(site)))


def _bind_packed(site: Site, linear: LinearSite, config: Config, weights: Mapping[str, Tensor]) -> Launch:
    constants = constant_tensors(site, weights)
    weight = linear.weight_kn(constants[linear.weight])
    run = bind_mkl(weight, linear.bias(constants), rows=linear.rows)
    return bind_allocating(site, linear, run, constants)


class AtenLinear(Tactic):
    """y = x @ w + b by torch's own product, written straight into the output."""

    name = "aten.linear"
    runs_on = "cpu"

    def offer(self, site: Site) -> Offer | Refused:
        linear = read_linear(site)
        if not linear.x.is_float:
            return Refused(f"activations are {linear.x.dtype}, want a float type")
        has_bias = bool(linear.biases or linear.epilogue.split_bias()[0])
        places = ("inside", "after") if has_bias and linear.rows <= FEW_ROWS else ("inside",)
        configs = [{"weight": order, "bias": place} for order in ("kn", "nk") for place in places]
        return Offer(configs, partial(_bind, site, linear))


def _bind(site: Site, linear: LinearSite, config: Config, weights: Mapping[str, Tensor]) -> Launch:
    constants = constant_tensors(site, weights)
    weight = order_weight(linear.weight_kn(constants[linear.weight]), str(config["weight"]))
    product = bind_product(weight, linear.bias(constants), is_bias_after=config["bias"] == "after")
    stored = constants[linear.weight]
    packed_bytes = 0 if weight.data_ptr() == stored.data_ptr() else weight.nbytes
    slot, rows, depth, columns = linear.slot, linear.rows, linear.depth, linear.channels
    is_transposed = linear.is_x_transposed

    def fill(x: Tensor, y: Tensor) -> None:
        product(x.t() if is_transposed else x.reshape(rows, depth), y.view(rows, columns))

    launch = bind_filling(site, linear, fill, constants, layout="contiguous", packed_bytes=packed_bytes)
    if linear.x.dtype in HALVES and not HALVES[linear.x.dtype]():
        widened = f"{linear.x.dtype} is only stored here: the processor computes its products in float32"
        launch = replace(launch, note="; ".join(filter(None, (launch.note, widened))))
    if not launch.writes_out:
        return launch
    applies = bind_steps(site, linear.steps, constants)

    def freeze(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> Callable[[], object]:
        x, y = inputs[slot], outputs[0]
        # reshaping a strided activation copies it, and a frozen copy would go stale
        if not (is_transposed or x.is_contiguous()):
            return partial(launch.call, inputs, outputs)
        x, y2 = x.t() if is_transposed else x.view(rows, depth), y.view(rows, columns)
        if not applies:
            return partial(product, x, y2)

        def run() -> None:
            product(x, y2)
            for apply in applies:
                apply(y, inputs)

        return run

    return replace(launch, freeze=freeze)


def bind_filling(
    site: Site,
    found: AnchorSite,
    fill: Fill,
    constants: Mapping[str, Tensor],
    *,
    layout: Layout,
    packed_bytes: int,
) -> Launch:
    """A launch around `fill(x, y)`: into the output if the steps end there and it lies so, else a new y."""
    slot, shape, strides = found.slot, found.y.shape, replace(found.y, layout=layout).strides
    if found.epilogue.is_all_of(site.body) and site.outputs[0].layout == layout:
        applies = bind_steps(site, found.steps, constants)

        def call(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> None:
            fill(inputs[slot], outputs[0])
            for apply in applies:
                apply(outputs[0], inputs)

        return Launch(call, writes_out=True, packed_bytes=packed_bytes)
    finish = bind_epilogue(site, found.epilogue, found.steps, constants)

    def call_allocating(inputs: Sequence[Any], _: Sequence[Tensor]) -> tuple[Tensor, ...]:
        y = inputs[slot].new_empty_strided(shape, strides)
        fill(inputs[slot], y)
        return finish(y, inputs)

    return Launch(call_allocating, packed_bytes=packed_bytes, note=found.epilogue.note)


def bind_mkl(weight_kn: Tensor, bias: Tensor | None, *, rows: int) -> Run:
    """The packed product over the last axis of an activation with exactly `rows` rows in all."""
    weight = weight_kn.t().contiguous()
    packed = torch.ops.mkl._mkl_reorder_linear_weight(weight, rows)
    op = torch.ops.mkl._mkl_linear.default
    return lambda x, _: op(x, packed, weight, bias, rows)


def bind_product(weight: Tensor, bias: Tensor | None, *, is_bias_after: bool) -> Fill:
    if bias is None:
        return lambda x, out: torch.mm(x, weight, out=out)
    if not is_bias_after:
        return lambda x, out: torch.addmm(bias, x, weight, out=out)
    return lambda x, out: torch.mm(x, weight, out=out).add_(bias)
