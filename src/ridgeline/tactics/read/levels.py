"""How a region around a product of quantised operands is read: levels, scales, zero points, and the rest.

The rest is a site over numbers: what `read_linear` and `read_conv` read, with the numbers of both operands as
inputs in the places of their levels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Body, Op, Site, TensorSpec
from ridgeline.ir.quant import dequantizes
from ridgeline.tactics.read.epilogue import find_anchor, is_constant, spec_of

ANCHORS = ("MatMul", "Gemm", "Conv")


@dataclass(frozen=True)
class LevelsSite:
    """A product of x and a constant weight, both dequantised inside the region."""

    numbers: Site  # the region without the two DequantizeLinear
    anchor: Op
    x: TensorSpec  # of the levels
    x_slot: int
    x_scale: str
    x_zero: str  # "" for none
    weight: str  # levels of 8 bits, with a sign unless they have zero points
    weight_scale: str
    is_per_channel: bool
    weight_zero: str = ""  # a constant as long as the scale; "" for none

    @property
    def is_signed(self) -> bool:
        return self.x.dtype == "int8"


def read_levels(site: Site, *, may_shift: bool = False) -> LevelsSite:
    """The product of levels of the region, or `RefusedError`. With `may_shift` weights have zero points."""
    anchor = find_anchor(site.body, ANCHORS)
    of_x, of_weight = (_dequantizer(site, anchor, place) for place in (0, 1))
    levels, scale, zero = (*of_x.inputs, "")[:3]
    if levels not in site.body.inputs or is_constant(site, levels):
        raise RefusedError("the left operand is not an input of the region")
    x = site.specs[levels]
    if x.dtype not in ("int8", "uint8"):
        raise RefusedError(f"levels of x are {x.dtype}, want 8-bit integers")
    if spec_of(site, scale).numel != 1 or (zero and spec_of(site, zero).numel != 1):
        raise RefusedError("x has several scales, want one")
    for name in (scale, zero):
        if name and name not in site.body.inputs:
            raise RefusedError(f"{name!r} is made inside the region")
    weight, weight_scale, weight_zero = _weight(site, anchor, of_weight, may_shift=may_shift)
    return LevelsSite(
        _numbers(site, of_x, of_weight), anchor, x, site.body.inputs.index(levels), scale, zero, weight,
        weight_scale, spec_of(site, weight_scale).numel > 1, weight_zero,
    )  # fmt: skip


@dataclass(frozen=True)
class NarrowWeightSite:
    """A product of float x and a constant weight of levels around 0."""

    numbers: Site  # the region without the DequantizeLinear of the weight
    weight: str
    weight_scale: str
    block: int  # of K; 0: one scale per column, or one in all
    is_per_column: bool


def read_narrow_weight(site: Site) -> NarrowWeightSite:
    """The matrix product with quantised weights of the region, or `RefusedError`."""
    anchor = find_anchor(site.body, ("MatMul", "Gemm"))
    dequantize = _dequantizer(site, anchor, 1)
    weight, scale, zero = (*dequantize.inputs, "")[:3]
    if not is_constant(site, weight) or not is_constant(site, scale):
        raise RefusedError("the weight changes between runs")
    spec, scales = spec_of(site, weight), spec_of(site, scale)
    if spec.dtype not in ("int8", "int4") or zero or len(spec.shape) != 2:
        around = " with zero points" if zero else ""
        raise RefusedError(f"weights are {spec}{around}, want a matrix of int8 or int4 around 0")
    block = int(dequantize.attrs.get("block_size", 0)) if scales.numel > 1 else 0
    summed = 1 if anchor.attrs.get("transB", 0) else 0
    axis = int(dequantize.attrs.get("axis", 1)) % 2
    if scales.numel > 1 and axis != (summed if block else 1 - summed):
        raise RefusedError(f"scales lie along axis {axis}, want blocks of K or columns")
    return NarrowWeightSite(_numbers(site, dequantize), weight, scale, block, scales.numel > 1)


def _dequantizer(site: Site, anchor: Op, place: int) -> Op:
    op = site.body.producer(anchor.inputs[place])
    side = ("left", "right")[place]
    if op is None or not dequantizes(op):
        raise RefusedError(f"the {side} operand of the {anchor.op_type} is not quantised")
    made = op.outputs[0]
    if len(site.body.consumers(made)) != 1 or made in site.body.outputs:
        raise RefusedError(f"the numbers of the {side} operand are needed elsewhere too")
    if site.specs[made].dtype != "float32":
        raise RefusedError(f"numbers of the {side} operand are {site.specs[made].dtype}, want float32")
    if len(site.body.consumers(op.inputs[0])) != 1:
        raise RefusedError(f"the levels of the {side} operand are read twice")
    return op


def _weight(site: Site, anchor: Op, dequantize: Op, *, may_shift: bool) -> tuple[str, str, str]:
    """The names of the weight's levels, scale and zero point: one number, or one per output channel."""
    weight, scale, zero = (*dequantize.inputs, "")[:3]
    if not is_constant(site, weight) or not is_constant(site, scale):
        raise RefusedError("the weight changes between runs")
    spec, scales = spec_of(site, weight), spec_of(site, scale)
    is_shifted = spec.dtype != "int8" or bool(zero)
    if is_shifted and not (may_shift and spec.dtype in ("int8", "uint8")):
        raise RefusedError(
            f"weights are {spec.dtype}{' with zero points' if zero else ''}, want int8 around 0"
        )
    if zero and (not is_constant(site, zero) or spec_of(site, zero).numel != scales.numel):
        raise RefusedError("zero points of the weight change between runs, or are not as many as its scales")
    if int(dequantize.attrs.get("block_size", 0)) and scales.numel > 1:
        raise RefusedError("weights have scales for blocks")
    is_by_rows = anchor.op_type == "Conv" or bool(anchor.attrs.get("transB", 0))
    axis = int(dequantize.attrs.get("axis", 1)) % max(len(spec.shape), 1)
    if scales.numel > 1 and axis != (0 if is_by_rows else len(spec.shape) - 1):
        raise RefusedError(f"weights have scales along axis {axis}, which is summed over")
    if anchor.op_type != "Conv" and (len(spec.shape) != 2 or math.prod(spec.shape) == 0):
        raise RefusedError(f"weight has shape {list(spec.shape)}, want a matrix")
    return weight, scale, zero


def _numbers(site: Site, *dequantizers: Op) -> Site:
    """The site as it reads numbers in the places of these levels."""
    made = {op.inputs[0]: op.outputs[0] for op in dequantizers}
    body = site.body
    names = tuple(made.get(name, name) for name in body.inputs)
    ops = tuple(op for op in body.ops if not any(op is taken for taken in dequantizers))
    if not all(name in body.inputs for name in made):
        raise RefusedError("levels are a constant of the body")
    return replace(
        site,
        body=Body(names, body.outputs, ops, body.constants),
        weights=frozenset(made.get(name, name) for name in site.weights),
    )
