"""Times of candidates where nothing can be timed: a build for a GPU that is not here.

Rates scale with the architecture (`base/devices.py`); what a launch costs besides is fitted to one H200, all
figures being those of docs/gpu.md: graph replays, fp16, µs. The order of candidates is what matters; the
machine itself settles it at the first run.
"""

from __future__ import annotations

import math

from ridgeline.base.devices import Device, device_of
from ridgeline.base.spec import ITEM_BITS, Body, Config, Op, Site
from ridgeline.ir.work import body_bytes, body_flops, op_flops
from ridgeline.kernels.triton.normed_products import NormedProduct, normed_us
from ridgeline.kernels.triton.products import Product, Tile, Window
from ridgeline.kernels.triton.prologue_products import PrologueProduct, prologue_us
from ridgeline.kernels.triton.ranking import tile_us
from ridgeline.tactics.base import Offer
from ridgeline.tactics.read.conv import ConvSite

# chains of 128x768 in one graph: a generated pointwise kernel takes 1.0 µs, one that reduces rows 1.4
POINTWISE_US, ROWS_US = 1.0, 1.4
# cuBLAS: 128x768x768 3.4 µs, 128x2304x768 4.2, 128x768x3072 7.1; 4096³ at 628 TFLOP/s
CUBLAS_US, CUBLAS_US_PER_DEPTH, CUBLAS_SHARE = 2.1, 1.13e-3, 0.82
ALGORITHM_STEP = 0.01  # the library lists its best guess first
# fused cuDNN at batch 1: 3x3 of 64 channels 6.1 µs, 128 7.2, 256 8.0, 512 12.3
CUDNN_US, CUDNN_US_PER_DEPTH = 5.2, 1.5e-3
# large images, as a calibration has them (bench/results/calibration-h200-2026-11-16.json): 3x3 over 3456
# pixels of 448 channels 29 µs, 110592 of 128 55, 19200 of 320 84; 259584 of 64 53, as if they were 128
CUDNN_LARGE_US, CUDNN_LARGE_US_PER_DEPTH, CUDNN_SHARE, CUDNN_CHANNELS = 4.0, 1e-3, 0.95, 128
FLOOR_SHARE = 0.5  # of the peak, op by op
# Hopper's tensor maps want rows at multiples of 16 bytes (cuTensorMapEncodeTiled); without them libraries
# multiply by mma instead of wgmma: as bench.alignment_gpu has it, 4096x1024x1024 takes cuBLAS 21 µs, with
# 1022 columns 42, with 1021 70
TENSOR_MAP_BITS, COPY_BITS = 128, 32
WITHOUT_TENSOR_MAPS, WITHOUT_COPIES = 0.5, 0.3
# depthwise convolutions by cuDNN read their images several times
CUDNN_DEPTHWISE_READS = 3.0
# SDPA of 12 heads, 128 queries: flash 5.3 µs and cuDNN 5.9; at batch 32 13.3 and 10.5. µs, share of the peak
SDPA = {"cudnn": (5.7, 0.45), "flash": (4.9, 0.28), "efficient": (6.0, 0.15), "math": (40.0, 0.08)}
# one op of the floor: a launch that waits for the one before it, besides a µs per depth of a sum
FLOOR_OP_US = 2.5
FLOOR_US = {
    "MatMul": (CUBLAS_US, CUBLAS_US_PER_DEPTH), "Gemm": (CUBLAS_US, CUBLAS_US_PER_DEPTH),
    "Conv": (CUDNN_US, CUDNN_US_PER_DEPTH), "Attention": (SDPA["math"][0], 0.0),
}  # fmt: skip
HALVES = ("float16", "bfloat16")
READ_TWICE = 1.4  # a row that is walked over again, mostly from the cache
# after a library our next kernel cannot start early (docs/gpu.md, dependent launch)
NO_OVERLAP_US = 0.3
# configs come best guess first: a later one must look better by more than the model can tell
PER_RANK = 0.01


def predict_us(
    offer: Offer, site: Site, config: Config, *, rank: int = 0, device: Device | None = None
) -> float:
    """The time one launch should take; `rank` is the config's place in its tactic's own order."""
    device = device or device_of(site.target.arch)
    us = floor_us(site, device) if offer.predict_us is None else offer.predict_us(config, device)
    return round(us * (1 + PER_RANK * rank), 3)


def _moving_us(site: Site, device: Device) -> float:
    return body_bytes(site.body, site.specs) / device.bytes


def pointwise_us(site: Site, device: Device, *, further_flops: float = 0.0) -> float:
    """`further_flops`: what the table of ops does not count."""
    computing_us = (body_flops(site.body, site.specs) + further_flops) / device.plain_flops
    return POINTWISE_US + max(_moving_us(site, device), computing_us)


def window_us(site: Site, taps: int, device: Device) -> float:
    """Windows of so many places: one operation for each of them."""
    made = max((spec.numel for spec in site.outputs), default=0)
    return pointwise_us(site, device, further_flops=taps * made)


