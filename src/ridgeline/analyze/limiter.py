"""What limits a step, with its evidence in one sentence: its measured time against the machine's ceilings.

As in Nsight Compute's speed-of-light section a step is at a roof from 60 % of it on; a step at no roof is
limited by what its size says: a launch, an uneven last wave, or too little work at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ridgeline.base.ceilings import Ceilings
from ridgeline.plan.trace import StepTime

Limiter: TypeAlias = Literal[
    "launch", "latency", "memory", "L2", "tensor cores", "ALU/SFU", "tail/wave", "host", "unknown"
]
Unit: TypeAlias = Literal["tensor cores", "ALU/SFU"]
AT_ROOF = 0.60
# a step that takes less than this many launches does hardly anything besides
LAUNCHES = 1.5
# outside products: long enough to fill the machine, so that more arithmetic than bytes says what it waits for
MANY_LAUNCHES = 10
# kernels of a captured graph follow each other within a few µs: a longer gap is a wait for the host
LONGEST_GAP_US = 5.0
# a last wave less full than this leaves so many processors idle that it shows in the whole
FULL_WAVES = 0.75
MANY_WAVES = 4
# of a function for each operation that it counts as: a chain of Erf, Tanh, Sin and Softplus took twelve
INSTRUCTIONS = 10
PRODUCTS = ("product", "convolution", "attention")
# types whose products run on tensor cores where there are any
TENSOR_TYPES = ("tf32", "float16", "bfloat16", "int8", "uint8", "float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True)
class Limit:
    """What limits one step. `bound_us` is the least time that the ceilings allow, `roofline` its share."""

    limiter: Limiter
    evidence: str
    bound_us: float | None = None
    roofline: float | None = None
    memory_share: float | None = None
    arithmetic_share: float | None = None


def find_limit(step: StepTime, ceilings: Ceilings | None) -> Limit:
    """The first of these that holds: host, launch, the nearer roof, tail/wave, latency."""
    us = step.median_us
    if step.gap_us is not None and step.gap_us > max(us, LONGEST_GAP_US):
        said = f"nothing runs for {step.gap_us:.1f} µs before it, longer than the {us:.1f} µs that it takes"
        return Limit("host", said)
    if ceilings is None:
        return Limit("unknown", "the ceilings of this machine are not known: ridge calibrate measures them")
    if not us:
        return Limit("unknown", "it is too short to be measured")
    shares = _shares(step, ceilings)
    bound = _known(max(step.bytes / ceilings.best_bytes_per_us(step.bytes), shares.arithmetic_us))
    facts = {
        "bound_us": bound,
        "roofline": None if bound is None else bound / us,
        "memory_share": _known(shares.memory_us / us),
        "arithmetic_share": _known(shares.arithmetic_us / us),
    }
    limiter, evidence = _judge(step, ceilings, shares)
    return Limit(limiter, evidence, **facts)


@dataclass(frozen=True)
class _Shares:
    """The least time of a step's bytes, from memory or from the cache, and of its arithmetic."""

    memory_us: float
    cache_us: float
    arithmetic_us: float
    fits_cache: bool
    unit: Unit


def arithmetic_unit(dtype: str, ceilings: Ceilings, *, is_product: bool) -> Unit:
    """What a region of this type computes on."""
    return "tensor cores" if is_product and ceilings.is_gpu and dtype in TENSOR_TYPES else "ALU/SFU"


