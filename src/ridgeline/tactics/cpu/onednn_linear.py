"""Linear layers through oneDNN: the weight reordered once for the row count, post-ops in the same call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Config, Site
from ridgeline.tactics.base import Launch, Offer, Tactic
from ridgeline.tactics.read.epilogue import AnchorSite, Binary, Step, Unary, bind_epilogue, constant_tensors
from ridgeline.tactics.read.linear import LinearSite, read_linear

# half types, and whether oneDNN computes with them on this processor: AVX512_BF16 or AMX, AVX512_FP16
HALVES: Mapping[str, Callable[[], bool]] = {
    "bfloat16": lambda: bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()),
    "float16": lambda: bool(torch.ops.mkldnn._is_mkldnn_fp16_supported()),
}
# from the activation and the region's inputs to a fresh result
Run: TypeAlias = Callable[[Tensor, Sequence[Any]], Any]


class OneDnnLinear(Tactic):
    """y = post(x @ w + b) in one oneDNN call."""

    name = "onednn.linear"
    runs_on = "cpu"

    def offer(self, site: Site) -> Offer:
        linear = read_packed_linear(site, HALVES)
        # measured on AVX2 and AVX-512: neither the post-op nor torch's own pass wins everywhere
        choices = (True, False) if fusible(linear.steps) else (False,)
        return Offer([{"post_ops": chosen} for chosen in choices], partial(_bind, site, linear))


def _bind(site: Site, linear: LinearSite, config: Config, weights: Mapping[str, Tensor]) -> Launch:
    constants = constant_tensors(site, weights)
    fused = fusible(linear.steps) if config["post_ops"] else ()
    weight = linear.weight_kn(constants[linear.weight])
    run = bind_onednn(site, weight, linear.bias(constants), rows=linear.rows, fused=fused)
    return bind_allocating(site, linear, run, constants, n_fused=len(fused))


def read_packed_linear(site: Site, halves: Mapping[str, Callable[[], bool]] | None = None) -> LinearSite:
    """As `read_linear`, of what a packed product takes: float32, and half types with instructions here."""
    linear = read_linear(site)
    dtype = linear.x.dtype
    if dtype != "float32" and dtype not in (halves or {}):
        raise RefusedError(f"activations are {dtype}, want float32")
    if halves and dtype in halves and not (site.target.exists and halves[dtype]()):
        raise RefusedError(f"this processor has no {dtype} products: they would be computed in float32")
    if linear.x.layout != "contiguous":
        raise RefusedError(f"activations lie {linear.x.layout}, want contiguous")
    if linear.is_x_transposed:
        raise RefusedError("the activation is transposed")
    return linear


def fusible(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The head of the steps that one oneDNN linear call takes as post-op."""
    first = steps[0] if steps else None
    if isinstance(first, Unary) or (isinstance(first, Binary) and first.is_full):
        return (first,)
    return ()


def bind_onednn(
    site: Site, weight_kn: Tensor, bias: Tensor | None, *, rows: int, fused: Sequence[Step]
) -> Run:
    """The packed product over the last axis of an activation with `rows` rows in all."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight_kn.t().contiguous(), rows)
    if fused and isinstance(fused[0], Binary):
        slot, kind = site.body.inputs.index(fused[0].other), fused[0].name
        with_other = torch.ops.mkldnn._linear_pointwise.binary
        return lambda x, inputs: with_other(x, inputs[slot], packed, bias, kind)
    op, post = torch.ops.mkldnn._linear_pointwise.default, unary_args(fused)
    return lambda x, _: op(x, packed, bias, *post)


def unary_args(fused: Sequence[Step]) -> tuple[str, list[float], str]:
    """The post-op as torch's oneDNN operators take it."""
    post = fused[0] if fused else Unary("none")
    assert isinstance(post, Unary), f"{post} is not a unary post-op"
    return post.name, [*post.scalars], post.algorithm


def bind_allocating(
    site: Site, found: AnchorSite, run: Run, constants: Mapping[str, Tensor], *, n_fused: int = 0
) -> Launch:
    """A launch around a call that allocates its result: the steps left over in place, then the rest."""
    finish = bind_epilogue(site, found.epilogue, found.steps[n_fused:], constants)
    slot = found.slot
    return Launch(
        lambda inputs, _: finish(run(inputs[slot], inputs), inputs),
        packed_bytes=constants[found.weight].nbytes,
        note=found.epilogue.note,
    )
