"""Where a kernel should let the next one start: chains of small kernels in a graph, one trigger place each.

python bench/dependent_launch_gpu.py
"""

from __future__ import annotations

import torch

from ridgeline.base.gpu_timing import capture, interleave_graphs
from ridgeline.kernels.triton.compiler import Compiled, compile_kernels
from ridgeline.kernels.triton.driver import Launcher
from ridgeline.kernels.triton.source import Kernel
from ridgeline.runtime.device import current_device

PLACES = ("no dependent launch", "trigger first", "trigger after the wait", "trigger after the loads")
ROWS, WIDTH, PAIRS = 128, 768, 25
TEXT = """
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def pointwise(x, w, y, n, PLACE: tl.constexpr):
    i = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    if PLACE == 1:
        gdc_launch_dependents()
    constant = tl.load(w + i, i < n)
    if PLACE > 0:
        gdc_wait()
    if PLACE == 2:
        gdc_launch_dependents()
    v = tl.load(x + i, i < n) * 2 + constant
    if PLACE == 3:
        gdc_launch_dependents()
    tl.store(y + i, v, i < n)


@triton.jit
def product(x, w, y, n, PLACE: tl.constexpr):
    if PLACE == 1:
        gdc_launch_dependents()
    m = tl.program_id(0) * 64 + tl.arange(0, 64)
    c = tl.program_id(1) * 32 + tl.arange(0, 32)
    k = tl.arange(0, 128)
    x_tile = x + m[:, None] * 768 + k[None, :]
    w_tile = w + c[None, :] * 768 + k[:, None]
    acc = tl.zeros((64, 32), tl.float32)
    if PLACE > 0:
        gdc_wait()
    if PLACE == 2:
        gdc_launch_dependents()
    for _ in range(0, 768, 128):
        acc = tl.dot(tl.load(x_tile), tl.load(w_tile), acc)
        x_tile += 128
        w_tile += 128
    if PLACE == 3:
        gdc_launch_dependents()
    tl.store(y + m[:, None] * 768 + c[None, :], acc.to(tl.float16))
"""


def measure(name: str, grid: tuple[int, ...], weight: torch.Tensor, arch: str) -> dict[str, float]:
    signature = (*((p, "*fp16") for p in "xwy"), ("n", "i32"), ("PLACE", "constexpr"))
    kernels = [
        Kernel(name, "", signature, (("PLACE", place),), text=TEXT, num_stages=4, pdl=place > 0)
        for place in range(len(PLACES))
    ]
    one, other = (torch.randn(ROWS, WIDTH, device="cuda").half() * 0.03 for _ in range(2))
    graphs = []
    for compiled in compile_kernels(kernels, arch):
        assert isinstance(compiled, Compiled), compiled
        there = Launcher(compiled).freeze(grid, [one, weight, other, one.numel()])
        back = Launcher(compiled).freeze(grid, [other, weight, one, one.numel()])
        graphs.append(capture(lambda there=there, back=back: (there(), back()), PAIRS))
    timings = interleave_graphs(graphs, calls=2 * PAIRS)
    return {place: round(t.median_us, 3) for place, t in zip(PLACES, timings, strict=True)}


def main() -> None:
    device = current_device()
    print(device.key)
    addend = torch.randn(ROWS, WIDTH, device="cuda").half()
    square = torch.randn(WIDTH, WIDTH, device="cuda").half()
    print("pointwise, µs per kernel", measure("pointwise", (96,), addend, device.arch))
    print("product, µs per kernel", measure("product", (2, 24), square, device.arch))


if __name__ == "__main__":
    main()
