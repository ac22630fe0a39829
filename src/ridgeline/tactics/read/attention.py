"""How a region around an Attention op is read: heads, scale, mask, and the views on both sides of it.

Splits, slices, reshapes and transposes between the region's inputs and the op become views; where no view
needs a copy, an operand has a place in its input's memory that a kernel can read directly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Op, Site, TensorSpec
from ridgeline.ir.moves import moves_of
from ridgeline.ir.op_given import given_of
from ridgeline.ir.op_row import Trait
from ridgeline.ir.ops import has
from ridgeline.tactics.base import Launch
from ridgeline.tactics.read.epilogue import find_anchor, to_layout

# B batch, H heads, S queries, T keys, D head width

IN_REGION = "in the region"


@dataclass(frozen=True)
class Reshape:
    """The same elements in the same order. The tensor is copied unless a view will do."""

    before: tuple[int, ...]
    after: tuple[int, ...]

    def __call__(self, x: Tensor) -> Tensor:
        return x.reshape(self.after)

    def in_place(self, x: Tensor) -> Tensor:
        """Raises where elements would move."""
        return x.view(self.after)

    def inverse(self) -> Reshape:
        return Reshape(self.after, self.before)


@dataclass(frozen=True)
class Permute:
    """The same elements, axes in another order."""

    order: tuple[int, ...]

    def __call__(self, x: Tensor) -> Tensor:
        return x.permute(self.order)

    in_place = __call__

    def inverse(self) -> Permute:
        return Permute(tuple(self.order.index(axis) for axis in range(len(self.order))))


@dataclass(frozen=True)
class Part:
    """Some of the elements along one axis: a Split's output, a Slice."""

    axis: int
    start: int
    length: int

    def __call__(self, x: Tensor) -> Tensor:
        return x.narrow(self.axis, self.start, self.length)

    in_place = __call__


Around: TypeAlias = Reshape | Permute  # what may follow the op
View: TypeAlias = Around | Part
# attend(q, k, v, mask) -> [B, H, S, D]
Attend: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor | None], Any]


