"""One row of x with a weight that is stored in 8 or 4 bits, packed as `weight_only` describes.

Tensor cores would wait for each other's operands, and the few products of one row do not need them: words go
from memory to registers and are summed there.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ridgeline.kernels.triton.tiles import finish, prefetch_weight
from ridgeline.kernels.triton.weight_only import scale_of


@triton.jit
def _two_halves(bits, HALF: tl.constexpr):
    """The two numbers of 16 bits in words of 32, as float32."""
    if HALF.is_fp16():
        low = bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        return low, (bits >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        return (bits << 16).to(tl.float32, bitcast=True), ((bits >> 16) << 16).to(tl.float32, bitcast=True)


@triton.jit
def _add_integers(
    total, words, leading, x, zero, PLACE: tl.constexpr, BITS: tl.constexpr, HALF: tl.constexpr
):  # fmt: skip
    """total + Σ over the two numbers in a word: (code of one plane - zero) · x; `leading` is 2^23, as bits.

    Bits below the leading one of 2^23 count its units. Those of a plane count 2^(PLACE · BITS) units, which x
    is divided by; nothing is shifted or converted.
    """
    RAISED: tl.constexpr = 1 << (PLACE * BITS)
    MASK: tl.constexpr = ((1 << BITS) - 1) * RAISED
    low, high = _two_halves(x, HALF)
    # codes are stored moved up by half their range
    offset = 8388608.0 + (1 << (BITS - 1)) * RAISED + zero * RAISED
    first = ((words & MASK) | leading).to(tl.float32, bitcast=True) - offset
    second = (((words >> 16) & MASK) | leading).to(tl.float32, bitcast=True) - offset
    total += first * (low * (1.0 / RAISED))
    return total + second * (high * (1.0 / RAISED))


@triton.jit
def _by_group(total, GROUPS: tl.constexpr):
    """[BN, words] summed to [BN, GROUPS]."""
    BN: tl.constexpr = total.shape[0]
    return tl.sum(tl.reshape(total, (BN, GROUPS, total.shape[1] // GROUPS)), 2)


@triton.jit
def _for_every_word(values, WORDS: tl.constexpr):
    """[BN, GROUPS] to all words of a group, as [BN, words]."""
    BN: tl.constexpr = values.shape[0]
    GROUPS: tl.constexpr = values.shape[1]
    wide = tl.broadcast_to(values[:, :, None], (BN, GROUPS, WORDS))
    return tl.reshape(wide, (BN, GROUPS * WORDS))


@triton.jit
def one_row(
    x_ptr, w_ptr, scales_ptr, zeros_ptr, parts_ptr, counters_ptr, pointers, rows,
    N: tl.constexpr, K: tl.constexpr, X_ROW: tl.constexpr, W_ROW: tl.constexpr, H: tl.constexpr,
    BLOCK: tl.constexpr, FORMAT: tl.constexpr, HAS_SCALES: tl.constexpr, HAS_ZEROS: tl.constexpr,
    PACKED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT_K: tl.constexpr,
    PREFETCH: tl.constexpr, PDL: tl.constexpr, EPILOGUE: tl.constexpr,
):  # fmt: skip
    """y[n] = epilogue(Σ_blocks scales[n, b] · Σ_k∈b x[k] · (w[n, k] - zeros[n, b])), with BM = 1.

    Grid: column tiles × rows, parts of K. The first words are loaded before the wait for the previous kernel,
    the rest one step ahead of their use. Integers are read as words of 32 bits, two of the packed weight,
    beside the two numbers of x. The reference is `weight_only_ref`.
    """
    IS_INTEGER: tl.constexpr = FORMAT == "int4" or FORMAT == "int8"
    BITS: tl.constexpr = 4 if FORMAT == "int4" else 8
    PLANES: tl.constexpr = 16 // BITS if IS_INTEGER else 1
    HALF: tl.constexpr = x_ptr.dtype.element_ty
    GROUPS: tl.constexpr = BK // (PLANES * H)
    BLOCKS: tl.constexpr = (K + BLOCK - 1) // BLOCK
    STEPS: tl.constexpr = (K + BK * SPLIT_K - 1) // (BK * SPLIT_K)
    IS_EVEN_K: tl.constexpr = STEPS * BK * SPLIT_K == K
    COLUMN_TILES: tl.constexpr = (N + BN - 1) // BN
    PAIR: tl.constexpr = 2 if IS_INTEGER else 1
    HP: tl.constexpr = H // PAIR  # words of a group
    NOTHING: tl.constexpr = 0 if IS_INTEGER else 0.0
    tile, part = tl.program_id(0), tl.program_id(1)
    first_column, row = tile % COLUMN_TILES * BN, tile // COLUMN_TILES
    first_group = part * (STEPS * GROUPS)
    column = tl.minimum(first_column + tl.arange(0, BN), N - 1).to(tl.int64)[:, None]
    group = tl.arange(0, GROUPS)[None, :]
    inner = tl.arange(0, GROUPS * HP)[None, :]
    word = first_group * HP + inner
    if IS_INTEGER:
        w_words, x_words = w_ptr.to(tl.pointer_type(tl.int32)), x_ptr.to(tl.pointer_type(tl.int32))
    else:
        w_words, x_words = w_ptr, x_ptr
    w_tile = w_words + column * (W_ROW // PAIR) + word  # [BN, words]
    x_row = x_words + row * (X_ROW // PAIR)
    if IS_EVEN_K:
        words = tl.load(w_tile, eviction_policy="evict_first")
    else:
        words = tl.load(w_tile, mask=word < W_ROW // PAIR, other=NOTHING, eviction_policy="evict_first")
    if PREFETCH and STEPS > 1:
        prefetch_weight(
            w_ptr, first_column, (first_group + GROUPS) * H, N, W_ROW, W_ROW, BN, (STEPS - 1) * GROUPS * H
        )
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    # kept in a register: an instruction that masks and sets bits takes one constant, and the mask is one
    leading = 0x4B000000 | (rows >> 31)
    acc = tl.zeros((BN, GROUPS), tl.float32)
    for step in range(STEPS):
        w_tile += GROUPS * HP
        is_more = step + 1 < STEPS
        if IS_EVEN_K:
            following = tl.load(w_tile, mask=is_more, other=NOTHING, eviction_policy="evict_first")
        else:
            inside = (word + (step + 1) * (GROUPS * HP) < W_ROW // PAIR) & is_more
            following = tl.load(w_tile, mask=inside, other=NOTHING, eviction_policy="evict_first")
        this_group = first_group + step * GROUPS
        total = tl.zeros((BN, GROUPS * HP), tl.float32)
        for place in tl.static_range(PLANES):
            # a group is its planes one after the other
            k = (this_group * PLANES + place) * HP + inner + inner // HP * ((PLANES - 1) * HP)
            x = tl.load(x_row + k) if IS_EVEN_K else tl.load(x_row + k, mask=k < K // PAIR, other=NOTHING)
            # a block is one plane of a group, or several, or several groups
            if HAS_SCALES and place * H % BLOCK == 0:
                block = ((this_group + group) * PLANES + place) * H // BLOCK
                where = column * BLOCKS + block
                scale = scale_of(tl.load(scales_ptr + where, mask=block < BLOCKS, other=0.0))
                if HAS_ZEROS:
                    zero = tl.load(zeros_ptr + where, mask=block < BLOCKS, other=0.0).to(tl.float32)
            if IS_INTEGER:
                middle = _for_every_word(zero, HP) if HAS_ZEROS else 0.0
                total = _add_integers(total, words, leading, x, middle, place, BITS, HALF)
            else:
                total += words.to(HALF).to(tl.float32) * x.to(tl.float32)
            if HAS_SCALES and ((place + 1) * H % BLOCK == 0 or place + 1 == PLANES):
                acc += _by_group(total, GROUPS) * scale
                total = tl.zeros((BN, GROUPS * HP), tl.float32)
        if not HAS_SCALES:
            acc += _by_group(total, GROUPS)
        words = following
    m = (row + tl.arange(0, BM))[:, None]
    finish(
        tl.sum(acc, 1)[None, :], m, m < rows, first_column, pointers, parts_ptr, counters_ptr, tile, part,
        N, SPLIT_K, 1, EPILOGUE,
    )  # fmt: skip
