"""Rates of this machine, measured by plain library calls: copies of many sizes, large products, a launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from ridgeline.base.gpu_timing import capture, interleave_graphs
from ridgeline.base.library_math import library_math
from ridgeline.base.spec import Target
from ridgeline.base.timing import interleave

GPU_SIZES = tuple(1 << exponent for exponent in range(14, 32, 2))
CPU_SIZES = tuple(1 << exponent for exponent in range(12, 29, 2))
GPU_EDGE, CPU_EDGE = 8192, 1024
CPU_MAP = 56, 128  # pixels of an edge, channels
CHAIN = 64  # launches in one graph, so that its own launch does not count
SECONDS = 0.15  # for each figure on a processor
ROUNDS = 5


def copy_curve(target: Target) -> list[tuple[float, float]]:
    """Bytes read and written by a copy, and its rate in bytes per µs, for sizes that grow."""
    rows = []
    for nbytes in GPU_SIZES if target.traits.is_gpu else CPU_SIZES:
        source = torch.ones(nbytes // 2, dtype=torch.uint8, device=target.traits.device)
        made = torch.empty_like(source)
        us = _time(target, partial(made.copy_, source))
        rows.append((float(nbytes), nbytes / us))
    return rows


def product_rates(target: Target) -> dict[str, float]:
    """Flops per µs of a large square product, for every type that this machine multiplies.

    On a processor also of a convolution: products and convolutions are two libraries there, and each is the
    better one on some.
    """
    rates = {}
    edge = GPU_EDGE if target.traits.is_gpu else CPU_EDGE
    for name, call in _products(target, edge):
        try:
            with library_math(rounds=name == "tf32"):
                rates[name] = 2 * edge**3 / _time(target, call)
        except (RuntimeError, NotImplementedError):  # this type is not multiplied here
            continue
    if not target.traits.is_gpu:
        rates["float32"] = max(rates["float32"], _convolution_rate(target))
    return rates


def _convolution_rate(target: Target) -> float:
    """Flops per µs of a 3x3 convolution over a map that is larger than its weight."""
    size, width = CPU_MAP
    image = torch.randn(1, width, size, size).to(memory_format=torch.channels_last)
    weight = torch.randn(width, width, 3, 3).to(memory_format=torch.channels_last)
    us = _time(target, partial(torch.conv2d, image, weight, padding=1))
    return 2 * 9 * (width * size) ** 2 / us


def launch_us(target: Target) -> float:
    """The least that one step takes: a kernel over one element, in a row of them."""
    x = torch.zeros(1, device=target.traits.device)
    return _time(target, partial(x.add_, 1.0), chain=CHAIN)


def _products(target: Target, edge: int) -> Iterator[tuple[str, Callable[[], object]]]:
    device = target.traits.device
    made = torch.randn(edge, edge, device=device)
    yield "float32", partial(torch.mm, made, made)
    halves = ("float16", "bfloat16") if target.traits.is_gpu else ("bfloat16",)
    for name in halves:
        half = made.to(getattr(torch, name))
        yield name, partial(torch.mm, half, half)
    if not target.traits.is_gpu:
        return
    if target.has_tf32:
        yield "tf32", partial(torch.mm, made, made)
    coded = made.to(torch.float8_e4m3fn)
    one = torch.ones((), device=device)
    yield "float8", partial(torch._scaled_mm, coded, coded.t(), one, one, out_dtype=torch.float16)
    levels = (made * 30).to(torch.int8)
    yield "int8", partial(torch._int_mm, levels, levels.t())


def _time(target: Target, call: Callable[[], object], *, chain: int = 1) -> float:
    """µs of one call: the median of replays of a graph on a GPU, the best on the wall clock of a processor.

    A rate is a ceiling, and what interrupts a processor only adds time: on a busy one the median is
    that of waiting for a thread that another program holds up, 1,000 times the copy itself.
    """
    if target.traits.is_gpu:
        with torch.inference_mode():
            graph = capture(call, repeats=chain)
            return interleave_graphs([graph], calls=chain, rounds=ROUNDS)[0].median_us
    with torch.inference_mode():
        return interleave([call], budget_s=SECONDS)[0].min_us
