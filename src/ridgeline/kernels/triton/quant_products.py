"""Products of codes as kernel descriptions, beside those of floats. Nothing here imports Triton."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import ITEM_BITS
from ridgeline.kernels.triton.epilogue import Epilogue
from ridgeline.kernels.triton.products import TYPES, Problem, Product, Tile, Window, pack_weight
from ridgeline.kernels.triton.source import Kernel

CODE_TYPES = {"int8": "i8", "uint8": "u8", "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5"}
# int32 sums of 2^15 products of an unsigned and a signed byte, and their correction, do not overflow
MAX_INTEGER_DEPTH = 2**15
SMALL_WEIGHT_BYTES = 2**20
CODED_SUMS = 64  # of a thread, from which on a tile makes codes in two halves
LEAST_WIDTH = 16  # numbers that a tensor core multiplies at a time


@dataclass(frozen=True)
class CodeTile(Tile):
    """`is_promoted`: partial sums of float8 are added in float32 after every step."""

    is_promoted: bool = False


class OfCodes(Problem):
    """What products and convolutions of codes share; `dtype` is that of x, and w is signed."""

    has_zero: bool

    @property
    def is_integer(self) -> bool:
        return self.dtype in ("int8", "uint8")

    @property
    def operand_types(self) -> tuple[tuple[str, str], ...]:
        kind = CODE_TYPES[self.dtype]
        weight = "i8" if self.is_integer else kind
        return ("x_ptr", f"*{kind}"), ("w_ptr", f"*{weight}"), ("zero_ptr", f"*{kind}"), ("sums_ptr", "*i32")

    @property
    def scratch_types(self) -> tuple[tuple[str, str], ...]:  # type: ignore[override]
        return ("parts_ptr", "*i32" if self.is_integer else "*fp32"), ("counters_ptr", "*i32")

    def scratch(self, cut: Any, device: torch.device | str) -> tuple[Tensor, ...]:
        parts, counters = super().scratch(cut, device)
        return parts.view(torch.int32) if self.is_integer else parts, counters

    def _halves(self, tile: Tile, tail: Epilogue) -> int:
        """Codes of half a tile at a time take few enough registers for twice as many threads."""
        makes_codes = any(kind[1:] in CODE_TYPES.values() for kind in tail.types)
        if makes_codes and tile.bm * tile.bn >= CODED_SUMS * 32 * tile.warps:
            return 2
        return super()._halves(tile, tail)

    def _code_constants(self, tile: Tile) -> dict[str, Any]:
        # a small weight stays in L2 in any order of tiles, and this one takes the fewest instructions
        is_small = self.touched_bytes[1] <= SMALL_WEIGHT_BYTES
        return {
            "GROUP_M": 1 if is_small else tile.group,
            "IS_PROMOTED": getattr(tile, "is_promoted", False), "HAS_ZERO": self.has_zero,
            "IS_UNSIGNED": self.dtype == "uint8",
        }  # fmt: skip


@dataclass(frozen=True)
class CodeProduct(OfCodes, Product):
    """y[m, n] = Σ (x[m, k] - zero) · w[n, k] of codes."""

    has_zero: bool = False

    def describe(self, tile: Tile, tail: Epilogue, *, pdl: bool) -> Kernel:
        constants = {
            "N": self.columns, "K": self.depth, "X_ROW": self.x_strides[1], "W_COLUMN": self.w_strides[1],
            "HALVES": self._halves(tile, tail), **self._code_constants(tile),
            **tile.constants(pdl=pdl),
        }  # fmt: skip
        return self._kernel("qgemm.qgemm", constants, tile, tail, pdl=pdl)


@dataclass(frozen=True)
class CodeWindow(OfCodes, Window):
    """A convolution of codes. Outside of the image the code is zero, so a zero point goes without padding."""

    has_zero: bool = False

    def pack(self, weight: Tensor) -> Tensor:
        return super().pack(weight.view(torch.uint8)).view(weight.dtype)


# how a weight of each type is given to the kernel, and the planes of its words
STORED_TYPES = {
    "int4": ("i16", 4), "float4_e2m1fn": ("i16", 4), "int8": ("i16", 2), "float8_e4m3fn": ("fp8e4nv", 1),
    "float8_e5m2": ("fp8e5", 1),
}  # fmt: skip
WHOLE_BLOCK = 128  # of scales that are written out per block, and the most that share one
# pointers to scales, by their dtype; E8M0 is read as bytes
SCALE_TYPES = {
    "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float8_e4m3fn": "fp8e4nv",
    "float8_e8m0fnu": "u8",
}  # fmt: skip


@dataclass(frozen=True)
class CodedWeight(Product):
    """y[m, n] = Σ_k x[m, k] · w[n, k], with w stored as words of codes; `dtype` is that of x.

    Strides of w count words. Scales, and zeros if there are any, are one per block, as [N, K / block].
    """

    format: str = "int4"
    width: int = 32  # words in a group
    block: int = 128
    scales: str = ""  # their dtype; "": none vary along K, and the epilogue applies them
    has_zeros: bool = False

    @property
    def touched_bytes(self) -> tuple[int, int]:
        x_items, _ = self.touched
        word = 1 if self.planes == 1 else 2
        return x_items * self.item_bytes, self.columns * self.w_strides[1] * word

    @property
    def planes(self) -> int:
        return STORED_TYPES[self.format][1]

    @property
    def takes_one_row(self) -> bool:
        """Whether there is a kernel for one row; it reads numbers beside integers in pairs."""
        return self.format != "float4_e2m1fn" and (self.planes == 1 or self.depth % 2 == 0)

    @property
    def blocks(self) -> int:
        """Along K."""
        return -(-self.depth // self.block)

    @property
    def step(self) -> int:
        """The least numbers of K in a step of the kernel: whole groups, and whole blocks."""
        group = self.planes * self.width
        return max(group, self.block) if self.scales else group

    @property
    def prepared_bytes(self) -> int:
        """Of the packed weight, its scales and its zeros."""
        items = self.columns * self.blocks
        scales = items * ITEM_BITS[self.scales] // 8 if self.scales else 32
        return self.touched_bytes[1] + scales + (items if self.has_zeros else 16) * self.item_bytes

    @property
    def operand_types(self) -> tuple[tuple[str, str], ...]:
        half, (stored, _) = TYPES[self.dtype], STORED_TYPES[self.format]
        scales = SCALE_TYPES[self.scales] if self.scales else half
        kinds = {"x_ptr": half, "w_ptr": stored, "scales_ptr": scales, "zeros_ptr": half}
        return tuple((name, f"*{kind}") for name, kind in kinds.items())

    def describe(self, tile: Tile, tail: Epilogue, *, pdl: bool) -> Kernel:
        constants = {
            "N": self.columns, "K": self.depth, "X_ROW": self.x_strides[1], "W_ROW": self.w_strides[1],
            "H": self.width, "BLOCK": self.block, "FORMAT": self.format, "HAS_SCALES": bool(self.scales),
            "HAS_ZEROS": self.has_zeros, "PACKED": pdl, **tile.constants(pdl=pdl),
        }  # fmt: skip
        if tile.bm == 1 and not self.takes_one_row:
            raise RefusedError(f"no kernel for one row with {self.depth} numbers of {self.format}")
        path = "one_row.one_row" if tile.bm == 1 else "weight_only.weight_only"
        return self._kernel(path, constants, tile, tail, pdl=pdl)


def widths_of(format: str, block: int) -> tuple[int, int]:
    """Words in a group, and numbers in a block of the kernel, for scales of so many numbers (0: none)."""
    planes = STORED_TYPES[format][1]
    if not block:
        return WHOLE_BLOCK // planes if planes > 1 else WHOLE_BLOCK // 2, WHOLE_BLOCK
    if block < LEAST_WIDTH or (block & (block - 1) and block % WHOLE_BLOCK):
        raise RefusedError(f"blocks of {block}, want a power of two from {LEAST_WIDTH} on")
    block = min(block, WHOLE_BLOCK)
    return min(max(LEAST_WIDTH, block // planes), WHOLE_BLOCK // 2), block


def row_words(depth: int, format: str, width: int) -> int:
    """Words in a row of the packed weight, in whole groups."""
    return -(-depth // (STORED_TYPES[format][1] * width)) * width


def pack_words(codes_nk: Tensor, problem: CodedWeight) -> Tensor:
    """Bytes [N, K] with one code each as rows of words; codes behind the end are zero."""
    n, k = codes_nk.shape
    planes, words = problem.planes, problem.w_strides[1]
    padded = codes_nk.new_zeros(n, words * planes)
    padded[:, :k] = codes_nk
    if planes == 1:
        return padded.view(getattr(torch, problem.format))
    grouped = padded.view(n, -1, planes, problem.width).to(torch.int32)
    shifts = torch.arange(planes, device=codes_nk.device, dtype=torch.int32) * (16 // planes)
    packed = (grouped << shifts[:, None]).sum(2, dtype=torch.int32)
    # the same 16 bits as a signed number
    return ((packed ^ 0x8000) - 0x8000).to(torch.int16).view(n, words)


def pack_codes(codes_nk: Tensor) -> Tensor:
    """[N, K] codes of one byte with every row aligned; zeros between rows."""
    return pack_weight(codes_nk.view(torch.uint8)).view(codes_nk.dtype)
