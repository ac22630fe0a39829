"""Products of codes as kernel descriptions, beside those of floats. Nothing here imports Triton."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ridgeline.kernels.triton.epilogue import Epilogue
from ridgeline.kernels.triton.products import Product, Tile, halves, pack_weight
from ridgeline.kernels.triton.source import Kernel

CODE_TYPES = {"int8": "i8", "uint8": "u8", "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5"}
# int32 sums of 2^15 products of an unsigned and a signed byte, and their correction, do not overflow
MAX_INTEGER_DEPTH = 2**15


@dataclass(frozen=True)
class CodeTile(Tile):
    """`is_promoted`: partial sums of float8 are added in float32 after every step."""

    is_promoted: bool = False


@dataclass(frozen=True)
class CodeProduct(Product):
    """y[m, n] = Σ (x[m, k] - zero) · w[n, k] of codes; `dtype` is that of x, and w is signed."""

    has_zero: bool = False

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

    def describe(self, tile: Tile, tail: Epilogue, *, pdl: bool) -> Kernel:
        constants = {
            "N": self.columns, "K": self.depth, "X_ROW": self.x_strides[1], "W_COLUMN": self.w_strides[1],
            "GROUP_M": tile.group, "HALVES": halves(tile),
            "IS_PROMOTED": getattr(tile, "is_promoted", False), "HAS_ZERO": self.has_zero,
            "IS_UNSIGNED": self.dtype == "uint8", **tile.constants(pdl=pdl),
        }  # fmt: skip
        return self._kernel("qgemm.qgemm", constants, tile, tail, pdl=pdl)


def pack_codes(codes_nk: Tensor) -> Tensor:
    """[N, K] codes of one byte with every row aligned; zeros between rows."""
    return pack_weight(codes_nk.view(torch.uint8)).view(codes_nk.dtype)
