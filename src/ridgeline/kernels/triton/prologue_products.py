"""Pointwise ops and the product behind them as a kernel description: cuts, and what they should take.

Legend: M rows, N columns, K summed over. No Triton is imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ridgeline.base.architectures import architecture_of
from ridgeline.base.devices import Device, device_of
from ridgeline.kernels.triton.epilogue import Epilogue
from ridgeline.kernels.triton.products import WGMMA_ROWS, Product, Tile
from ridgeline.kernels.triton.prologue import Around
from ridgeline.kernels.triton.ranking import blocks_us, fitting_tiles, items_us, unlike

MOST_SUMS = 64  # of a thread: a tile of x and its operands take registers too
MOST_ITEMS = 64  # of those operands that a thread computes with in one step
# of one item, beside its ops: it is converted and handed on, and each operand that differs between rows is
# read or selected, and converted. A single op on halves is compiled to one on pairs, and takes less
ITEM_INSTRUCTIONS = 1.0


@dataclass(frozen=True)
class PrologueProduct(Product):
    """y[m, n] = Σ x[m, k] · w[n, k], where x is computed as its tiles are read; its rows lie side by side."""

    wholes: int = 1  # operands as large as x
    spans: tuple[int, ...] = ()  # rows for which other operands stay the same, as those of an image do
    item_flops: float = 1.0  # of one item of x

    def loaded_tiles(self, tile: Tile) -> int:
        # of no more rows than a span, two vectors are enough
        return self.wholes + sum(tile.bm > span for span in self.spans)

    def _before(self, tile: Tile, tail: Epilogue) -> dict[str, Any]:
        assert isinstance(tail, Around), "a product of this kind has a prologue"
        is_whole = self.depth % (tile.bk * tile.split) == 0
        function = tail.prologue.whole if is_whole else tail.prologue.cut
        return {"PROLOGUE": function, "WAITS": tile.bm >= WGMMA_ROWS}


@lru_cache(maxsize=4096)
def rank_prologue(problem: PrologueProduct, arch: str) -> tuple[Tile, ...]:
    """The best few cuts."""
    device = device_of(arch)

    def held(tile: Tile) -> int:
        operands = problem.wholes + len(problem.spans)
        return operands * tile.bm * tile.bk // (32 * tile.warps)

    tiles = [t for t in fitting_tiles(problem, device, MOST_SUMS) if held(t) <= MOST_ITEMS]
    if architecture_of(arch).multiplier == "tcgen05":  # nothing makes a step wait for tensor memory
        tiles = [t for t in tiles if t.bm < WGMMA_ROWS]
    ranked = sorted(tiles, key=lambda tile: prologue_us(problem, tile, device))
    return unlike(ranked, lambda tile: (tile.bm, tile.bn))


def prologue_us(problem: PrologueProduct, tile: Tile, device: Device) -> float:
    """Of the product and of what comes before it, but for the bytes that both have to wait for.

    It is assumed that a warp either computes x or multiplies, so that the two add up, and that every tile of
    columns computes x anew.
    """
    instructions = problem.item_flops + ITEM_INSTRUCTIONS * (1 + problem.wholes + len(problem.spans))
    return blocks_us(problem, tile, device) + items_us(problem, tile, instructions, device)