@dataclass(frozen=True)
class Place:
    """Where the elements of a four-axis view lie in their tensor, counted in elements."""

    offset: int
    strides: tuple[int, ...]

    def past(self, shape: tuple[int, ...]) -> int:
        """One past the last element of the view."""
        return self.offset + 1 + sum(s * (n - 1) for s, n in zip(self.strides, shape, strict=True))

    def of(self, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The view itself, of a tensor that lies as its spec says."""
        return tensor.as_strided(shape, self.strides, tensor.storage_offset() + self.offset)


@dataclass(frozen=True)
class Operand:
    """One of q, k, v, mask: which input of the region, and the views that give it four axes."""

    slot: int
    views: tuple[View, ...]
    shape: tuple[int, ...]  # the mask's is that of the scores: strides are 0 where it is broadcast
    place: Place | None  # None: a view needs a copy

    def see(self, inputs: Sequence[Any]) -> Tensor:
        x: Tensor = inputs[self.slot]
        for view in self.views:
            x = view(x)
        return x


@dataclass(frozen=True)
class AttentionSite:
    """softmax(scale * q @ kᵀ + mask) @ v with q of [B, H, S, D] and k, v of [B, H / groups, T, D]."""

    operands: tuple[Operand, Operand, Operand]
    # what replaces a NaN result: an input of [B, H, 1, D], or IN_REGION: zero times the values
    guard: Operand | str | None
    mask: Operand | None
    mask_dtype: str  # "" without a mask
    result: tuple[Around, ...]  # from [B, H, S, D] to the output of the region
    result_place: Place | None  # of [B, H, S, D] in the output; None: a view needs a copy
    out: TensorSpec  # of the region
    dtype: str
    scores: tuple[int, int, int, int]  # B, H, S, T
    width: int
    value_width: int
    groups: int
    scale: float
    is_causal: bool
    math: str = ""  # of both products: `Op.math`

    @property
    def result_shape(self) -> tuple[int, ...]:
        return (*self.scores[:3], self.value_width)

    def launch(self, attend: Attend) -> Launch:
        """A launch of `attend(q, k, v, mask)` that gives [B, H, S, D]."""
        (q, k, v), mask = self.operands, self.mask
        views, lay, guard, groups = self.result, to_layout(self.out), self.guard, self.groups

        def call(inputs: Sequence[Any], _: Sequence[Tensor]) -> tuple[Tensor, ...]:
            values = v.see(inputs)
            y = attend(q.see(inputs), k.see(inputs), values, None if mask is None else mask.see(inputs))
            if isinstance(guard, Operand):
                y = torch.where(y.isnan(), guard.see(inputs), y)
            elif guard is not None:
                nothing = (values * 0).sum(2, keepdim=True)
                y = torch.where(y.isnan(), nothing.repeat_interleave(groups, 1), y)
            for view in views:
                y = view(y)
            return (lay(y),)

        return Launch(call)

    def causal_bias(self) -> Tensor:
        """[S, T], minus infinity above the diagonal that starts in the upper left corner."""
        _, _, queries, keys = self.scores
        full = torch.full((queries, keys), -math.inf, dtype=getattr(torch, self.dtype))
        return torch.triu(full, diagonal=1)

    def bind_causal_mask(self) -> Callable[[Tensor], Tensor]:
        """The mask with everything after the query masked out as well."""
        bias = self.causal_bias()
        triangle = bias == 0 if self.mask_dtype == "bool" else bias

        # once per device, not once per run
        @cache
        def on(device: torch.device) -> Tensor:
            return triangle.to(device)

        if self.mask_dtype == "bool":
            return lambda mask: mask & on(mask.device)
        return lambda mask: mask + on(mask.device)


def read_attention(site: Site) -> AttentionSite:
    """The attention of the region; `RefusedError` where it is not one that fused kernels take."""
    op = find_anchor(site.body, ("Attention",))
    _require_plain(site, op)
    q, k = (site.specs[name] for name in op.inputs[:2])
    heads, kv_heads = _heads(op, q, "q_num_heads"), _heads(op, k, "kv_num_heads")
    scores = (q.shape[0], heads, q.shape[-2], k.shape[-2])
    counts = (heads, kv_heads, kv_heads)
    operands = [_operand(site, name, n) for name, n in zip(op.inputs[:3], counts, strict=True)]
    width, _, value_width = (operand.shape[3] for operand in operands)
    mask = op.inputs[3] if len(op.inputs) > 3 else ""
    guard, made = _guard(site, op, heads)
    result = (*_join_heads(site.specs[op.outputs[0]], heads), *_views_after(site, made))
    return AttentionSite(
        operands=(operands[0], operands[1], operands[2]),
        guard=guard,
        mask=_mask(site, mask, scores, q.dtype) if mask else None,
        mask_dtype=site.specs[mask].dtype if mask else "",
        result=result,
        result_place=_place(site.outputs[0], [view.inverse() for view in reversed(result)]),
        out=site.outputs[0],
        dtype=q.dtype,
        scores=scores,
        width=width,
        value_width=value_width,
        groups=heads // kv_heads,
        scale=float(op.attrs.get("scale", 1.0 / math.sqrt(width))),
        is_causal=bool(op.attrs.get("is_causal", 0)),
        math=op.math,
    )


def _require_plain(site: Site, op: Op) -> None:
    """Refuse what only the floor computes."""
    if any(op.inputs[4:]):
        raise RefusedError("past keys and values, or padded lengths, come in")
    if any(op.outputs[1:]):
        raise RefusedError("present keys and values, or the scores, go out")
    if op.attrs.get("softcap", 0.0):
        raise RefusedError(f"softcap is {op.attrs['softcap']}")
    if any(op.attrs.get(f"{side}_window_size", -1) >= 0 for side in ("left", "right")):
        raise RefusedError("a query sees a window of keys only")
    specs = [site.specs[name] for name in op.inputs[:3]]
    if not specs[0].is_float or len({spec.dtype for spec in specs}) != 1:
        raise RefusedError("dtypes are " + ", ".join(s.dtype for s in specs) + ", want one float type")
    if op.attrs.get("softmax_precision", 1) == 11 and specs[0].dtype != "float64":
        raise RefusedError("softmax is asked for in float64")
    if any(not spec.numel for spec in specs):
        raise RefusedError("a tensor is empty")


def _heads(op: Op, spec: TensorSpec, attr: str) -> int:
    return spec.shape[1] if len(spec.shape) == 4 else int(op.attrs[attr])


def _mask(site: Site, name: str, scores: tuple[int, int, int, int], dtype: str) -> Operand:
    """The mask broadcast over the scores, by its strides alone."""
    if name not in site.body.inputs:
        raise RefusedError(f"mask {name!r} is made inside the region")
    spec = site.specs[name]
    if spec.dtype not in ("bool", dtype):
        raise RefusedError(f"mask is {spec.dtype}, want bool or {dtype}")
    if not 2 <= len(spec.shape) <= 4:
        raise RefusedError(f"mask has {len(spec.shape)} axes, want 2 to 4")
    # newer opsets pad a shorter mask, older ones broadcast it: the floor knows which
    if spec.shape[-1] != scores[3]:
        raise RefusedError(f"mask covers {spec.shape[-1]} of {scores[3]} keys")
    whole = (1,) * (4 - len(spec.shape)) + spec.shape
    if any(size not in (1, full) for size, full in zip(whole, scores, strict=True)):
        raise RefusedError(f"mask of {list(spec.shape)} does not broadcast to scores of {list(scores)}")
    # the fused operators want two or four axes
    views = (Reshape(spec.shape, whole),) if len(spec.shape) == 3 else ()
    lying = torch.empty_strided(spec.shape, spec.strides, device="meta").view(whole).expand(scores)
    return Operand(site.body.inputs.index(name), views, scores, Place(0, lying.stride()))


def _operand(site: Site, name: str, heads: int) -> Operand:
    slot, views = _views_before(site, name)
    shape = site.specs[name].shape
    if len(shape) == 3:
        split = (*shape[:2], heads, shape[2] // heads)
        views = (*views, Reshape(shape, split), Permute((0, 2, 1, 3)))
        shape = (split[0], heads, split[1], split[3])
    source = site.inputs[slot]
    assert source is not None, "a settled site knows the specs of what it reads"
    return Operand(slot, views, shape, _place(source, views))


def _place(spec: TensorSpec, views: Sequence[View]) -> Place | None:
    """Where the views of a tensor lie in it, found on a tensor without memory."""
    x = torch.empty_strided(spec.shape, spec.strides, device="meta")
    try:
        for view in views:
            x = view.in_place(x)
    except RuntimeError:  # torch's word for a view that would have to move elements
        return None
    return Place(int(x.storage_offset()), x.stride())


def _join_heads(spec: TensorSpec, heads: int) -> tuple[Around, ...]:
    if len(spec.shape) == 4:
        return ()
    split = (*spec.shape[:2], heads, spec.shape[2] // heads)
    return (Permute((0, 2, 1, 3)), Reshape(split, spec.shape))


def _views_before(site: Site, name: str) -> tuple[int, tuple[View, ...]]:
    views: list[View] = []
    while name not in site.body.inputs:
        op = site.body.producer(name)
        view = _view(site, op, name) if op is not None else None
        if op is None or view is None:
            raise RefusedError(f"{op.op_type if op else 'a constant'} feeds the Attention inside the region")
        views.append(view)
        name = op.inputs[0]
    return site.body.inputs.index(name), tuple(reversed(views))


def _guard(site: Site, op: Op, heads: int) -> tuple[Operand | str | None, str]:
    """Where(IsNaN(y), other, y) behind an Attention: what the other value is, and the name of the result."""
    body, name = site.body, op.outputs[0]
    users = {user.op_type: user for user in body.consumers(name)}
    if users.keys() != {"IsNaN", "Where"}:
        return None, name
    where, other = users["Where"], users["Where"].inputs[1]
    keys = 2 if len(site.specs[name].shape) == 4 else 1
    if where.inputs != (users["IsNaN"].outputs[0], other, name) or site.specs[other].shape[keys] != 1:
        raise RefusedError("what stands for NaN is not one row for all queries")
    if other in body.inputs:
        return _operand(site, other, heads), where.outputs[0]
    total = body.producer(other)
    product = body.producer(total.inputs[0]) if total is not None else None
    if total is None or product is None or (product.op_type, total.op_type) != ("Mul", "ReduceSum"):
        raise RefusedError(f"{total.op_type if total else 'a constant'} makes what stands for NaN")
    zero = body.constants.get(product.inputs[1])
    is_nothing = product.inputs[0] == op.inputs[2] and zero is not None and not np.any(zero)
    if not is_nothing or _known(site, total.inputs[1]) != [keys]:
        raise RefusedError("what stands for NaN is not zero times the values")
    return IN_REGION, where.outputs[0]


def _views_after(site: Site, name: str) -> tuple[Around, ...]:
    views: list[Around] = []
    while site.body.outputs != (name,):
        users = site.body.consumers(name)
        view = _view(site, users[0], users[0].outputs[0]) if len(users) == 1 else None
        if view is None or isinstance(view, Part):
            followed_by = users[0].op_type if users else "another output"
            raise RefusedError(f"{followed_by} follows the Attention inside the region")
        views.append(view)
        name = users[0].outputs[0]
    return tuple(views)


def _view(site: Site, op: Op, made: str) -> View | None:
    """The op as a view of its first input; None when it is not one."""
    before, after = site.specs[op.inputs[0]].shape, site.specs[made].shape
    moves = moves_of(given_of(site, op)) if has(op, Trait.STRIDED) or op.key == "Split" else None
    move = next((move for move in moves or () if op.outputs[move.result] == made), None)
    if move is None or move.is_reshape:
        return None if move is None else Reshape(before, after)
    if op.key == "Transpose":
        return Permute(move.order)
    narrowed = move.narrowed(before)
    return None if narrowed is None else Part(*narrowed)


def _known(site: Site, name: str) -> list[int] | None:
    array = site.body.constants.get(name, site.values.get(name)) if name else None
    return None if array is None else [int(n) for n in np.asarray(array).reshape(-1)]