def _shares(step: StepTime, ceilings: Ceilings) -> _Shares:
    is_product = step.op_class in (*PRODUCTS, "recurrent", "library span")
    # outside products the arithmetic is done in float32, whatever the storage is
    dtype = step.precision if is_product else "float32"
    if ceilings.l2_bytes is not None:
        # not the rate of a copy of this size: a small one is bound by its launch, and so would be the step
        cached, fits_cache = ceilings.cache_bytes_per_us, step.bytes <= ceilings.l2_bytes
    else:  # of a processor's caches only the speed of copies is known
        cached, fits_cache = ceilings.best_bytes_per_us(step.bytes), ceilings.is_cached(step.bytes)
    return _Shares(
        memory_us=step.bytes / ceilings.memory_bytes_per_us,
        cache_us=_known(step.bytes / cached) or 0.0,
        arithmetic_us=step.flops / ceilings.flops_per_us(dtype),
        fits_cache=fits_cache,
        unit=arithmetic_unit(step.precision, ceilings, is_product=is_product),
    )


def _judge(step: StepTime, ceilings: Ceilings, shares: _Shares) -> tuple[Limiter, str]:
    us = step.median_us
    memory, arithmetic = shares.memory_us / us, shares.arithmetic_us / us
    rate = f"{step.bytes / us / 1e6:.3g} TB/s"
    if us <= LAUNCHES * ceilings.least_launch_us and max(memory, arithmetic) < AT_ROOF:
        return "launch", f"it takes {us:.2f} µs, and every step at least {ceilings.least_launch_us:.2f} µs"
    if arithmetic >= AT_ROOF and arithmetic >= memory:
        reached = f"{step.flops / us / 1e6:.3g} TFLOP/s in {step.precision}"
        return shares.unit, f"{reached}, {arithmetic:.0%} of what products of that type reach"
    if memory > 1 and shares.fits_cache:
        return "L2", f"{rate}, more than memory delivers, and its {_size(step.bytes)} fit the cache"
    if memory >= AT_ROOF:
        return "memory", f"{rate}, {memory:.0%} of what a large copy reaches"
    if shares.fits_cache and shares.cache_us / us >= AT_ROOF:
        share = shares.cache_us / us
        return (
            "L2",
            f"{rate}, {share:.0%} of the best copy inside it; {_size(step.bytes)} fit the cache",
        )
    wave = _wave(step, ceilings)
    if wave:
        return "tail/wave", wave
    is_long = us >= MANY_LAUNCHES * ceilings.least_launch_us
    if step.op_class not in PRODUCTS and is_long and INSTRUCTIONS * arithmetic > memory:
        counted = f"{arithmetic:.0%} of arithmetic, where a function of tens of instructions counts as a few"
        return "ALU/SFU", f"{counted}, against {memory:.0%} of memory"
    far = [f"{memory:.0%} of memory"] + [f"{arithmetic:.0%} of arithmetic"] * math.isfinite(arithmetic)
    few = _few_blocks(step, ceilings)
    return "latency", f"far from every roof ({', '.join(far)})" + (f"; {few}" if few else "")


def _wave(step: StepTime, ceilings: Ceilings) -> str:
    """Of a product whose last wave of blocks fills few processors."""
    blocks = max((kernel.blocks or 0 for kernel in step.kernels), default=0)
    if step.op_class not in PRODUCTS or not ceilings.sms or blocks <= ceilings.sms:
        return ""
    waves = blocks / ceilings.sms
    full = waves / math.ceil(waves)
    if waves > MANY_WAVES or full >= FULL_WAVES:
        return ""
    last = blocks - ceilings.sms * math.floor(waves)
    idle = f"{1 - full:.0%} of the processors' time is idle"
    return f"{blocks} blocks on {ceilings.sms} processors: the last wave has {last}, {idle}"


def _few_blocks(step: StepTime, ceilings: Ceilings) -> str:
    blocks = max((kernel.blocks or 0 for kernel in step.kernels), default=0)
    if blocks and ceilings.sms and blocks < ceilings.sms:
        return f"its {blocks} blocks leave {ceilings.sms - blocks} of {ceilings.sms} processors without work"
    return ""


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _size(nbytes: int) -> str:
    return f"{nbytes / 1024:.0f} KiB" if nbytes < 1 << 20 else f"{nbytes / (1 << 20):.1f} MiB"
