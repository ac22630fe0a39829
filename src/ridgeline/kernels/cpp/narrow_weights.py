"""y = epilogue(x · W) for a few rows of float x and a weight of int8 or int4 levels, read as they are.

Such a product takes as long as reading its weight. Levels become floats in registers; sums of one block of K
are multiplied by the block's scales, one per column. A weight with scales per column is one block. M rows of
x, N columns. Panels are packed as [N / panel][K][panel] bytes, or two levels of K to a byte, the first low.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Site
from ridgeline.kernels.cpp import anchor
from ridgeline.kernels.cpp.linear import PARALLEL_MACS, Linear, lower_linear
from ridgeline.kernels.cpp.loops import parallel, whole
from ridgeline.kernels.scalar.program import Program

MOST_ROWS = 4

TILE = """
typedef signed char bytes __attribute__((vector_size(LANES), aligned(1), may_alias));
typedef int whole __attribute__((vector_size(4 * LANES)));
// compilers widen bytes one by one
FN whole rl_widened(const signed char* from) {
#if defined(__AVX2__)
  whole made;
  asm("vpmovsxbd %1, %0" : "=v"(made) : "m"(*(const bytes*)from));
  return made;
#else
  return __builtin_convertvector(*(const bytes*)from, whole);
#endif
}
// sums[R][NB] += x[R][depth] * w[depth][NB] of one block, times the scales of its columns
template <int R, int NB, int BITS> FN void rl_narrow(const float* x, i64 x_stride, const signed char* w,
                                                     i64 depth, const float* scales, float* sums) {
  enum { NV = NB / LANES };
  vec even[R][NV], odd[R][NV];  // two sums, so that one need not wait for the other
#pragma GCC unroll 64
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 64
    for (int v = 0; v < NV; ++v) even[r][v] = odd[r][v] = vec{};
  i64 k = 0;
  for (; k + 2 <= depth; k += 2) {
#pragma GCC unroll 64
    for (int v = 0; v < NV; ++v) {
      const signed char* at = w + k * BITS / 8 * NB + v * LANES;
      const whole first = rl_widened(at), second = BITS == 8 ? rl_widened(at + NB) : first >> 4;
      const vec a = __builtin_convertvector(BITS == 8 ? first : (first << 28) >> 28, vec);
      const vec b = __builtin_convertvector(second, vec);
#pragma GCC unroll 64
      for (int r = 0; r < R; ++r) {
        even[r][v] += x[r * x_stride + k] * a;
        odd[r][v] += x[r * x_stride + k + 1] * b;
      }
    }
  }
  for (; BITS == 8 && k < depth; ++k)
#pragma GCC unroll 64
    for (int v = 0; v < NV; ++v) {
      const vec a = __builtin_convertvector(rl_widened(w + k * NB + v * LANES), vec);
#pragma GCC unroll 64
      for (int r = 0; r < R; ++r) even[r][v] += x[r * x_stride + k] * a;
    }
#pragma GCC unroll 64
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 64
    for (int v = 0; v < NV; ++v)
      *(vec*)(sums + r * NB + v * LANES) += (even[r][v] + odd[r][v]) * *(const vec*)(scales + v * LANES);
}
"""


@dataclass(frozen=True)
class NarrowProduct:
    """A product with a weight of levels: its sizes over numbers, bits of a level, and K of a block."""

    linear: Linear
    bits: int
    block: int


def pack_narrow(levels_kn: Tensor, scales_bn: Tensor, panel: int, bits: int) -> tuple[Tensor, Tensor]:
    """Levels [K, N] as panels of bytes, and scales [blocks, N] as panels of floats."""
    k, n = levels_kn.shape
    panels = -(-n // panel)
    padded = torch.zeros(k, panels * panel, dtype=torch.int8)
    padded[:, :n] = levels_kn
    if bits == 4:
        low, high = padded[0::2].to(torch.int16), padded[1::2].to(torch.int16)
        padded = ((high << 4) | (low & 15)).to(torch.int8)
    scales = torch.zeros(scales_bn.shape[0], panels * panel)
    scales[:, :n] = scales_bn

    def cut(rows: Tensor) -> Tensor:
        return rows.view(rows.shape[0], panels, panel).permute(1, 0, 2).contiguous()

    return cut(padded), cut(scales)


def narrow_source(site: Site, product: NarrowProduct, *, panel: int, threads: int) -> tuple[Program, str]:
    """The kernel's text, and the program it came from."""
    linear = product.linear
    if linear.m > MOST_ROWS:
        raise RefusedError(f"{linear.m} rows, want at most {MOST_ROWS}: more are bound by multiplications")
    if linear.k % product.block or (product.bits == 4 and product.block % 2):
        raise RefusedError(f"blocks of {product.block} in {linear.k} levels are not whole")
    program, loops, column = lower_linear(site, linear)
    panels, blocks = -(-linear.n // panel), linear.k // product.block
    is_parallel = threads > 1 and linear.m * linear.k * linear.n >= PARALLEL_MACS and panels > 1
    slot = len(program.inputs) + len(program.stores) + len(program.extras)
    row_bytes = product.block * product.bits // 8 * panel
    lines = [
        f"const float* x = (const float*)p[{program.inputs.index(linear.x)}];",
        f"const signed char* packed = (const signed char*)p[{slot}];",
        f"const float* scales = (const float*)p[{slot + 1}];",
        *([parallel(1, threads)] if is_parallel else []),
        f"for (i64 part = 0; part < {panels}; ++part) {{",
        f"alignas(64) float acc_[{linear.m * panel}] = {{}};",
        f"for (i64 block = 0; block < {blocks}; ++block)",
        f"rl_narrow<{linear.m}, {panel}, {product.bits}>(x + block * {product.block}, {linear.k}, "
        f"packed + (part * {blocks} + block) * {row_bytes}LL, {product.block}, "
        f"scales + (part * {blocks} + block) * {panel}LL, acc_);",
        f"const i64 first = part * {panel};",
        f"const i64 stop = {anchor.past('first', panel, linear.n)};",
        f"for (i64 m = 0; m < {linear.m}; ++m) {{",
        *(f"const i64 {loop.var} = m;" for loop in loops),
        *anchor.epilogue(
            program, rows=loops, column=column, start="first", stop="stop",
            acc=f"acc_[m * {panel} + c - first]",
        ),
        "}", "}",
    ]  # fmt: skip
    touched = {
        f"p{program.inputs.index(linear.x)}": 4 * linear.m * linear.k,
        "w0": panels * blocks * row_bytes, "w1": 4 * panels * blocks * panel,
    }  # fmt: skip
    return replace(program, touched=touched), whole(program, lines, helpers=anchor.VECTORS + TILE)
