"""y = epilogue(x · W) with a constant W: packed panels, a register-blocked tile, the epilogue on hot columns.

M rows of x, K reduced, N columns. W is packed as [N / panel][K][panel]; one thread works on one panel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.kernels.cpp.loops import assign, load, memory_order, merge, parallel, store, whole
from ridgeline.kernels.cpp.ops import POINTWISE
from ridgeline.kernels.cpp.program import Lowering, Memory, Program, Refusal, Val
from ridgeline.spec import Op, Site

GEMV_ROWS = 8
DEPTH = 384  # of K at a time: a panel of it stays in L2 beside the rows of x; 128 to 512 measured alike
ROWS = 144  # of x at a time, about: they share the panel while it is in L2
PARALLEL_MACS = 64 * 1024

_TILE = """
#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

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
class Linear:
    """The anchor of a region: which op, which weight, and the problem's size."""

    op: Op
    x: int  # position among the body's inputs
    weight: str
    is_transposed: bool
    m: int
    k: int
    n: int


def find_linear(site: Site) -> Linear:
    """The one MatMul or Gemm of the body, or `Refusal` with what is in the way."""
    body = site.body
    anchors = [op for op in body.ops if op.key in ("MatMul", "Gemm")]
    if len(anchors) != 1:
        raise Refusal(f"{len(anchors)} MatMul or Gemm ops, want one")
    op = anchors[0]
    x, weight = op.inputs[:2]
    if x not in body.inputs or x in site.values:
        raise Refusal("the left operand is not an input of the region")
    if weight not in site.weights and weight not in body.constants:
        raise Refusal("the right operand is not a constant weight")
    x_spec = site.specs[x]
    shape = site.specs[weight].shape if weight in site.specs else body.constants[weight].shape
    weight_dtype = site.specs[weight].dtype if weight in site.specs else str(body.constants[weight].dtype)
    if len(shape) != 2 or not x_spec.shape:
        raise Refusal(f"weight of rank {len(shape)}, want a matrix")
    if {x_spec.dtype, weight_dtype} != {"float32"}:
        raise Refusal(f"x is {x_spec.dtype} and the weight {weight_dtype}, want float32")
    if x_spec.layout != "contiguous" or op.attrs.get("transA", 0):
        raise Refusal("rows of x are not contiguous")
    is_transposed = bool(op.attrs.get("transB", 0))
    k, n = shape[::-1] if is_transposed else shape
    m = math.prod(x_spec.shape[:-1])
    if 0 in (m, k, n):
        raise Refusal("an axis has no elements")
    return Linear(op, body.inputs.index(x), weight, is_transposed, m, k, n)


