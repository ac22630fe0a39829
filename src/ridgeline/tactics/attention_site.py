"""How a region around an Attention op is read: heads, scale, mask, and the views on both sides of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ridgeline.spec import Op, Site, TensorSpec
from ridgeline.tactics.epilogue import find_anchor, to_layout

# B batch, H heads, S queries, T keys, D head width

View: TypeAlias = Callable[[Tensor], Tensor]
VIEW_OPS = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity")


@dataclass(frozen=True)
class Operand:
    """One of q, k, v: which input of the region, and the views that make it [B, H, S, D]."""

    slot: int
    views: tuple[View, ...]


@dataclass(frozen=True)
class AttentionSite:
    """softmax(scale * q @ kᵀ + mask) @ v with q of [B, H, S, D] and k, v of [B, H / groups, T, D]."""

    operands: tuple[Operand, ...]
    mask_slot: int | None
    mask_dtype: str  # "" without a mask
    mask_shape: tuple[int, ...]
    result: tuple[View, ...]  # from [B, H, S, D] to the output of the region
    dtype: str
    scores: tuple[int, int, int, int]  # B, H, S, T
    width: int
    value_width: int
    groups: int
    scale: float
    is_causal: bool

    def bind_views(self) -> Callable[[Sequence[Any]], tuple[Tensor, Tensor, Tensor, Tensor | None]]:
        """From the region's inputs to q, k, v and the mask as they enter the product."""
        (q, k, v), mask_slot, mask_shape = self.operands, self.mask_slot, self.mask_shape

        def view(inputs: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
            mask = None if mask_slot is None else inputs[mask_slot].view(mask_shape)
            return _see(q, inputs), _see(k, inputs), _see(v, inputs), mask

        return view

    def bind_result(self, site: Site) -> View:
        views, lay = self.result, to_layout(site.outputs[0])
        return lambda y: lay(reduce(_apply, views, y))

    def causal_bias(self) -> Tensor:
        """[S, T], minus infinity above the diagonal that starts in the upper left corner."""
        _, _, queries, keys = self.scores
        full = torch.full((queries, keys), -math.inf, dtype=getattr(torch, self.dtype))
        return torch.triu(full, diagonal=1)

    def bind_causal_mask(self) -> Callable[[Tensor | None], Tensor]:
        """The mask with everything after the query masked out as well."""
        bias = self.causal_bias()
        if self.mask_dtype != "bool":
            return lambda mask: bias if mask is None else mask + bias
        allowed = bias == 0
        return lambda mask: allowed if mask is None else mask & allowed


def _see(operand: Operand, inputs: Sequence[Any]) -> Tensor:
    x: Tensor = inputs[operand.slot]
    for view in operand.views:
        x = view(x)
    return x


def _apply(x: Tensor, view: View) -> Tensor:
    return view(x)


def require_attention(site: Site) -> AttentionSite:
    """As `read_attention`, for a site that was not refused."""
    found = read_attention(site)
    assert not isinstance(found, str), f"a refused site came back: {found}"
    return found


def read_attention(site: Site) -> AttentionSite | str:
    """The attention of the region, or why it is not one that torch's operators take."""
    op = find_anchor(site.body, ("Attention",))
    if isinstance(op, str):
        return op
    refusal = _why_not(site, op)
    if refusal:
        return refusal
    q, k, v = (site.specs[name] for name in op.inputs[:3])
    heads, kv_heads = _heads(op, q, "q_num_heads"), _heads(op, k, "kv_num_heads")
    queries, keys = q.shape[-2], k.shape[-2]
    width, value_width = _width(q, heads), _width(v, kv_heads)
    operands = []
    for name, spec, count in zip(op.inputs[:3], (q, k, v), (heads, kv_heads, kv_heads), strict=True):
        found = _views_before(site, name)
        if isinstance(found, str):
            return found
        slot, views = found
        operands.append(Operand(slot, (*views, *_split_heads(spec, count))))
    result = _views_after(site, op)
    if isinstance(result, str):
        return result
    mask = op.inputs[3] if len(op.inputs) > 3 else ""
    mask_shape = site.specs[mask].shape if mask else ()
    return AttentionSite(
        operands=tuple(operands),
        mask_slot=site.body.inputs.index(mask) if mask else None,
        mask_dtype=site.specs[mask].dtype if mask else "",
        # the fused operators want two or four axes
        mask_shape=(1, *mask_shape) if len(mask_shape) == 3 else mask_shape,
        result=(*_join_heads(site.specs[op.outputs[0]]), *result),
        dtype=q.dtype,
        scores=(q.shape[0], heads, queries, keys),
        width=width,
        value_width=value_width,
        groups=heads // kv_heads,
        scale=float(op.attrs.get("scale", 1.0 / math.sqrt(width))),
        is_causal=bool(op.attrs.get("is_causal", 0)),
    )


def _why_not(site: Site, op: Op) -> str | None:
    if site.target.kind != "cpu":
        return f"target is {site.target}, these operators are for cpu"
    if any(op.inputs[4:]):
        return "past keys and values, or padded lengths, come in"
    if any(op.outputs[1:]):
        return "present keys and values, or the scores, go out"
    if op.attrs.get("softcap", 0.0):
        return f"softcap is {op.attrs['softcap']}"
    specs = [site.specs[name] for name in op.inputs[:3]]
    if not specs[0].is_float or len({spec.dtype for spec in specs}) != 1:
        return "dtypes are " + ", ".join(spec.dtype for spec in specs) + ", want one float type"
    precision = op.attrs.get("softmax_precision", 1)
    if precision == 11 and specs[0].dtype != "float64":
        return "softmax is asked for in float64"
    if any(not spec.numel for spec in specs):
        return "a tensor is empty"
    mask = op.inputs[3] if len(op.inputs) > 3 else ""
    if not mask:
        return None
    if mask not in site.body.inputs:
        return f"mask {mask!r} is made inside the region"
    spec = site.specs[mask]
    if spec.dtype not in ("bool", specs[0].dtype):
        return f"mask is {spec.dtype}, want bool or {specs[0].dtype}"
    if not 2 <= len(spec.shape) <= 4:
        return f"mask has {len(spec.shape)} axes, want 2 to 4"
    if spec.shape[-1] not in (1, specs[1].shape[-2]):
        return f"mask covers {spec.shape[-1]} of {specs[1].shape[-2]} keys"
    return None


def _heads(op: Op, spec: TensorSpec, attr: str) -> int:
    return spec.shape[1] if len(spec.shape) == 4 else int(op.attrs[attr])


def _width(spec: TensorSpec, heads: int) -> int:
    return spec.shape[-1] if len(spec.shape) == 4 else spec.shape[-1] // heads


def _split_heads(spec: TensorSpec, heads: int) -> tuple[View, ...]:
    if len(spec.shape) == 4:
        return ()
    shape = (*spec.shape[:2], heads, spec.shape[2] // heads)
    return (lambda x: x.view(shape).transpose(1, 2),)


def _join_heads(spec: TensorSpec) -> tuple[View, ...]:
    if len(spec.shape) == 4:
        return ()
    shape = spec.shape
    return (lambda y: y.transpose(1, 2).reshape(shape),)


def _view(site: Site, op: Op) -> View:
    shape = site.specs[op.outputs[0]].shape
    if op.op_type == "Transpose":
        order = tuple(op.attrs.get("perm") or reversed(range(len(shape))))
        return lambda x: x.permute(order)
    return lambda x: x.reshape(shape)


def _views_before(site: Site, name: str) -> tuple[int, tuple[View, ...]] | str:
    views: list[View] = []
    while name not in site.body.inputs:
        op = site.body.producer(name)
        if op is None or op.op_type not in VIEW_OPS:
            return f"{op.op_type if op else 'a constant'} feeds the Attention inside the region"
        views.append(_view(site, op))
        name = op.inputs[0]
    return site.body.inputs.index(name), tuple(reversed(views))


def _views_after(site: Site, anchor: Op) -> tuple[View, ...] | str:
    views: list[View] = []
    name = anchor.outputs[0]
    while site.body.outputs != (name,):
        users = site.body.consumers(name)
        if len(users) != 1 or users[0].op_type not in VIEW_OPS:
            return (
                f"{users[0].op_type if users else 'another output'} follows the Attention inside the region"
            )
        views.append(_view(site, users[0]))
        name = users[0].outputs[0]
    return tuple(views)
