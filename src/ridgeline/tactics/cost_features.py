"""What the time of a region depends on, as a few numbers: regions near one another err alike.

A calibration stores these numbers of every step that it measured; a prediction asks for the nearest of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline.base.spec import Op, Site, TensorSpec
from ridgeline.ir.body_class import POOLS, compute_type
from ridgeline.ir.op_flops import FUNCTIONS
from ridgeline.ir.op_row import Kind
from ridgeline.ir.ops import row_of
from ridgeline.ir.work import body_bytes, op_flops

# images that lie plane by plane are read element by element: as far apart as four doublings of a size
PLANES = 16
FUNCTION = 4  # instructions of a function for each operation that it counts as, beside those of the others
ALIGNED = 64  # channels that one step of a product takes: a tensor of fewer in a row is read piece by piece


@dataclass(frozen=True)
class Features:
    """The family of a region, the type it computes in, and logarithms to base 2 of its sizes."""

    family: str
    dtype: str
    values: tuple[float, ...]


def features_of(site: Site) -> Features:
    """Sizes of the op that decides the region, and how much the rest of it computes for each result."""
    anchor = main_op(site)
    dtype = compute_type(site.body, site.specs)
    family, sizes = _sizes(anchor, site)
    made = next((site.specs[name].numel for name in anchor.outputs if name in site.specs), 1)
    others = (op for op in site.body.ops if op is not anchor)
    rest = math.fsum(_instructions(op, site.specs) for op in others) / max(made, 1)
    moved = body_bytes(site.body, site.specs)
    values = tuple(math.log2(max(size, 1)) for size in (moved, 1 + rest, *sizes))
    return Features(f"{family} {dtype}", dtype, values)


def _instructions(op: Op, specs: Mapping[str, TensorSpec]) -> float:
    """Operations, those of functions counted for what they take."""
    return op_flops(op, specs) * (FUNCTION if op.op_type in FUNCTIONS else 1)


def main_op(site: Site) -> Op:
    """A pool, else the op with the most arithmetic; of ops that only move elements, the first."""
    pool = next((op for op in site.body.ops if op.op_type in POOLS), None)
    return pool or max(site.body.ops, key=lambda op: op_flops(op, site.specs))


def _sizes(anchor: Op, site: Site) -> tuple[str, tuple[float, ...]]:
    """The family, and rows, columns and depth as they matter to it."""
    specs, kind = site.specs, row_of(anchor).kind
    made = next((specs[name] for name in anchor.outputs if name in specs), None)
    given = next((specs[name] for name in anchor.inputs if name in specs), None)
    if made is None or given is None or not made.numel:
        return "unknown", ()
    if anchor.op_type in ("Conv", "ConvTranspose"):
        return _convolution(anchor, specs, given, made)
    if anchor.op_type == "Attention":
        return "attention", _attention(anchor, specs, given)
    if kind & Kind.PRODUCT:
        depth, columns = op_flops(anchor, specs) / (2 * made.numel), made.shape[-1] if made.shape else 1
        return "product", (made.numel / max(columns, 1), columns, depth, _lanes(depth), _lanes(columns))
    if kind & Kind.ROW or anchor.op_type.startswith(("Reduce", "Global", "ArgM")):
        length = _row_length(anchor, given, made)
        family = "reduction" if made.numel < given.numel else "rows"
        return family, (given.numel / length, length, *_orders(given, made))
    if anchor.op_type in POOLS:
        window = math.prod(anchor.attrs.get("kernel_shape", (1,)))
        return anchor.op_type, (made.numel, given.numel / made.numel, window, *_orders(given, made))
    if anchor.op_type == "Concat":
        return "Concat", (made.numel, len(anchor.inputs), *_orders(given, made))
    if kind & Kind.POINTWISE:
        return "pointwise", (made.numel, *_orders(given, made))
    return ("movement" if kind & Kind.MOVEMENT else anchor.op_type), (made.numel, *_orders(given, made))


def _convolution(
    anchor: Op, specs: Mapping[str, TensorSpec], given: TensorSpec, made: TensorSpec
) -> tuple[str, tuple[float, ...]]:
    channels, groups = made.shape[1], int(anchor.attrs.get("group", 1))
    depth = op_flops(anchor, specs) / (2 * made.numel)
    width = given.shape[1] / groups
    family = "convolution" if groups == 1 else "depthwise" if width == 1 else "grouped convolution"
    if anchor.op_type == "ConvTranspose":
        family = f"transposed {family}"
    elif groups == 1 and depth == width and given.numel * channels == made.numel * given.shape[1]:
        family = "pointwise convolution"
    lanes = (width,) if groups > 1 else (_lanes(width), _lanes(channels))
    return family, (made.numel / channels, channels, depth, *lanes, *_orders(given, made))


def _orders(*specs: TensorSpec) -> tuple[float, ...]:
    """Whether images lie pixel by pixel or plane by plane; a single pixel has one order, as other tensors."""

    def is_image(spec: TensorSpec) -> bool:
        return len(spec.shape) == 4 and math.prod(spec.shape[2:]) > 1

    return tuple(PLANES if is_image(s) and s.layout != "channels_last" else 1.0 for s in specs)


def _lanes(size: float) -> float:
    """How much of a tile's row a size fills evenly."""
    return float(math.gcd(int(size), ALIGNED))


def _attention(anchor: Op, specs: Mapping[str, TensorSpec], given: TensorSpec) -> tuple[float, ...]:
    keys = specs.get(anchor.inputs[1], given)
    if len(given.shape) == 4:
        batch, heads, queries, width = given.shape
    else:
        heads = int(anchor.attrs.get("q_num_heads", 1))
        batch, queries, width = given.shape[0], given.shape[-2], given.shape[-1] // heads
    # a mask or a causal pattern is as far as a doubling from none
    is_masked = len(anchor.inputs) > 3 and bool(anchor.inputs[3])
    flags = (2.0 ** int(anchor.attrs.get("is_causal", 0)), 2.0 if is_masked else 1.0)
    return batch * heads, queries, keys.shape[-2], width, *flags


def _row_length(anchor: Op, given: TensorSpec, made: TensorSpec) -> int:
    """How many elements one result of a reduction depends on."""
    if made.numel < given.numel:
        return given.numel // made.numel
    if anchor.op_type in ("GroupNormalization", "InstanceNormalization"):
        groups = int(anchor.attrs.get("num_groups", given.shape[1]))
        return max(given.numel // max(given.shape[0] * groups, 1), 1)
    axis = int(anchor.attrs.get("axis", -1))
    if anchor.op_type in ("LayerNormalization", "RMSNormalization"):
        return max(math.prod(given.shape[axis:]), 1)
    return max(given.shape[axis], 1) if given.shape else 1
