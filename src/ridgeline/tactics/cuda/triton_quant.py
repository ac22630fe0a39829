"""Products of quantised operands by our own Triton kernels: int8 and float8 on tensor cores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Op, Site
from ridgeline.kernels.scalar.anchor import Dequantized
from ridgeline.kernels.triton.products import row_stride
from ridgeline.kernels.triton.quant_products import (
    CODE_TYPES,
    MAX_INTEGER_DEPTH,
    CodeProduct,
    CodeTile,
    CodeWindow,
    pack_codes,
)
from ridgeline.kernels.triton.ranking import rank_gemm
from ridgeline.tactics.cuda.read_codes import Codes, is_settled, known_number, require_codes, settled_value
from ridgeline.tactics.cuda.triton_conv import window_of
from ridgeline.tactics.cuda.triton_product import Reading, TritonProduct
from ridgeline.tactics.read.conv import read_conv
from ridgeline.tactics.read.epilogue import find_anchor, spec_of

# M rows, K summed over, N columns
PROMOTED_SUMS = 64  # per thread; the partial sums of a step take as many registers again
PROMOTED = 4  # cuts with them
# sums that the tensor cores keep themselves lose up to 2^-14 of their size at every 32 products: up to this
# depth no more than a half type loses in a few roundings
FAST_DEPTH = 2048
FAST = 6  # cuts that are also offered with sums kept in the tensor cores


class TritonCodeGemm(TritonProduct):
    """epilogue(scales · Σ codes of x · codes of W) on tensor cores."""

    name = "triton.qgemm"
    reads_levels = True
    cut_type = CodeTile

    def read(self, site: Site) -> Reading:
        anchor = find_anchor(site.body, ("MatMul", "Gemm"))
        x, w = require_codes(site, anchor, 0), require_codes(site, anchor, 1)
        return read_code_product(site, anchor, x, w)

    def cuts(self, site: Site, problem: Any) -> Sequence[CodeTile]:
        return code_tiles(problem, site.target.arch)


class TritonCodeConv(TritonProduct):
    """epilogue(scales · Σ codes of x · codes of w over the window) as an implicit product."""

    name = "triton.qconv"
    reads_levels = True
    cut_type = CodeTile

    def read(self, site: Site) -> Reading:
        anchor = find_anchor(site.body, ("Conv",))
        x, w = require_codes(site, anchor, 0), require_codes(site, anchor, 1)
        return read_code_conv(site, anchor, x, w)

    def cuts(self, site: Site, problem: Any) -> Sequence[CodeTile]:
        return code_tiles(problem, site.target.arch)


def code_tiles(problem: Any, arch: str) -> list[CodeTile]:
    """Integer sums are exact. Of float8, cuts with float32 sums come first."""
    tiles = [CodeTile(**asdict(tile)) for tile in rank_gemm(problem, arch)]
    if problem.is_integer:
        return tiles
    narrow = rank_gemm(problem, arch, PROMOTED_SUMS)[:PROMOTED]
    promoted = [CodeTile(**asdict(tile), is_promoted=True) for tile in narrow]
    return [*promoted, *tiles[:FAST]] if problem.depth <= FAST_DEPTH else promoted


def read_code_product(site: Site, anchor: Op, x: Codes, w: Codes) -> Reading:
    """Both operands as codes: rows of x with one constant matrix."""
    if x.name not in site.body.inputs:
        raise RefusedError(f"{x.name!r} is not an input of the region")
    require_types(x, w)
    if not is_settled(site, w.name):
        raise RefusedError(f"{w.name!r} changes between runs, want a constant weight")
    if len(w.spec.shape) != 2 or len(x.spec.shape) < 2:
        raise RefusedError(
            f"operands have {len(x.spec.shape)} and {len(w.spec.shape)} axes, want rows and a matrix"
        )
    if not x.spec.numel or not w.spec.numel:
        raise RefusedError("a tensor is empty")
    if anchor.attrs.get("transA", 0) or x.is_transposed or x.spec.layout != "contiguous":
        raise RefusedError("rows of x are not contiguous")
    is_nk = bool(anchor.attrs.get("transB", 0)) != w.is_transposed
    columns, depth = w.spec.shape if is_nk else w.spec.shape[::-1]
    if w.block or w.axis not in (None, 0 if is_nk else 1):
        raise RefusedError("scales of the weight vary along the sum")
    scales = ((x.scale, row_scale_dim(x)), (w.scale, len(site.specs[anchor.outputs[0]].shape) - 1))
    slot = site.body.inputs.index(x.name)
    strides = (0, depth, 1), (0, row_stride(depth, 1), 1)
    problem = CodeProduct(
        x.spec.numel // depth, columns, depth, x.dtype, *strides, has_zero=has_zero(site, x)
    )
    if problem.is_integer and depth > MAX_INTEGER_DEPTH:
        raise RefusedError(f"{depth} products in a sum, int32 holds {MAX_INTEGER_DEPTH}")

    def prepare(weights: Mapping[str, Tensor], device: str) -> list[Tensor | int]:
        codes = centred_codes(site, weights, w).to(device)
        packed = pack_codes(codes if is_nk else codes.t())
        return [packed, *zero_operands(site, weights, x, packed[:, :depth], device)]

    return Reading(
        anchor, problem, x=slot, weight=w.name, pack=None, columns_axis=-1,
        codes=Dequantized(x.values | w.values, scales), prepare=prepare,
        prepared_bytes=columns * (row_stride(depth, 1) + 4), slots=zero_slots(site, x),
    )  # fmt: skip


def read_code_conv(site: Site, anchor: Op, x: Codes, w: Codes) -> Reading:
    """A convolution of codes; one of single positions is a product."""
    require_types(x, w)
    if x.name not in site.body.inputs:
        raise RefusedError(f"{x.name!r} is not an input of the region")
    if not is_settled(site, w.name):
        raise RefusedError(f"{w.name!r} changes between runs, want a constant weight")
    if x.axis is not None or w.block or w.axis not in (None, 0):
        raise RefusedError("scales vary along more than the channels that are made")
    conv = read_conv(of_codes(site, anchor, x, w))
    if conv.rank > 2 or conv.groups != 1:
        raise RefusedError(f"{conv.rank} spatial axes in {conv.groups} groups, want at most 2 in one")
    shifts = has_zero(site, x)
    problem: CodeProduct | CodeWindow
    if conv.is_pointwise and (conv.x.layout == "channels_last" or math.prod(conv.x.shape[2:]) == 1):
        depth = conv.x.shape[1]
        rows, strides = conv.x.numel // depth, ((0, depth, 1), (0, row_stride(depth, 1), 1))
        problem = CodeProduct(rows, conv.channels, depth, x.dtype, *strides, has_zero=shifts)
    else:
        problem = window_of(conv, CodeWindow, has_zero=shifts)
        if problem.reads_outside and x.zero and known_number(site, x.zero) != 0.0:
            raise RefusedError("the image is padded, and its zero point is not known to be zero")
    if problem.is_integer and problem.depth > MAX_INTEGER_DEPTH:
        raise RefusedError(f"{problem.depth} products in a sum, int32 holds {MAX_INTEGER_DEPTH}")

    def prepare(weights: Mapping[str, Tensor], device: str) -> list[Tensor | int]:
        codes = centred_codes(site, weights, w).to(device)
        image = codes if codes.dim() == 4 else codes.unsqueeze(2)
        rows = codes.reshape(conv.channels, -1)
        packed = problem.pack(image) if isinstance(problem, CodeWindow) else pack_codes(rows)
        return [packed, *zero_operands(site, weights, x, rows, device)]

    return Reading(
        anchor, problem, x=conv.slot, weight=w.name, pack=None, columns_axis=1,
        codes=Dequantized(x.values | w.values, ((x.scale, None), (w.scale, 1))), prepare=prepare,
        prepared_bytes=conv.channels * (row_stride(problem.depth, 1) + 4), slots=zero_slots(site, x),
    )  # fmt: skip


def of_codes(site: Site, anchor: Op, x: Codes, w: Codes) -> Site:
    """The site as if the convolution read the codes themselves: for what it says of sizes."""
    bare = replace(anchor, inputs=(x.name, w.name))
    ops = tuple(
        bare if op is anchor else op for op in site.body.ops if not set(op.outputs) & (x.values | w.values)
    )
    return replace(site, body=replace(site.body, ops=ops))


def require_types(x: Codes, w: Codes) -> None:
    integers = ("int8", "uint8")
    are_alike = x.dtype == w.dtype or (x.dtype in integers and w.dtype in integers)
    if x.dtype not in CODE_TYPES or not are_alike:
        raise RefusedError(
            f"codes are {x.dtype} and {w.dtype}, want both integers of 8 bits or one float8 type"
        )


def row_scale_dim(x: Codes) -> int | None:
    """The dim of the result along which scales of x vary; None: one scale, or one per row as [..., 1]."""
    last = len(x.spec.shape) - 1
    if x.axis is None or (x.axis == last and x.block == x.spec.shape[-1]):
        return None
    if x.axis == last or x.block:
        raise RefusedError("scales of x vary along the sum")
    return x.axis


def has_zero(site: Site, x: Codes) -> bool:
    """Whether sums are corrected for a zero point of x, or for the shift of unsigned codes."""
    if x.dtype not in ("int8", "uint8"):
        return False
    if x.zero and spec_of(site, x.zero).numel != 1:
        raise RefusedError("zero points of x differ between rows")
    return x.dtype == "uint8" or (bool(x.zero) and known_number(site, x.zero) != 0.0)


def zero_slots(site: Site, x: Codes) -> tuple[int, ...]:
    """The input that gives the zero point in every run."""
    is_given = has_zero(site, x) and x.zero and not is_settled(site, x.zero)
    if is_given and x.zero not in site.body.inputs:
        raise RefusedError(f"the zero point {x.zero!r} is made inside the region")
    return (site.body.inputs.index(x.zero),) if is_given else ()


def zero_operands(
    site: Site, weights: Mapping[str, Tensor], x: Codes, codes_nk: Tensor, device: str
) -> list[Tensor | int]:
    """The zero point of x, and the sum of every column of the weight; single zeros if they are not read."""
    dtype = getattr(torch, x.dtype)
    if not has_zero(site, x):
        nothing = torch.zeros(16, dtype=torch.int32, device=device)
        return [nothing.view(torch.uint8).view(dtype), nothing]
    sums = codes_nk.to(torch.int32).sum(1, dtype=torch.int32)
    slots = zero_slots(site, x)
    if slots:
        return [slots[0], sums]
    zero = settled_value(site, weights, x.zero).reshape(1) if x.zero else torch.zeros(1, dtype=dtype)
    return [zero.to(device=device, dtype=dtype), sums]


def centred_codes(site: Site, weights: Mapping[str, Tensor], w: Codes) -> Tensor:
    """Codes of a weight without their zero points; `RefusedError` if they do not fit a signed byte."""
    codes = settled_value(site, weights, w.name)
    if w.dtype not in ("int8", "uint8"):
        return codes
    levels = codes.to(torch.int16)
    if w.zero:
        zero = settled_value(site, weights, w.zero).to(device=codes.device, dtype=torch.int16)
        if zero.numel() > 1 and w.axis is not None:
            zero = zero.reshape([-1 if axis == w.axis else 1 for axis in range(codes.ndim)])
        levels = levels - zero.reshape(zero.shape if zero.numel() > 1 else ())
    low, high = int(levels.min()), int(levels.max())
    if low < -128 or high > 127:
        raise RefusedError(
            f"weights without their zero points reach from {low} to {high}, want a signed byte"
        )
    return levels.to(torch.int8)
