"""What the time of a region depends on, as a few numbers: regions near one another err alike.

A calibration stores these numbers of every step that it measured; a prediction asks for the nearest of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ridgeline.base.spec import Op, Site
from ridgeline.ir.op_row import Kind
from ridgeline.ir.ops import row_of
from ridgeline.ir.work import body_bytes, body_flops, op_flops

CODES = ("int8", "uint8", "float8_e4m3fn", "float8_e5m2", "int4", "uint4", "float4_e2m1fn")
POOLS = ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "LpPool")


@dataclass(frozen=True)
class Features:
    """The family of a region, the type it computes in, and logarithms to base 2 of its sizes."""

    family: str
    dtype: str
    values: tuple[float, ...]


def features_of(site: Site) -> Features:
    """Sizes of the op that decides the region: its product or reduction, else all of it."""
    anchor = main_op(site)
    family, sizes = _sizes(anchor, site)
    dtype = compute_dtype(site, anchor)
    work = (body_bytes(site.body, site.specs), body_flops(site.body, site.specs))
    values = tuple(math.log2(max(size, 1)) for size in (*work, *sizes))
    return Features(f"{family} {dtype}", dtype, values)


def main_op(site: Site) -> Op:
    """The op with the most arithmetic; of ops that only move elements, the first."""
    return max(site.body.ops, key=lambda op: op_flops(op, site.specs))


def compute_dtype(site: Site, anchor: Op) -> str:
    """The type of the operands that are multiplied: codes if both come from codes, else floats."""
    types = [site.specs[name].dtype for name in anchor.inputs if name in site.specs]
    makers = [site.body.producer(name) for name in anchor.inputs[:2]]
    read = [
        site.specs[maker.inputs[0]].dtype
        for maker in makers
        if maker is not None and maker.op_type == "DequantizeLinear" and maker.inputs[0] in site.specs
    ]
    if len(read) == 2 and all(dtype in CODES for dtype in read):
        return read[0]
    if anchor.math:
        return anchor.math
    return next(
        (dtype for dtype in types if dtype.startswith(("float", "bfloat"))), types[0] if types else ""
    )


def _sizes(anchor: Op, site: Site) -> tuple[str, tuple[float, ...]]:
    """The family, and rows, columns and depth as they matter to it."""
    specs, kind = site.specs, row_of(anchor).kind
    made = next((specs[name] for name in anchor.outputs if name in specs), None)
    given = next((specs[name] for name in anchor.inputs if name in specs), None)
    if made is None or given is None or not made.numel:
        return "unknown", ()
    if anchor.op_type in ("Conv", "ConvTranspose"):
        channels, groups = made.shape[1], int(anchor.attrs.get("group", 1))
        depth = op_flops(anchor, specs) / (2 * made.numel)
        return (
            "convolution" if groups == 1 else "depthwise",
            (made.numel / channels, channels, depth, given.shape[1] / groups),
        )
    if anchor.op_type == "Attention":
        keys = next((specs[name] for name in anchor.inputs[1:2] if name in specs), given)
        return "attention", (given.numel / given.shape[-1], keys.shape[-2], given.shape[-1])
    if kind & Kind.PRODUCT:
        depth, columns = op_flops(anchor, specs) / (2 * made.numel), made.shape[-1] if made.shape else 1
        return "product", (made.numel / max(columns, 1), columns, depth)
    if kind & Kind.ROW or anchor.op_type.startswith(("Reduce", "Global", "ArgM")):
        inner = given.shape[-1] if given.shape else 1
        return "rows", (given.numel / max(inner, 1), inner)
    if anchor.op_type in POOLS:
        return "pool", (made.numel,)
    if kind & Kind.POINTWISE:
        return "pointwise", (made.numel,)
    return ("movement" if kind & Kind.MOVEMENT else anchor.op_type), (made.numel,)
