"""Attention in one kernel. Operands may have any strides: views of a merged projection, joined heads.

One program computes one block of queries of one head in a loop over the keys, with an online softmax.
Legend: B batch, H heads, S queries, T keys, D head width; M, N blocks of queries and of keys.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ridgeline.kernels.triton.codes import rl_codes, rl_for_float8, rl_levels

_LOG2_E = tl.constexpr(1.4426950408889634)


def attention_ref(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, scale: float, is_causal: bool = False
) -> Tensor:
    """softmax(scale · q kᵀ + mask) v; zeros for a query whose keys are all masked. Never casts."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * scale
    allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
    if is_causal:
        allowed = allowed.tril()
    if mask is not None and mask.dtype == torch.bool:
        allowed = allowed & mask
    elif mask is not None:
        scores = scores + mask
    scores = scores.masked_fill(~allowed, -torch.inf)
    is_blind = (scores == -torch.inf).all(-1, keepdim=True)
    return scores.softmax(-1).masked_fill(is_blind, 0.0) @ v


@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, mask_ptr, y_ptr, scales_ptr,
    S, T,
    q_outer, k_outer, v_outer, mask_outer, y_outer,  # strides of batch and head, of the mask's queries too
    SCALE: tl.constexpr, CAUSAL: tl.constexpr, GROUPS: tl.constexpr,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    Q_INNER: tl.constexpr, K_INNER: tl.constexpr, V_INNER: tl.constexpr, Y_INNER: tl.constexpr,
    UNIT: tl.constexpr, MASK_UNIT: tl.constexpr, MASK: tl.constexpr, GUARD: tl.constexpr,
    PER_QUERY: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ONE_BLOCK: tl.constexpr, PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """y = softmax(SCALE · q kᵀ + mask) v; one program per (block of queries, head, batch).

    `x_outer` counts in units of UNIT elements, which shows the compiler that rows begin on 16 bytes;
    `X_INNER` are the strides of a row and of a column. MASK is "", "bool" or "float". PER_QUERY is false for
    a mask that is the same for every query; it is read as one row. With GUARD, a NaN in y is replaced by
    zero times the values. ONE_BLOCK means that there are at most BLOCK_N keys. PRECISION is that of products
    of float32 operands: "ieee", or "tf32".

    With `scales_ptr`, q, k and v are codes of 8 bits, or y, or all: it gives the scale of q kᵀ, that of v,
    and that of y. Scores and sums are float32, and p v of codes is computed in half precision.
    """
    READS_CODES: tl.constexpr = q_ptr.dtype.element_ty.primitive_bitwidth == 8
    MAKES_CODES: tl.constexpr = y_ptr.dtype.element_ty.primitive_bitwidth == 8
    # the last queries of a causal head have the most keys, so they start first
    block = tl.num_programs(0) - 1 - tl.program_id(0) if CAUSAL else tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    q_ptr += (batch * q_outer[0] + head * q_outer[1]) * UNIT
    k_ptr += (batch * k_outer[0] + head // GROUPS * k_outer[1]) * UNIT
    v_ptr += (batch * v_outer[0] + head // GROUPS * v_outer[1]) * UNIT
    y_ptr += (batch * y_outer[0] + head * y_outer[1]) * UNIT
    m = block * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    e = tl.arange(0, BLOCK_V)
    if MASK != "":
        mask_ptr += (batch * mask_outer[0] + head * mask_outer[1]) * MASK_UNIT
        if PER_QUERY:
            # rows past the end read the last row; their results are not stored
            mask_ptr += tl.minimum(m, S - 1).to(tl.int64)[:, None] * (mask_outer[2] * MASK_UNIT)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()

    factor = tl.load(scales_ptr) if READS_CODES else None
    q = _load(q_ptr, m, d, S, Q_INNER, WIDTH, BLOCK_D, True)  # [M, D]
    top = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    nothing = tl.zeros([BLOCK_V], tl.float32)
    if ONE_BLOCK:
        acc, total, top, nothing = _step(
            acc, total, top, nothing, q, k_ptr, v_ptr, mask_ptr, factor, m, d, e, 0, T, SCALE, CAUSAL, WIDTH,
            VALUE_WIDTH, BLOCK_D, BLOCK_V, K_INNER, V_INNER, MASK, GUARD, BLOCK_N, PRECISION,
            IS_FIRST=True, IS_EDGE=CAUSAL or T < BLOCK_N,
        )  # fmt: skip
    else:
        first_edge = T // BLOCK_N * BLOCK_N
        end = T
        if CAUSAL:
            first_edge = tl.minimum((block * BLOCK_M + 1) // BLOCK_N * BLOCK_N, first_edge)
            end = tl.minimum((block + 1) * BLOCK_M, T)
        for start in range(0, first_edge, BLOCK_N):
            acc, total, top, nothing = _step(
                acc, total, top, nothing, q, k_ptr, v_ptr, mask_ptr, factor, m, d, e, start, T, SCALE, CAUSAL,
                WIDTH,
                VALUE_WIDTH, BLOCK_D, BLOCK_V, K_INNER, V_INNER, MASK, GUARD, BLOCK_N, PRECISION,
                IS_FIRST=False, IS_EDGE=False,
            )  # fmt: skip
        for start in range(first_edge, end, BLOCK_N):
            acc, total, top, nothing = _step(
                acc, total, top, nothing, q, k_ptr, v_ptr, mask_ptr, factor, m, d, e, start, T, SCALE, CAUSAL,
                WIDTH,
                VALUE_WIDTH, BLOCK_D, BLOCK_V, K_INNER, V_INNER, MASK, GUARD, BLOCK_N, PRECISION,
                IS_FIRST=False, IS_EDGE=True,
            )  # fmt: skip
    if MASK != "":
        total = tl.where(total == 0.0, 1.0, total)  # all keys are masked: the row is zeros
    y = acc * (1.0 / total)[:, None]
    if GUARD:
        y = tl.where(y == y, y, nothing[None, :])
    if READS_CODES:
        y = y * tl.load(scales_ptr + 1)
    if MAKES_CODES:
        y = _codes(rl_levels(y, tl.load(scales_ptr + 2)), y_ptr.dtype.element_ty)
    at = y_ptr + m[:, None] * Y_INNER[0] + e[None, :] * Y_INNER[1]
    tl.store(at, y.to(y_ptr.dtype.element_ty), mask=(m < S)[:, None] & (e < VALUE_WIDTH)[None, :])


@triton.jit
def _codes(y, KIND: tl.constexpr):
    """Rounded to the nearest of a type of 8 bits, ties to even, and within its range."""
    if KIND.is_fp8():
        return rl_for_float8(y, 448.0 if KIND.is_fp8e4nv() else 57344.0)
    else:
        return rl_codes(y, tl.zeros_like(y), -128.0, 127.0)


@triton.jit
def _step(
    acc, total, top, nothing, q, k_ptr, v_ptr, mask_ptr, factor, m, d, e, start, T,
    SCALE: tl.constexpr, CAUSAL: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, K_INNER: tl.constexpr, V_INNER: tl.constexpr,
    MASK: tl.constexpr, GUARD: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
    IS_FIRST: tl.constexpr, IS_EDGE: tl.constexpr,
):  # fmt: skip
    """Adds one block of keys to the running sums of p v, of p and of 0 v; the maximum is in powers of two."""
    n = start + tl.arange(0, BLOCK_N)
    k = _load(k_ptr, n, d, T, K_INNER, WIDTH, BLOCK_D, IS_EDGE)  # [N, D]
    v = _load(v_ptr, n, e, T, V_INNER, VALUE_WIDTH, BLOCK_V, IS_EDGE)  # [N, V]
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)  # [M, N]
    if factor is not None:
        scores = scores.to(tl.float32) * factor
        v = v.to(tl.float16)  # exact
    # without a mask the scale is applied in the exponent, where it costs nothing
    late: tl.constexpr = SCALE * _LOG2_E if MASK == "" and SCALE > 0 else 1.0
    if MASK != "" or SCALE <= 0:
        scores *= SCALE * _LOG2_E
    if MASK == "float":
        bias = tl.load(mask_ptr + n[None, :], mask=(n < T)[None, :], other=0.0)
        scores += bias.to(tl.float32) * _LOG2_E
    if MASK == "bool":
        is_seen = tl.load(mask_ptr + n[None, :], mask=(n < T)[None, :], other=0) != 0
        scores = tl.where(is_seen, scores, -float("inf"))
    if IS_EDGE:
        allowed = (n < T)[None, :]
        if CAUSAL:
            allowed = allowed & (n[None, :] <= m[:, None])
        scores = tl.where(allowed, scores, -float("inf"))
    new_top = tl.maximum(top, tl.max(scores, 1) * late)
    shift = new_top
    if MASK != "":
        shift = tl.where(new_top == -float("inf"), 0.0, new_top)
    p = tl.exp2(scores * late - shift[:, None])
    if IS_FIRST:
        total = tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, input_precision=PRECISION)
    else:
        fade = tl.exp2(top - shift)
        total = total * fade + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None], input_precision=PRECISION)
    if GUARD:
        nothing += tl.sum(v.to(tl.float32) * 0.0, 0)
    return acc, total, new_top, nothing


@triton.jit
def _load(
    ptr, rows, columns, n_rows,
    INNER: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, CHECK_ROWS: tl.constexpr,
):  # fmt: skip
    """Loads [rows, columns] with zeros past the ends; masks only what can be past an end."""
    NOTHING: tl.constexpr = 0 if ptr.dtype.element_ty.is_int() else 0.0
    at = ptr + rows[:, None] * INNER[0] + columns[None, :] * INNER[1]
    if CHECK_ROWS and WIDTH == BLOCK:
        x = tl.load(at, mask=(rows < n_rows)[:, None], other=NOTHING)
    elif CHECK_ROWS:
        x = tl.load(at, mask=(rows < n_rows)[:, None] & (columns < WIDTH)[None, :], other=NOTHING)
    elif WIDTH == BLOCK:
        x = tl.load(at)
    else:
        x = tl.load(at, mask=(columns < WIDTH)[None, :], other=NOTHING)
    return x
