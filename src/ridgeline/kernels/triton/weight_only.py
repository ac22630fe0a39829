"""Matrix products whose weight is stored in 8 or 4 bits and decoded on the way to the tensor cores.

The weight is the left operand: of a few rows of x only the other side is padded, and decoded numbers go to
the tensor cores from registers. Codes are exact in half types, and scales are applied to sums of blocks.

Packed weight: rows of N, K in groups of PLANES · H numbers. A group is H words of 16 bits; the bits of a
word, from the lowest, are number j of each plane: four planes of nibbles, or two of bytes. float8 numbers,
which the hardware converts in pairs, lie one after the other.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ridgeline.kernels.triton.tiles import finish, prefetch_weight


def weight_only_ref(x: Tensor, w: Tensor, scales: Tensor, zeros: Tensor | None = None) -> Tensor:
    """Σ_k x[m, k] · (w[n, k] - zeros[n, k // H]) · scales[n, k // H]; `w` are numbers, not yet scaled."""
    block = w.shape[1] // scales.shape[1]
    shifted = w if zeros is None else w - zeros.repeat_interleave(block, 1)
    return torch.matmul(x, (shifted * scales.repeat_interleave(block, 1)).mT)


# two words to two numbers of every plane, a plane to a register. Bits go below the leading one of a large
# number whose unit is theirs: 1024 has units of one, 64 has units of 1/16
INT4_TO_FP16 = tl.constexpr("""
{
    .reg .b32 a, low, high;
    mov.b32 low, 0x64086408;
    mov.b32 high, 0x54805480;
    shr.b32 a, $4, 8;
    lop3.b32 $0, $4, 0x000f000f, 0x64006400, 0xea;
    lop3.b32 $1, $4, 0x00f000f0, 0x54005400, 0xea;
    lop3.b32 $2, a, 0x000f000f, 0x64006400, 0xea;
    lop3.b32 $3, a, 0x00f000f0, 0x54005400, 0xea;
    sub.f16x2 $0, $0, low;
    sub.f16x2 $1, $1, high;
    sub.f16x2 $2, $2, low;
    sub.f16x2 $3, $3, high;
}
""")
INT4_TO_BF16 = tl.constexpr("""
{
    .reg .b32 a, b, c, middle;
    mov.b32 middle, 0x43084308;
    shr.b32 a, $4, 4;
    shr.b32 b, $4, 8;
    shr.b32 c, $4, 12;
    lop3.b32 $0, $4, 0x000f000f, 0x43004300, 0xea;
    lop3.b32 $1, a, 0x000f000f, 0x43004300, 0xea;
    lop3.b32 $2, b, 0x000f000f, 0x43004300, 0xea;
    lop3.b32 $3, c, 0x000f000f, 0x43004300, 0xea;
    sub.bf16x2 $0, $0, middle;
    sub.bf16x2 $1, $1, middle;
    sub.bf16x2 $2, $2, middle;
    sub.bf16x2 $3, $3, middle;
}
""")
# sign, exponent and mantissa of E2M1 moved into place: the number times 2^-14
FLOAT4_TO_FP16 = tl.constexpr("""
{
    .reg .b32 a, b, c, d, e, f, g;
    shl.b32 a, $4, 9;
    shl.b32 b, $4, 12;
    shl.b32 c, $4, 5;
    shl.b32 d, $4, 8;
    shl.b32 e, $4, 1;
    shl.b32 f, $4, 4;
    shr.b32 g, $4, 3;
    and.b32 a, a, 0x0e000e00;
    and.b32 c, c, 0x0e000e00;
    and.b32 e, e, 0x0e000e00;
    and.b32 g, g, 0x0e000e00;
    lop3.b32 $0, b, 0x80008000, a, 0xea;
    lop3.b32 $1, d, 0x80008000, c, 0xea;
    lop3.b32 $2, f, 0x80008000, e, 0xea;
    lop3.b32 $3, $4, 0x80008000, g, 0xea;
}
""")
INT8_TO_FP16 = tl.constexpr("""
{
    .reg .b32 a, middle;
    mov.b32 middle, 0x64806480;
    shr.b32 a, $2, 8;
    lop3.b32 $0, $2, 0x00ff00ff, 0x64006400, 0xea;
    lop3.b32 $1, a, 0x00ff00ff, 0x64006400, 0xea;
    sub.f16x2 $0, $0, middle;
    sub.f16x2 $1, $1, middle;
}
""")


@triton.jit
def _int4(words, HALF: tl.constexpr):
    """The lowest nibble q + 8 of words as the number q."""
    if HALF.is_fp16():
        return ((words & 15) | 0x6400).to(tl.float16, bitcast=True) - 1032.0
    else:
        return ((words & 15) | 0x4300).to(tl.bfloat16, bitcast=True) - 136.0


@triton.jit
def _float4(words, HALF: tl.constexpr):
    """The lowest nibble as E2M1, times 2^-14."""
    made = (((words & 8) << 12) | ((words & 7) << 9)).to(tl.float16, bitcast=True)
    if HALF.is_fp16():
        return made
    else:
        return made.to(tl.float32).to(HALF)


@triton.jit
def decode(words, FORMAT: tl.constexpr, HALF: tl.constexpr, PACKED: tl.constexpr):
    """The numbers of every plane, as a tuple.

    PACKED: two words at a time, in instructions that the interpreter does not know.
    """
    if FORMAT == "int4":
        if PACKED and HALF.is_fp16():
            return tl.inline_asm_elementwise(
                INT4_TO_FP16, "=r,=r,=r,=r,r", [words],
                dtype=(tl.float16, tl.float16, tl.float16, tl.float16), is_pure=True, pack=2,
            )  # fmt: skip
        elif PACKED:
            return tl.inline_asm_elementwise(
                INT4_TO_BF16, "=r,=r,=r,=r,r", [words],
                dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16), is_pure=True, pack=2,
            )  # fmt: skip
        else:
            return (
                _int4(words, HALF), _int4(words >> 4, HALF), _int4(words >> 8, HALF), _int4(words >> 12, HALF)
            )  # fmt: skip
    elif FORMAT == "float4_e2m1fn":
        if PACKED and HALF.is_fp16():
            return tl.inline_asm_elementwise(
                FLOAT4_TO_FP16, "=r,=r,=r,=r,r", [words],
                dtype=(tl.float16, tl.float16, tl.float16, tl.float16), is_pure=True, pack=2,
            )  # fmt: skip
        else:
            return (
                _float4(words, HALF), _float4(words >> 4, HALF), _float4(words >> 8, HALF),
                _float4(words >> 12, HALF),
            )  # fmt: skip
    elif FORMAT == "int8":
        if PACKED and HALF.is_fp16():
            return tl.inline_asm_elementwise(
                INT8_TO_FP16, "=r,=r,r", [words], dtype=(tl.float16, tl.float16), is_pure=True, pack=2
            )
        else:
            return ((words & 255) - 128).to(HALF), (((words >> 8) & 255) - 128).to(HALF)
    else:
        return (words.to(HALF),)


@triton.jit
def column_of(tile, PLACE: tl.constexpr):
    """One column of [BN, columns], of which there are a power of two."""
    BN: tl.constexpr = tile.shape[0]
    COLUMNS: tl.constexpr = tile.shape[1]
    if COLUMNS == 1:
        return tl.reshape(tile, (BN,))
    else:
        even, odd = tl.split(tl.reshape(tile, (BN, COLUMNS // 2, 2)))
        return column_of(even if PLACE % 2 == 0 else odd, PLACE // 2)


@triton.jit
def scale_of(stored):
    """A scale in float32; bytes are E8M0, powers of two."""
    if stored.dtype == tl.uint8:
        wide = stored.to(tl.int32)
        # 2^-127 is subnormal, and 255 stands for NaN
        bits = tl.where(wide == 0, 0x400000, tl.where(wide == 255, 0x7FC00000, wide << 23))
        return bits.to(tl.float32, bitcast=True)
    else:
        return stored.to(tl.float32)


@triton.jit
def _block_values(ptr, column, block, BLOCKS: tl.constexpr, S: tl.constexpr):
    """[BN, S] of what blocks have one of each; nothing behind the last."""
    place = block + tl.arange(0, S)
    where = column.to(tl.int64)[:, None] * BLOCKS + place[None, :]
    return tl.load(ptr + where, mask=(place < BLOCKS)[None, :], other=0.0)


@triton.jit
def weight_only(
    x_ptr, w_ptr, scales_ptr, zeros_ptr, parts_ptr, counters_ptr, pointers, rows,
    N: tl.constexpr, K: tl.constexpr, X_ROW: tl.constexpr, W_ROW: tl.constexpr, H: tl.constexpr,
    BLOCK: tl.constexpr, FORMAT: tl.constexpr, HAS_SCALES: tl.constexpr, HAS_ZEROS: tl.constexpr,
    PACKED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT_K: tl.constexpr,
    PREFETCH: tl.constexpr, PDL: tl.constexpr, EPILOGUE: tl.constexpr,
):  # fmt: skip
    """y[m, n] = epilogue(Σ_blocks scales[n, b] · Σ_k∈b x[m, k] · (w[n, k] - zeros[n, b])).

    Grid: column tiles × row tiles, parts of K. A step takes BK numbers of K, in whole groups. A block is one
    plane of a group, or several: BLOCK numbers that share a scale.
    """
    IS_NIBBLES: tl.constexpr = FORMAT == "int4" or FORMAT == "float4_e2m1fn"
    PLANES: tl.constexpr = 4 if IS_NIBBLES else (2 if FORMAT == "int8" else 1)
    # float4 is decoded as multiples of this
    UNIT: tl.constexpr = 16384.0 if FORMAT == "float4_e2m1fn" else 1.0
    HALF: tl.constexpr = x_ptr.dtype.element_ty
    GROUPS: tl.constexpr = BK // (PLANES * H)
    S: tl.constexpr = BK // BLOCK
    BLOCKS: tl.constexpr = (K + BLOCK - 1) // BLOCK
    STEPS: tl.constexpr = (K + BK * SPLIT_K - 1) // (BK * SPLIT_K)
    IS_EVEN_K: tl.constexpr = STEPS * BK * SPLIT_K == K
    COLUMN_TILES: tl.constexpr = (N + BN - 1) // BN
    NOTHING: tl.constexpr = 0.0 if w_ptr.dtype.element_ty.is_fp8() else 0
    tile, part = tl.program_id(0), tl.program_id(1)
    first_column, first_row = tile % COLUMN_TILES * BN, tile // COLUMN_TILES * BM
    first_step = part * STEPS
    if PREFETCH:
        first_word = first_step * (BK // PLANES)
        prefetch_weight(w_ptr, first_column, first_word, N, W_ROW, W_ROW, BN, STEPS * BK // PLANES)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    m = first_row + tl.arange(0, BM)
    n = first_column + tl.arange(0, BN)
    inner = tl.arange(0, H)
    # rows and columns past the edge read the last one: cheaper than a mask, and they are not stored
    column = tl.minimum(n, N - 1)
    w_row = w_ptr + column.to(tl.int64)[:, None] * W_ROW + inner[None, :]  # [BN, H] words
    x_row = x_ptr + tl.minimum(m, rows - 1).to(tl.int64)[None, :] * X_ROW  # [1, BM]
    acc = tl.zeros((BN, BM), tl.float32)
    if HAS_SCALES:
        scales = _block_values(scales_ptr, column, first_step * S, BLOCKS, S)
        if HAS_ZEROS:
            zeros = _block_values(zeros_ptr, column, first_step * S, BLOCKS, S)
    for step in range(STEPS):
        first_block = (first_step + step) * S
        if HAS_SCALES:
            # loaded one step ahead of its use: only operands of products are fetched early by the compiler
            next_scales = _block_values(scales_ptr, column, first_block + S, BLOCKS, S)
            if HAS_ZEROS:
                next_zeros = _block_values(zeros_ptr, column, first_block + S, BLOCKS, S)
        for group in tl.static_range(GROUPS):
            word = ((first_step + step) * GROUPS + group) * H
            if IS_EVEN_K:
                words = tl.load(w_row + word, eviction_policy="evict_first")
            else:
                # the last step may reach past the end of a row
                words = tl.load(w_row + word, mask=(word + inner < W_ROW)[None, :], other=NOTHING)
            planes = decode(words, FORMAT, HALF, PACKED)
            for place in tl.static_range(PLANES):
                w = planes[place]
                k = word * PLANES + place * H + inner
                if IS_EVEN_K:
                    x = tl.load(x_row + k[:, None])
                else:
                    x = tl.load(x_row + k[:, None], mask=(k < K)[:, None], other=0.0)
                # conditions that the compiler must decide are written out
                if HAS_ZEROS:
                    w = w - column_of(zeros, (group * PLANES + place) * H // BLOCK)[:, None]
                if not HAS_SCALES:
                    acc = tl.dot(w, x, acc)
                elif (group * PLANES + place) * H % BLOCK == 0:
                    total = tl.dot(w, x)
                else:
                    total = tl.dot(w, x, total)
                if HAS_SCALES and (group * PLANES + place + 1) * H % BLOCK == 0:
                    scale = scale_of(column_of(scales, (group * PLANES + place) * H // BLOCK)) * UNIT
                    acc += total * scale[:, None]
        if HAS_SCALES:
            scales = next_scales
            if HAS_ZEROS:
                zeros = next_zeros
    if not HAS_SCALES:
        acc *= UNIT
    row = m[:, None]
    finish(
        tl.trans(acc), row, row < rows, first_column, pointers, parts_ptr, counters_ptr, tile, part,
        N, SPLIT_K, 1, EPILOGUE,
    )  # fmt: skip