def rows_us(site: Site, config: Config, device: Device) -> float:
    # the longer way through a row; where programs share one, a second launch or the time they wait
    shared = POINTWISE_US if int(config.get("splits", 1)) > 1 else 0.0
    is_read_once = bool(config.get("whole", True)) or int(config.get("held", 0)) > 0
    return ROWS_US + shared + (1.1 if is_read_once else READ_TWICE) * _moving_us(site, device)


def product_us(site: Site, problem: Product | Window, tile: Tile, device: Device) -> float:
    return max(tile_us(problem, tile, device), _moving_us(site, device))


def normed_product_us(site: Site, problem: NormedProduct, tile: Tile, device: Device) -> float:
    return max(normed_us(problem, tile, device), _moving_us(site, device))


def prologue_product_us(site: Site, problem: PrologueProduct, tile: Tile, device: Device) -> float:
    # loads are under way while items are computed and multiplied: the longer of the two is what it takes
    return max(prologue_us(problem, tile, device), _moving_us(site, device))


def few_rows_us(site: Site, device: Device) -> float:
    # every row is multiplied on plain cores while the weight streams by
    return ROWS_US + max(
        1.1 * _moving_us(site, device), 2 * body_flops(site.body, site.specs) / device.plain_flops
    )


def attention_us(cycles: float, device: Device) -> float:
    return POINTWISE_US + cycles / device.cycles_per_us


def cublas_us(site: Site, depth: int, rest: Site | None, device: Device) -> float:
    fixed_us = CUBLAS_US + CUBLAS_US_PER_DEPTH * depth
    return fixed_us + _library(site, CUBLAS_SHARE, device) + _rest(rest, device)


def cudnn_us(site: Site, conv: ConvSite, rest: Site | None, device: Device) -> float:
    if conv.groups > 1:
        return CUDNN_US + CUDNN_DEPTHWISE_READS * _moving_us(site, device) + _rest(rest, device)
    depth = math.prod(conv.kernel) * conv.x.shape[1]
    filled = conv.channels / (math.ceil(conv.channels / CUDNN_CHANNELS) * CUDNN_CHANNELS)
    large_us = CUDNN_LARGE_US + CUDNN_LARGE_US_PER_DEPTH * depth
    return max(
        CUDNN_US + CUDNN_US_PER_DEPTH * depth, large_us + _library(site, CUDNN_SHARE * filled, device)
    ) + _rest(rest, device)


def sdpa_us(site: Site, backend: str, device: Device, *, is_causal: bool) -> float:
    fixed, share = SDPA[backend]
    flops = body_flops(site.body, site.specs) / (2 if is_causal else 1)
    return fixed + NO_OVERLAP_US + flops / (share * device.flops)


def _library(site: Site, share: float, device: Device) -> float:
    """What a library needs for the arithmetic, or for the bytes."""
    is_half = any(spec is not None and spec.dtype in HALVES for spec in site.inputs)
    rate = share * device.flops if is_half else device.plain_flops
    if site.body.may_round:
        rate = share * device.flops / 2
    if device.has_warpgroups and (is_half or site.body.may_round):
        row_bits = _row_bits(site)
        if row_bits % COPY_BITS:
            rate *= WITHOUT_COPIES
        elif row_bits % TENSOR_MAP_BITS:
            rate *= WITHOUT_TENSOR_MAPS
    return max(body_flops(site.body, site.specs) / rate, _moving_us(site, device))


def _row_bits(site: Site) -> int:
    """At multiples of how many bits all rows of the products' data and results start."""
    found = 0
    for op in site.body.ops:
        axis = {"MatMul": -1, "Gemm": -1, "Conv": 1}.get(op.op_type)
        if axis is not None:
            specs = [site.specs[name] for name in (op.inputs[0], op.outputs[0]) if name in site.specs]
            found = math.gcd(found, *(s.shape[axis] * ITEM_BITS[s.dtype] for s in specs if s.shape))
    return found


def _rest(rest: Site | None, device: Device) -> float:
    return NO_OVERLAP_US + (0.0 if rest is None else pointwise_us(rest, device))


def floor_us(site: Site, device: Device) -> float:
    """Op by op: every value goes to memory and comes back."""
    return math.fsum(_op_us(op, site, device) for op in site.body.ops)


def _op_us(op: Op, site: Site, device: Device) -> float:
    alone = Body(op.inputs, op.outputs, (op,))
    moving_us = body_bytes(alone, site.specs) / device.bytes
    flops = op_flops(op, site.specs)
    fixed, per_depth = FLOOR_US.get(op.op_type, (FLOOR_OP_US, 0.0))
    made = site.specs[op.outputs[0]].numel if op.outputs[0] in site.specs else 0
    depth = flops / (2 * made) if made else 0.0
    is_half = any(site.specs[name].dtype in HALVES for name in op.inputs if name in site.specs)
    rate = FLOOR_SHARE * device.flops if is_half else device.plain_flops
    return NO_OVERLAP_US + fixed + per_depth * depth + max(moving_us, flops / rate)
