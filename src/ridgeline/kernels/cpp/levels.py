"""y = epilogue(Σ x · w) of 8-bit levels: exact sums in 32 bits by VNNI, for products and convolutions.

VNNI multiplies levels without a sign by levels with one. Levels of x that have a sign are shifted by 128, and
what that and the zero point add to a sum, a multiple of the weight's column sum, is taken away again. Weights
without a sign are shifted in the same way: that and their zero points add multiples of the row's sum. No step
saturates. M rows of x, K levels each in quads of four, N columns. The weight is packed as [N / panel][K / 4]
[panel][4]; rows of a convolution are gathered windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Site
from ridgeline.kernels.cpp import anchor
from ridgeline.kernels.cpp.linear import PARALLEL_MACS, Linear, lower_linear
from ridgeline.kernels.cpp.loops import parallel, whole
from ridgeline.kernels.scalar.program import Program
from ridgeline.kernels.windows import Windows

WINDOW_BYTES = 192 * 1024  # of gathered rows, on a thread's stack
MOST_ROWS = 128
# 255 * 127 * K stays inside 32 bits
MOST_DEPTH = 2**31 // (255 * 128)

TILE = """
#if defined(__AVX512VNNI__)
#define LANES 16
#define DOT "vpdpbusd %2, %1, %0"
#else
#define LANES 8
#define DOT "{vex} vpdpbusd %2, %1, %0"
#endif
// written out: the headers with its intrinsic take longer to read than a kernel to compile
typedef int quads __attribute__((vector_size(4 * LANES), aligned(1), may_alias));
FN quads rl_dot(quads sum, quads x, quads w) {
  asm(DOT : "+v"(sum) : "v"(x), "v"(w));
  return sum;
}
// acc[R][NB] = x[R][4 * depth] * w[depth][NB][4]; FLIP turns the sign bits of x
template <int R, int NB, unsigned FLIP> FN void rl_levels(const unsigned char* x, i64 x_stride,
                                                          const signed char* w, i64 depth, int* acc) {
  enum { NV = NB / LANES };
  quads c[R][NV];
#pragma GCC unroll 64
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 64
    for (int v = 0; v < NV; ++v) c[r][v] = quads{};
  for (i64 k = 0; k < depth; ++k) {
    quads b[NV];
#pragma GCC unroll 64
    for (int v = 0; v < NV; ++v) b[v] = *(const quads*)(w + (k * NB + v * LANES) * 4);
#pragma GCC unroll 64
    for (int r = 0; r < R; ++r) {
      unsigned a;
      __builtin_memcpy(&a, x + r * x_stride + 4 * k, 4);
      const quads s = quads{} + (int)(a ^ FLIP);
#pragma GCC unroll 64
      for (int v = 0; v < NV; ++v) c[r][v] = rl_dot(c[r][v], s, b[v]);
    }
  }
#pragma GCC unroll 64
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 64
    for (int v = 0; v < NV; ++v) *(quads*)(acc + r * NB + v * LANES) = c[r][v];
}
"""


@dataclass(frozen=True)
class Gathered(Windows):
    """The windows that rows are gathered from."""

    channels: int
    is_last: bool  # the channels of one position lie together


@dataclass(frozen=True)
class LevelsProduct:
    """A product of levels: its sizes, where its scale and zero point come from, and its windows if any."""

    linear: Linear  # over numbers
    x_scale: int  # places among the body's inputs
    x_zero: int | None
    is_signed: bool
    is_shifted: bool = False  # the weight has zero points, or no sign
    windows: Gathered | None = None

    @property
    def quads(self) -> int:
        return -(-self.linear.k // 4)

    @property
    def chunk(self) -> int:
        """Rows that are worked on at a time."""
        if self.windows is None:
            return min(self.linear.m, MOST_ROWS)
        fitting = WINDOW_BYTES // (4 * self.quads)
        if not fitting:
            raise RefusedError(f"windows of {self.linear.k} levels, want at most {WINDOW_BYTES}")
        return min(self.linear.m, fitting, MOST_ROWS)


def pack_levels(weight_kn: Tensor, scale: Tensor, panel: int, zero: Tensor | None = None) -> list[Tensor]:
    """The weight in panels of quads, one scale per column, the sums of the columns, and their zero points."""
    k, n = weight_kn.shape
    shift = 128 if weight_kn.dtype == torch.uint8 else 0
    weight_kn = (weight_kn.to(torch.int16) - shift).to(torch.int8)
    quads, panels = -(-k // 4), -(-n // panel)
    padded = torch.zeros(quads * 4, panels * panel, dtype=torch.int8)
    padded[:k, :n] = weight_kn
    packed = padded.view(quads, 4, panels, panel).permute(2, 0, 3, 1).contiguous()
    scales = torch.zeros(panels * panel)
    scales[:n] = scale.reshape(-1).float()
    made = [packed, scales, padded.to(torch.int32).sum(0, dtype=torch.int32)]
    if zero is None:
        return made
    zeros = torch.zeros(panels * panel, dtype=torch.int32)
    zeros[:n] = zero.to(torch.int32) - shift
    return [*made, zeros]


def levels_source(
    site: Site, product: LevelsProduct, *, panel: int, rows: int, threads: int
) -> tuple[Program, str]:
    """The kernel's text for one cut of the product, and the program it came from."""
    linear = product.linear
    if linear.k > MOST_DEPTH // (2 if product.is_shifted else 1):
        raise RefusedError(f"sums of {linear.k} products may pass 32 bits")
    if product.windows is None and linear.k % 4:
        raise RefusedError(f"rows of {linear.k} levels, want a multiple of 4")
    lowered, loops, column = lower_linear(site, linear)
    slots = [product.x_scale] + ([product.x_zero] if product.x_zero is not None else [])
    program = replace(lowered, inputs=(*lowered.inputs, *slots))
    chunk, deep = product.chunk, 4 * product.quads
    rows = min(rows, chunk)
    panels, chunks = -(-linear.n // panel), -(-linear.m // chunk)
    is_parallel = threads > 1 and linear.m * linear.k * linear.n >= PARALLEL_MACS
    shared = [parallel(1, threads)] if is_parallel else []
    source = f"rows_ + m * {deep}LL" if product.windows is not None else f"x + (row + m) * {deep}LL"
    flip = "0x80808080u" if product.is_signed else "0u"
    tiled = f"rl_levels<{{}}, {panel}, {flip}>({source}, {deep}, w, {product.quads}, acc_ + m * {panel});"
    total = f"acc_[m * {panel} + c - first] - zero_ * sums_[c]"
    if product.is_shifted:  # parts may pass 32 bits, which cancels in the sum
        total = f"(int)((unsigned){total.replace('zero_ *', '(unsigned)zero_ *')}"
        total += f" - (unsigned)zeros_[c] * (unsigned)(row_sums_[m] - {linear.k} * zero_))"
    lefts = sorted({chunk % rows, linear.m % chunk % rows} - {0})
    lines = [
        *_operands(program, product),
        *(shared if chunks > 1 else []),
        f"for (i64 row = 0; row < {linear.m}; row += {chunk}) {{",
        f"const i64 height = row + {chunk} < {linear.m} ? {chunk} : {linear.m} - row;",
        *(_gather(product.windows, linear, chunk, deep) if product.windows is not None else []),
        *(_row_sums(product, source, chunk) if product.is_shifted else []),
        *(shared if chunks == 1 and panels > 1 else []),
        f"for (i64 part = 0; part < {panels}; ++part) {{",
        f"alignas(64) int acc_[{chunk * panel}];",
        f"const signed char* w = packed + part * {deep * panel}LL;",
        "i64 m = 0;",
        f"for (; m + {rows} <= height; m += {rows}) {tiled.format(rows)}",
        *(f"if (height - m == {left}) {tiled.format(left)}" for left in lefts),
        f"const i64 first = part * {panel};",
        f"const i64 stop = {anchor.past('first', panel, linear.n)};",
        "for (i64 m = 0; m < height; ++m) {",
        *(f"const i64 {loop.var} = row + m;" for loop in loops),
        *anchor.epilogue(
            program, rows=loops, column=column, start="first", stop="stop",
            acc=f"(float)({total}) * (scale_ * scales_[c])",
        ),
        "}", "}", "}",
    ]  # fmt: skip
    return _touching(program, product, panels * panel), whole(program, lines, helpers=TILE)


def _operands(program: Program, product: LevelsProduct) -> Sequence[str]:
    """The levels, their scale and zero point, and the packed weight with its scales and sums."""
    x, packed = program.inputs.index(product.linear.x), len(program.inputs) + len(program.stores)
    packed += len(program.extras)
    first = len(program.inputs) - (1 if product.x_zero is None else 2)
    shift = 128 if product.is_signed else 0
    has_edges = product.windows is not None and product.windows.reads_outside
    kind = "signed char" if product.is_signed else "unsigned char"
    zero = f"{shift}" if product.x_zero is None else f"(int)*(const {kind}*)p[{first + 1}] + {shift}"
    return [
        f"const unsigned char* x = (const unsigned char*)p[{x}];",
        f"const float scale_ = *(const float*)p[{first}];",
        f"const int zero_ = {zero};",
        *([f"const unsigned char empty_ = (unsigned char)(zero_ - {shift});"] if has_edges else []),
        f"const signed char* packed = (const signed char*)p[{packed}];",
        f"const float* scales_ = (const float*)p[{packed + 1}];",
        f"const int* sums_ = (const int*)p[{packed + 2}];",
        *([f"const int* zeros_ = (const int*)p[{packed + 3}];"] if product.is_shifted else []),
    ]


def _row_sums(product: LevelsProduct, source: str, chunk: int) -> list[str]:
    """The sums of the levels of each row, as VNNI reads them: without a sign."""
    flip = 128 if product.is_signed else 0
    return [
        f"int row_sums_[{chunk}];",
        "for (i64 m = 0; m < height; ++m) {",
        f"const unsigned char* from = {source};",
        "int sum = 0;",
        f"for (i64 k = 0; k < {product.linear.k}; ++k) sum += from[k] ^ {flip};",
        "row_sums_[m] = sum;",
        "}",
    ]


def _touching(program: Program, product: LevelsProduct, columns: int) -> Program:
    linear, windows = product.linear, product.windows
    levels = linear.m * linear.k
    if windows is not None:
        images = linear.m // (windows.made[0] * windows.made[1])
        levels = images * windows.channels * windows.size[0] * windows.size[1]
    first = len(program.inputs) - (1 if product.x_zero is None else 2)
    touched = {
        f"p{program.inputs.index(linear.x)}": levels, f"p{first}": 4,
        "w0": 4 * product.quads * columns, "w1": 4 * columns, "w2": 4 * columns,
    }  # fmt: skip
    touched |= {"w3": 4 * columns} if product.is_shifted else {}
    return replace(program, touched=touched | ({} if product.x_zero is None else {f"p{first + 1}": 1}))


def _gather(windows: Gathered, linear: Linear, chunk: int, deep: int) -> list[str]:
    """Rows of taps; the level of zero where a window reaches over an edge, zeros up to a whole quad."""
    (size_h, size_w), (made_h, made_w), (kernel_h, kernel_w) = windows.size, windows.made, windows.kernel
    channels, tail = windows.channels, deep - linear.k
    edge = f"ih >= 0 && ih < {size_h} && iw >= 0 && iw < {size_w}" if windows.reads_outside else ""
    taps = [
        f"for (i64 i = 0; i < {kernel_h}; ++i)",
        f"for (i64 j = 0; j < {kernel_w}; ++j) {{",
        f"const i64 ih = top + i * {windows.dilation[0]}, iw = left + j * {windows.dilation[1]};",
    ]
    if windows.is_last:
        copy = f"__builtin_memcpy(to, from + (ih * {size_w} + iw) * {channels}LL, {channels});"
        clear = f"else __builtin_memset(to, empty_, {channels});"
        body = [*taps, *([f"if ({edge})", copy, clear] if edge else [copy]), f"to += {channels};", "}"]
    else:
        read = f"from[ih * {size_w}LL + iw]"
        body = [
            f"for (i64 c = 0; c < {channels}; ++c, from += {size_h * size_w}LL)", *taps,
            f"*to++ = {f'{edge} ? {read} : empty_' if edge else read};", "}",
        ]  # fmt: skip
    return [
        f"alignas(64) unsigned char rows_[{chunk * deep}];",
        "for (i64 m = 0; m < height; ++m) {",
        f"const i64 top = (row + m) / {made_w} % {made_h} * {windows.stride[0]} - {windows.pads[0]};",
        f"const i64 left = (row + m) % {made_w} * {windows.stride[1]} - {windows.pads[1]};",
        f"const unsigned char* from = x + (row + m) / {made_h * made_w} * {channels * size_h * size_w}LL;",
        f"unsigned char* to = rows_ + m * {deep}LL;",
        *body,
        *([f"__builtin_memset(to, 0, {tail});"] if tail else []),
        "}",
    ]
