"""A norm and the product behind it as a kernel description: sizes, packing, cuts. No Triton is imported.

Legend: M rows, N columns, K summed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from ridgeline.base.architectures import architecture_of
from ridgeline.base.choices import RefusedError
from ridgeline.base.devices import Device, device_of
from ridgeline.kernels.triton.epilogue import Epilogue
from ridgeline.kernels.triton.products import WGMMA_ROWS, Product, Tile, pack_weight
from ridgeline.kernels.triton.ranking import fitting_tiles, items_us, tile_us, unlike
from ridgeline.kernels.triton.source import Kernel

T = TypeVar("T")
KIND_CONFIGS = 3  # of tiles multiplied by single warps, and of those multiplied by four
# sums of a thread and the items of x that it looks at in one step; where single warps multiply, they have
# their operands in registers too
MOST_HELD, MOST_HELD_BY_MMA = 96, 48
MOST_SUMS = 64  # of a thread: sums of the norm and its rows take registers too
# conversion, addition and multiplication of one item of a row, and joining the lanes at the end
ITEM_INSTRUCTIONS, JOIN_US = 3, 0.2


@dataclass(frozen=True)
class NormTail(Epilogue):
    """What follows the product, and perhaps the normed rows, which others read too.

    `outputs` are places among the outputs of the span, in the order in which the epilogue stores.
    """

    outputs: tuple[int, ...] = ()
    normed: int | None = None  # place of the normed rows among the outputs of the span

    def pointers(self, inputs: Sequence[T], extras: Sequence[T], outputs: Sequence[T]) -> list[T]:
        made = super().pointers(inputs, extras, [outputs[place] for place in self.outputs])
        return made if self.normed is None else [*made, outputs[self.normed]]


@dataclass(frozen=True)
class NormedProduct(Product):
    """y[m, n] = Σ norm(x)[m, k] · w[n, k], rows of x side by side."""

    epsilon: float = 1e-5
    is_centred: bool = True  # LayerNormalization; else RMSNormalization
    scratch_types = ()

    @property
    def operand_types(self) -> tuple[tuple[str, str], ...]:
        return *super().operand_types, ("columns_ptr", "*fp32"), ("affine_ptr", "*fp32")

    @property
    def prepared_bytes(self) -> int:
        return 4 * (3 * self.columns + 2 * self.depth) + self.columns * self.w_strides[1] * self.item_bytes

    def describe(self, tile: Tile, tail: Epilogue, *, pdl: bool) -> Kernel:
        constants: dict[str, Any] = {
            "N": self.columns, "K": self.depth, "W_COLUMN": self.w_strides[1], "EPSILON": self.epsilon,
            "IS_CENTRED": self.is_centred, "GROUP_M": tile.group,
            "WAITS": tile.bm >= WGMMA_ROWS,
            "NORMED": len(tail.types) - 1 if isinstance(tail, NormTail) and tail.normed is not None else -1,
            **tile.constants(pdl=pdl),
        }  # fmt: skip
        del constants["SPLIT_K"]
        return self._kernel("normed_gemm.normed_gemm", constants, tile, tail, pdl=pdl)

    def pack(self, weight_nk: Tensor, gamma: Tensor, beta: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The weight with the norm's scale in it; sums, scales and shifts of its columns; γ and β.

        A column is scaled by a power of two, so that neither large nor tiny products leave the type.
        """
        wide = weight_nk.float() * gamma.float()
        largest = wide.abs().amax(1)
        if not bool(torch.isfinite(largest).all()):
            raise RefusedError("the weight with the norm's scale has an infinity or NaN")
        exponent = torch.frexp(largest).exponent.to(torch.int32).clamp(-120, 120)
        packed = (wide * _power_of_two(-exponent)[:, None]).to(weight_nk.dtype)
        offset = torch.zeros_like(gamma) if beta is None else beta
        # the sums are of what is multiplied, so that a constant row cancels to the last bit
        sums = packed.sum(1, dtype=torch.float64)
        shifts = (weight_nk.float() * offset.float()).sum(1, dtype=torch.float64)
        columns = torch.stack([sums.float(), _power_of_two(exponent), shifts.float()])
        affine = torch.stack([gamma, offset]).float()
        if not bool(torch.isfinite(columns).all() & torch.isfinite(affine).all()):
            raise RefusedError("the weight with the norm's shift has an infinity or NaN")
        return pack_weight(packed), columns, affine


def _held(tile: Tile) -> int:
    return tile.bm * (tile.bn + tile.bk) // (32 * tile.warps)


def _power_of_two(exponent: Tensor) -> Tensor:
    """By its bits: a GPU's own powers are not exact."""
    return ((exponent + 127) << 23).view(torch.float32)


def rank_normed(problem: NormedProduct, arch: str) -> tuple[Tile, ...]:
    """The best few cuts. The sum is not split: every part would need sums of whole rows."""
    device, multiplier = device_of(arch), architecture_of(arch).multiplier
    tiles = [t for t in fitting_tiles(problem, device, MOST_SUMS) if t.split == 1]
    # more warps take the sums of a row while others wait for their product
    tiles += [replace(t, warps=8) for t in tiles if t.warps == 4 and min(t.bm, t.bn) >= 64]

    def most(tile: Tile) -> int:
        return MOST_HELD if tile.bm >= WGMMA_ROWS and multiplier == "wgmma" else MOST_HELD_BY_MMA

    tiles = [t for t in tiles if _held(t) <= most(t)]

    def best(some: Iterable[Tile]) -> tuple[Tile, ...]:
        ranked = sorted(some, key=lambda tile: normed_us(problem, tile, device))
        return unlike(ranked, lambda tile: (tile.bm, tile.bn), KIND_CONFIGS)

    small = best(t for t in tiles if t.bm < WGMMA_ROWS)
    # with tensor memory nothing makes a step wait for its product: see the kernel
    large = best(t for t in tiles if t.bm >= WGMMA_ROWS and multiplier != "tcgen05")
    return tuple(sorted((*small, *large), key=lambda tile: normed_us(problem, tile, device)))


def normed_us(problem: NormedProduct, tile: Tile, device: Device) -> float:
    """Of a product, and of the sums over rows that every program takes beside it."""
    return tile_us(problem, tile, device) + items_us(problem, tile, ITEM_INSTRUCTIONS, device) + JOIN_US