def pack(weight: Tensor, linear: Linear, panel: int) -> Tensor:
    """[K, N] as [N / panel][K][panel], zeros behind the last column."""
    w = weight.detach().t() if linear.is_transposed else weight.detach()
    panels = -(-linear.n // panel)
    padded = torch.zeros(linear.k, panels * panel, dtype=torch.float32)
    padded[:, : linear.n] = w
    return padded.view(linear.k, panels, panel).permute(1, 0, 2).contiguous()


def lower_linear(site: Site, linear: Linear) -> tuple[Program, int]:
    """The epilogue as a program that reads `acc`, and the axis of columns."""
    low = Lowering(site, POINTWISE)
    low.value(site.body.inputs[linear.x])
    column = -1
    for op in site.body.ops:
        if op is not linear.op:
            if linear.op.outputs[0] not in low.values and any(
                name in linear.op.inputs for name in op.outputs
            ):
                raise Refusal(f"{op.op_type} comes before the {linear.op.op_type}")
            low.run(op)
            continue
        acc = low.declare("acc", site.specs[op.outputs[0]])
        column = acc.axes[-1]
        low.values[op.outputs[0]] = _gemm_scale(low, op, acc)
    program = low.finish()
    return program, low.root(column) if column >= 0 else column


def _gemm_scale(low: Lowering, op: Op, acc: Val) -> Val:
    alpha, beta = float(op.attrs.get("alpha", 1.0)), float(op.attrs.get("beta", 1.0))
    if alpha != 1.0:
        acc = low.map("{0} * {1}", acc, low.constant(alpha, "float32"))
    if len(op.inputs) > 2 and op.inputs[2]:
        bias = low.value(op.inputs[2])
        if beta != 1.0:
            bias = low.map("{0} * {1}", bias, low.constant(beta, "float32"))
        acc = low.map("{0} + {1}", acc, bias)
    return acc


def linear_source(
    program: Program, linear: Linear, *, column: int, threads: int, panel: int, rows: int, sums: int
) -> str:
    """The kernel's text for tiles of `rows` by `panel`, `sums` accumulators deep."""
    if any(set(m.strides) != set(program.sizes) for m in program.stores):
        raise Refusal("an output is smaller than the product")
    lead = program.stores[0]
    order = [axis for axis in memory_order(program.sizes, lead) if axis != column]
    loops = merge(order, program, prefix="m")
    if len(loops) > 1:
        raise Refusal("an epilogue operand broadcasts among the rows")
    if any(m.strides.get(column, 0) != 1 for m in program.stores if linear.n > 1):
        raise Refusal("columns of an output are not contiguous")
    rows = min(rows, linear.m)
    chunk = linear.m if linear.m <= ROWS else max(1, ROWS // rows) * rows
    panels = -(-linear.n // panel)
    chunks = -(-linear.m // chunk)
    slots = len(program.inputs) + len(program.stores) + len(program.extras)
    x_slot = program.inputs.index(linear.x)
    deep = linear.k if linear.m <= GEMV_ROWS else min(DEPTH, linear.k)
    is_parallel = threads > 1 and linear.m * linear.k * linear.n >= PARALLEL_MACS and panels * chunks > 1
    tail = linear.m % chunk % rows
    last = linear.m % rows if chunks == 1 else tail
    call = f"x + (row + m) * {linear.k}LL + k, {linear.k}, w + k * {panel}, depth, acc_ + m * {panel}, k == 0"
    lines = [
        f"const float* x = (const float*)p[{x_slot}];",
        f"const float* packed = (const float*)p[{slots}];",
        *([parallel(2, threads)] if is_parallel else []),
        f"for (i64 part = 0; part < {panels}; ++part)",
        f"for (i64 row = 0; row < {linear.m}; row += {chunk}) {{",
        f"alignas(64) float acc_[{chunk * panel}];",
        f"const float* w = packed + part * {linear.k * panel}LL;",
        _span("height", "row", chunk, linear.m),
        f"for (i64 k = 0; k < {linear.k}; k += {deep}) {{" if deep < linear.k else "{ const i64 k = 0;",
        _span("depth", "k", deep, linear.k),
        "i64 m = 0;",
        f"for (; m + {rows} <= height; m += {rows}) rl_tile<{rows}, {panel}, {sums}>({call});",
        *([f"if (m < height) rl_tile<{last}, {panel}, {sums}>({call});"] if last else []),
        "}",
        f"const i64 first = part * {panel};",
        f"const i64 stop = first + {panel} < {linear.n} ? first + {panel} : {linear.n};",
        *_epilogue(program, column, panel),
        "}",
    ]
    return whole(program, lines).replace('extern "C"', _TILE.strip() + '\nextern "C"', 1)


def _span(name: str, start: str, piece: int, size: int) -> str:
    """How much of `size` is left at `start`, at most `piece`; a number where the compiler may know it."""
    if size % piece == 0:
        return f"const i64 {name} = {piece};"
    return f"const i64 {name} = {start} + {piece} < {size} ? {piece} : {size} - {start};"


def _epilogue(program: Program, column: int, panel: int) -> list[str]:
    loops = merge([axis for axis in program.sizes if axis != column], program, prefix="m")
    columns = merge([column] if column in program.sizes else [], program, prefix="n")
    nest = [*loops, *columns]

    def is_fixed(memory: Memory) -> bool:
        return not memory.strides.get(column, 0)

    lines = ["for (i64 m = 0; m < height; ++m) {"]
    lines += [f"const i64 {loop.var} = row + m;" for loop in loops]
    lines += [load(m, nest) for m in program.loads if is_fixed(m)]
    lines += ["#pragma omp simd", "for (i64 n0 = first; n0 < stop; ++n0) {"]
    lines += [f"const float acc = acc_[m * {panel} + n0 - first];"]
    lines += [load(m, nest) for m in program.loads if not is_fixed(m)]
    lines += [assign(step) for step in program.steps]
    lines += [store(m, nest) for m in program.stores]
    return [*lines, "}", "}"]
