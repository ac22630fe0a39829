"""y = epilogue(x · W) with a constant W: packed panels, register tiles, the epilogue while sums are cached.

M rows of x, K reduced, N columns. W is packed as [N / panel][K][panel]; one thread works on one panel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Op, Site
from ridgeline.kernels.cpp import anchor
from ridgeline.kernels.cpp.loops import Loop, merge, parallel, whole
from ridgeline.kernels.cpp.operands import spec_of
from ridgeline.kernels.scalar.axes import ONE
from ridgeline.kernels.scalar.program import Program

GEMV_ROWS = 8
DEPTH = 384  # of K at a time: a panel and the rows of x fit in L2; 128 to 512 measured about equal
ROWS = 144  # of x at a time, approximately; they share the panel while it is in L2
WEIGHT_BYTES = 384 * 1024  # about a third of L2
STACK_BYTES = 512 * 1024  # of one thread's buffer
# about 20 µs of work: below it a second thread saves little on an idle machine, and on a busy one the wait
# for it costs milliseconds
PARALLEL_MACS = 512 * 1024

TILE = """
// acc[R][NB] (+)= x[R][depth] * w[depth][NB]; U sums run side by side to hide the latency of one
template <int R, int NB, int U> FN void rl_tile(const float* x, i64 x_stride, const float* w, i64 depth,
                                                float* acc, bool is_first) {
  enum { NV = NB / LANES };
  vec c[U][R][NV];
#pragma GCC unroll 64
  for (int u = 0; u < U; ++u)
#pragma GCC unroll 64
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 64
      for (int v = 0; v < NV; ++v)
        c[u][r][v] = is_first || u ? vec{} : *(const vec*)(acc + r * NB + v * LANES);
  i64 k = 0;
  for (; k + U <= depth; k += U)
#pragma GCC unroll 64
    for (int u = 0; u < U; ++u) {
      const float* row = w + (k + u) * NB;
#pragma GCC unroll 64
      for (int r = 0; r < R; ++r) {
        const float a = x[r * x_stride + k + u];
#pragma GCC unroll 64
        for (int v = 0; v < NV; ++v) c[u][r][v] += a * *(const vec*)(row + v * LANES);
      }
    }
  for (; k < depth; ++k)
#pragma GCC unroll 64
    for (int r = 0; r < R; ++r) {
      const float a = x[r * x_stride + k];
#pragma GCC unroll 64
      for (int v = 0; v < NV; ++v) c[0][r][v] += a * *(const vec*)(w + k * NB + v * LANES);
    }
#pragma GCC unroll 64
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 64
    for (int v = 0; v < NV; ++v) {
      vec sum = c[0][r][v];
#pragma GCC unroll 64
      for (int u = 1; u < U; ++u) sum += c[u][r][v];
      *(vec*)(acc + r * NB + v * LANES) = sum;
    }
}
"""


@dataclass(frozen=True)
class Lines:
    """Rows of x that are every `stride`-th position of images: sizes as (lines, positions in a line)."""

    size: tuple[int, int]
    made: tuple[int, int]
    stride: tuple[int, int]


@dataclass(frozen=True)
class Linear:
    """The anchor of a region: its op, its weight, and its sizes."""

    op: Op
    x: int  # position among the body's inputs
    weight: str
    is_transposed: bool
    m: int
    k: int
    n: int
    lines: Lines | None = None  # None: the rows of x are contiguous

    def weight_kn(self, weight: Tensor) -> Tensor:
        weight = weight.detach()
        return weight.reshape(self.n, self.k).t() if self.is_transposed else weight


@dataclass(frozen=True)
class Tile:
    """How the product is cut: `rows` by `panel` in registers, `sums` accumulators deep."""

    panel: int
    rows: int
    sums: int = 1
    drag: float = 1.0  # time of a multiplication relative to that of the best tile


def find_linear(site: Site) -> Linear:
    """The one MatMul or Gemm of the body, or `RefusedError`."""
    body = site.body
    anchors = [op for op in body.ops if op.key in ("MatMul", "Gemm")]
    if len(anchors) != 1:
        raise RefusedError(f"{len(anchors)} MatMul or Gemm ops, want one")
    op = anchors[0]
    x, weight = op.inputs[:2]
    if x not in body.inputs or x in site.values:
        raise RefusedError("the left operand is not an input of the region")
    if weight not in site.weights and weight not in body.constants:
        raise RefusedError("the right operand is not a constant weight")
    x_spec, weight_spec = site.specs[x], spec_of(site, weight)
    if len(weight_spec.shape) != 2 or not x_spec.shape:
        raise RefusedError(f"weight of rank {len(weight_spec.shape)}, want a matrix")
    if {x_spec.dtype, weight_spec.dtype} != {"float32"}:
        raise RefusedError(f"x is {x_spec.dtype} and the weight {weight_spec.dtype}, want float32")
    if x_spec.layout != "contiguous" or op.attrs.get("transA", 0):
        raise RefusedError("rows of x are not contiguous")
    is_transposed = bool(op.attrs.get("transB", 0))
    k, n = weight_spec.shape[:: -1 if is_transposed else 1]
    m = math.prod(x_spec.shape[:-1])
    if 0 in (m, k, n):
        raise RefusedError("an axis has no elements")
    return Linear(op, body.inputs.index(x), weight, is_transposed, m, k, n)


def pack(weight_kn: Tensor, panel: int) -> Tensor:
    """[K, N] as [N / panel][K][panel], with zeros after the last column."""
    k, n = weight_kn.shape
    panels = -(-n // panel)
    if n == panels * panel and weight_kn.dtype == torch.float32:
        return weight_kn.reshape(k, panels, panel).permute(1, 0, 2).contiguous()
    padded = torch.zeros(k, panels * panel, dtype=torch.float32)
    padded[:, :n] = weight_kn
    return padded.view(k, panels, panel).permute(1, 0, 2).contiguous()


def lower_linear(site: Site, linear: Linear) -> tuple[Program, list[Loop], Loop]:
    """The epilogue as a program that reads `acc`; its loop over rows (none for a single one) and columns."""
    program, axes = anchor.lower_around(site, linear.op, linear.x)
    column = axes[1 if linear.op.op_type == "Conv" else -1]
    anchor.require_columns(program, axes, column)
    # in the order of the rows of x, which may differ from that of an output
    rows = merge([axis for axis in axes if axis not in (ONE, column)], program, prefix="m")
    if len(rows) > 1:
        raise RefusedError("an epilogue operand broadcasts among the rows")
    if math.prod(loop.size for loop in rows) != linear.m or program.sizes.get(column, 1) != linear.n:
        raise RefusedError(f"the result is not {linear.m} rows by {linear.n} columns")
    return program, rows, Loop("c", column, linear.n, frozenset([column]))


def chunk_rows(linear: Linear, rows: int, threads: int) -> int:
    """Rows of x that share a panel while it is in L2: about `ROWS`, equal for all threads."""
    if linear.lines is not None:
        return linear.lines.made[1]
    if linear.m <= max(ROWS, 2 * threads * rows):
        return linear.m
    chunks = -(-linear.m // ROWS // threads) * threads or 1
    return -(-linear.m // chunks // rows) * rows


def rank_tiles(linear: Linear, tiles: Sequence[Tile], threads: int) -> list[Tile]:
    """Best guess first, by the multiplications (with padding) of the thread that has the most."""

    def cost(tile: Tile) -> float:
        rows = min(tile.rows, linear.m)
        chunk = chunk_rows(linear, rows, threads)
        panels = -(-linear.n // tile.panel)
        heights = [min(chunk, linear.m - row) for row in range(0, linear.m, chunk)]
        if _is_rows_first(linear):
            parts = [height for height in heights for _ in range(panels)]
        else:
            parts = heights * panels
        share = -(-len(parts) // threads)
        slowest = max(sum(parts[i : i + share]) for i in range(0, len(parts), share))
        return slowest * tile.panel * tile.drag

    return sorted(tiles, key=cost)


def _is_rows_first(linear: Linear) -> bool:
    """Whether the whole weight fits in L2; then rows are the outer loop, and each is written at once."""
    return linear.k * linear.n * 4 <= WEIGHT_BYTES


def linear_source(site: Site, linear: Linear, tile: Tile, *, threads: int) -> tuple[Program, str]:
    """The kernel's text for one cut of the product, and the program it came from."""
    program, loops, column = lower_linear(site, linear)
    panel, rows = tile.panel, min(tile.rows, linear.m)
    chunk = chunk_rows(linear, rows, threads)
    if 4 * chunk * panel > STACK_BYTES:
        raise RefusedError(f"lines of {chunk} positions, want at most {STACK_BYTES // 4 // panel}")
    panels, chunks = -(-linear.n // panel), -(-linear.m // chunk)
    deep = linear.k if linear.m <= GEMV_ROWS else min(DEPTH, linear.k)
    is_parallel = threads > 1 and linear.m * linear.k * linear.n >= PARALLEL_MACS and panels * chunks > 1
    last = (linear.m % chunk or chunk) % rows
    base, x_stride = _rows_of_x(linear)
    tiled = f"rl_tile<{{}}, {panel}, {tile.sums}>({base} + m * {x_stride}LL + k, {x_stride}, "
    tiled += f"w + k * {panel}, depth, acc_ + m * {panel}, k == 0);"
    nest = [
        f"for (i64 part = 0; part < {panels}; ++part)",
        f"for (i64 row = 0; row < {linear.m}; row += {chunk})",
    ]
    lines = [
        *anchor.operands_text(program, linear.x),
        *([parallel(2, threads)] if is_parallel else []),
        *(reversed(nest) if _is_rows_first(linear) else nest),
        "{",
        f"alignas(64) float acc_[{chunk * panel}];",
        f"const float* w = packed + part * {linear.k * panel}LL;",
        _span("height", "row", chunk, linear.m),
        f"for (i64 k = 0; k < {linear.k}; k += {deep}) {{" if deep < linear.k else "{ const i64 k = 0;",
        _span("depth", "k", deep, linear.k),
        "i64 m = 0;",
        f"for (; m + {rows} <= height; m += {rows}) {tiled.format(rows)}",
        *([f"if (m < height) {tiled.format(last)}"] if last else []),
        "}",
        f"const i64 first = part * {panel};",
        f"const i64 stop = {anchor.past('first', panel, linear.n)};",
        "for (i64 m = 0; m < height; ++m) {",
        *(f"const i64 {loop.var} = row + m;" for loop in loops),
        *anchor.epilogue(
            program, rows=loops, column=column, start="first", stop="stop",
            acc=f"acc_[m * {panel} + c - first]",
        ),
        "}",
        "}",
    ]  # fmt: skip
    weight_items = panels * linear.k * panel
    touched = anchor.touching(program, linear.x, items=_items_of_x(linear), weight_items=weight_items)
    return touched, whole(program, lines, helpers=anchor.VECTORS + TILE)


def _items_of_x(linear: Linear) -> int:
    """Items of x up to the end of the last row that is read."""
    if linear.lines is None:
        return linear.m * linear.k
    (size_h, size_w), (made_h, made_w), (step_h, step_w) = (
        linear.lines.size, linear.lines.made, linear.lines.stride,
    )  # fmt: skip
    line = (linear.m // (made_h * made_w) - 1) * size_h + (made_h - 1) * step_h
    return (line * size_w + (made_w - 1) * step_w + 1) * linear.k


def _rows_of_x(linear: Linear) -> tuple[str, int]:
    """The address in x of the chunk that starts at `row`, and the stride of its rows."""
    if linear.lines is None:
        return f"x + row * {linear.k}LL", linear.k
    (size_h, size_w), (made_h, made_w), (step_h, step_w) = (
        linear.lines.size, linear.lines.made, linear.lines.stride,
    )  # fmt: skip
    line = f"row / {made_h * made_w} * {size_h} + row / {made_w} % {made_h} * {step_h}"
    return f"x + ({line}) * {size_w * linear.k}LL", linear.k * step_w


def _span(name: str, start: str, piece: int, size: int) -> str:
    """What is left of `size` at `start`, at most `piece`; a constant if all pieces are whole."""
    if size % piece == 0:
        return f"const i64 {name} = {piece};"
    return f"const i64 {name} = {start} + {piece} < {size} ? {piece} : {size} - {start};"
