"""Products with weights of 8 or 4 bits and half activations: the weight is decoded inside the kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.devices import Device
from ridgeline.base.spec import Config, Op, Site
from ridgeline.kernels.elements import bits
from ridgeline.kernels.floor.sub_byte import opened
from ridgeline.kernels.scalar.anchor import Dequantized
from ridgeline.kernels.triton.products import Tile
from ridgeline.kernels.triton.quant_products import (
    SCALE_TYPES,
    WHOLE_BLOCK,
    CodedWeight,
    pack_words,
    row_words,
    widths_of,
)
from ridgeline.kernels.triton.ranking import coded_us, rank_coded
from ridgeline.tactics.cuda.read_codes import (
    Codes,
    find_codes,
    is_settled,
    known_number,
    require_codes,
    settled_value,
)
from ridgeline.tactics.cuda.triton_product import Reading, TritonProduct
from ridgeline.tactics.read.epilogue import find_anchor, spec_of

# M rows, K summed over, N columns
FORMATS = {
    "int4": "int4", "uint4": "int4", "int8": "int8", "uint8": "int8", "float4_e2m1fn": "float4_e2m1fn",
    "float8_e4m3fn": "float8_e4m3fn", "float8_e5m2": "float8_e5m2",
}  # fmt: skip
# signed codes are stored moved up by half their range, as unsigned ones already are
MIDDLE = {"int4": 8, "int8": 128}
HALVES = ("float16", "bfloat16")


class TritonWeightOnly(TritonProduct):
    """epilogue(x · decoded W): the packed weight streams by once and is decoded in registers."""

    name = "triton.weight_only"
    reads_levels = True

    def read(self, site: Site) -> Reading:
        anchor = find_anchor(site.body, ("MatMul", "Gemm"))
        if find_codes(site, anchor, 0) is not None:
            raise RefusedError("activations are quantised too")
        return _read(site, anchor, require_codes(site, anchor, 1))

    def cuts(self, site: Site, problem: Any) -> Sequence[Tile]:
        return rank_coded(problem, site.target.arch)

    def predict_us(self, site: Site, problem: Any, config: Config, device: Device) -> float:
        return coded_us(problem, self.cut_of(problem, config), device)


@dataclass(frozen=True)
class _Weight:
    """A constant weight as the kernel takes it."""

    codes: Codes
    is_nk: bool  # its rows are columns of the product
    block: int  # numbers along K that share a scale; 0: scales do not vary along K
    scale: str  # one per block; "": none
    outer: tuple[tuple[str, int | None], ...]  # scales that the epilogue applies
    has_zeros: bool

    @property
    def format(self) -> str:
        return FORMATS[self.codes.dtype]


def _read(site: Site, anchor: Op, w: Codes) -> Reading:
    data = anchor.inputs[0]
    x = spec_of(site, data)
    if data not in site.body.inputs:
        raise RefusedError(f"{data!r} is not an input of the region")
    if x.dtype not in HALVES:
        raise RefusedError(f"activations are {x.dtype}, want {' or '.join(HALVES)}")
    if not x.numel or not w.spec.numel or len(x.shape) < 2 or len(w.spec.shape) != 2:
        raise RefusedError(f"operands are {x} and {w.spec}, want rows and a matrix")
    if anchor.attrs.get("transA", 0) or x.layout != "contiguous":
        raise RefusedError("rows of x are not contiguous")
    weight = _read_weight(site, anchor, w)
    columns, depth = w.spec.shape if weight.is_nk else w.spec.shape[::-1]
    width, block = widths_of(weight.format, weight.block)
    problem = CodedWeight(
        x.numel // depth, columns, depth, x.dtype, (0, depth, 1),
        (0, row_words(depth, weight.format, width), 1), format=weight.format, width=width, block=block,
        scales=_scale_dtype(site, weight) if weight.block else "", has_zeros=weight.has_zeros,
    )  # fmt: skip

    def prepare(weights: Mapping[str, Tensor], device: str) -> list[Tensor]:
        return _prepare(site, weights, weight, problem, device)

    return Reading(
        anchor, problem, x=site.body.inputs.index(data), weight=w.name, pack=None, columns_axis=-1,
        codes=Dequantized(_made_before(site, anchor.inputs[1]), weight.outer), prepare=prepare,
        prepared_bytes=problem.prepared_bytes,
    )  # fmt: skip


def _read_weight(site: Site, anchor: Op, w: Codes) -> _Weight:
    """Which scales vary along K, and which the epilogue applies."""
    if w.dtype not in FORMATS:
        raise RefusedError(f"weights are {w.dtype}, want {', '.join(FORMATS)}")
    for name in (w.name, w.scale, w.zero):
        if name and not is_settled(site, name):
            raise RefusedError(f"{name!r} changes between runs, want a constant weight")
    is_nk = bool(anchor.attrs.get("transB", 0)) != w.is_transposed
    along_n, along_k = (0, 1) if is_nk else (1, 0)
    is_integer = w.dtype in ("int4", "uint4", "int8", "uint8")
    is_unsigned = w.dtype in ("uint4", "uint8")
    has_zeros = is_integer and (is_unsigned or (bool(w.zero) and known_number(site, w.zero) != 0.0))
    if w.block and w.axis == along_k:
        scale, outer = _two_levels(site, w.scale)
        return _Weight(w, is_nk, w.block, scale, outer, has_zeros)
    if w.block or w.axis not in (None, along_n):
        raise RefusedError("scales vary along the columns in blocks, or along every number of the sum")
    if has_zeros:  # zero points are read with scales, so both are written out in blocks
        return _Weight(w, is_nk, WHOLE_BLOCK, w.scale, (), has_zeros)
    column_dim = len(site.specs[anchor.outputs[0]].shape) - 1
    return _Weight(w, is_nk, 0, "", ((w.scale, None if w.axis is None else column_dim),), has_zeros)


def _two_levels(site: Site, scale: str) -> tuple[str, tuple[tuple[str, int | None], ...]]:
    """Scales that are codes with one scale of their own stay codes, and the epilogue applies that one."""
    op = site.body.producer(scale)
    if op is None or op.key != "DequantizeLinear" or len(op.inputs) > 2:
        return scale, ()
    if spec_of(site, op.inputs[1]).numel != 1 or spec_of(site, op.inputs[0]).dtype not in SCALE_TYPES:
        return scale, ()
    return op.inputs[0], ((op.inputs[1], None),)


def _scale_dtype(site: Site, weight: _Weight) -> str:
    dtype = spec_of(site, weight.scale).dtype
    if dtype not in SCALE_TYPES:
        raise RefusedError(f"scales are {dtype}, want {', '.join(SCALE_TYPES)}")
    return dtype


def _made_before(site: Site, value: str) -> frozenset[str]:
    """Everything that is computed on the way to a value, itself included."""
    op = site.body.producer(value)
    if op is None:
        return frozenset()
    return frozenset(op.outputs).union(*(_made_before(site, given) for given in op.inputs if given))


def _prepare(
    site: Site, weights: Mapping[str, Tensor], weight: _Weight, problem: CodedWeight, device: str
) -> list[Tensor]:
    """The packed weight, and scales and zeros per block; single zeros where the kernel reads none."""
    w = weight.codes
    codes = _as_nk(bits(settled_value(site, weights, w.name)).to(device), weight)
    packed = pack_words(_stored_bits(codes, w.dtype), problem)
    half = getattr(torch, problem.dtype)
    scales = zeros = torch.zeros(16, dtype=half, device=device)
    if problem.scales:
        found = settled_value(site, weights, weight.scale).to(device)
        scales = _per_block(site, found, weight, problem)
        if problem.scales == "float8_e8m0fnu":
            scales = scales.view(torch.uint8)
    if problem.has_zeros:
        middle = MIDDLE[weight.format] if w.dtype in ("uint4", "uint8") else 0
        zero = torch.zeros((), dtype=torch.int16)
        if w.zero:
            zero = opened(settled_value(site, weights, w.zero)).to(torch.int16)
        zeros = _per_block(site, (zero - middle).to(device=device, dtype=half), weight, problem)
    return [packed, scales, zeros]


def _as_nk(stored: Tensor, weight: _Weight) -> Tensor:
    return stored if weight.is_nk else stored.t()


def _stored_bits(codes_nk: Tensor, dtype: str) -> Tensor:
    """Bytes with one code each, signed integers moved up by half their range."""
    raw = codes_nk.contiguous().view(torch.uint8)
    if dtype == "int8":
        return raw ^ 128
    if dtype == "int4":
        return (raw & 15) ^ 8
    return raw & 15 if dtype in ("uint4", "float4_e2m1fn") else raw


def _per_block(site: Site, given: Tensor, weight: _Weight, problem: CodedWeight) -> Tensor:
    """Scales or zero points as [N, blocks of the kernel]."""
    w, blocks = weight.codes, problem.blocks
    columns = problem.columns
    if given.numel() == 1 or not w.block:
        rows = given.reshape(-1, 1).expand(columns if given.numel() == 1 else -1, 1)
        return rows.expand(columns, blocks).contiguous()
    raw = given.view(torch.uint8) if given.element_size() == 1 else given
    wide = _as_nk(raw, weight).repeat_interleave(max(1, w.block // problem.block), 1)[:, :blocks]
    return wide.contiguous().view(given.dtype)
