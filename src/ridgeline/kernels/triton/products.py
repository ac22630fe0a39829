"""Products as kernel descriptions: from sizes and strides to a `Kernel`, its grid and its scratch memory.

Legend: M rows, N columns, K summed over. A `Tile` says how a product is cut; `ranking` says
which cuts are worth a measurement. Nothing here imports Triton.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor

from ridgeline.base.spec import ITEM_BITS, TF32
from ridgeline.kernels.triton.epilogue import Epilogue
from ridgeline.kernels.triton.source import Kernel
from ridgeline.kernels.windows import Windows

TYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
EXACT = "ieee"
GEMV_ROWS = 16
HALVED_SUMS = 128
# of a product that takes several narrow groups
LEAST_COLUMNS, MANY_CHANNELS, MOST_CHANNELS = 16, 24, 64
WGMMA_ROWS = 64  # of a tile, from which on warps multiply in groups of four
ROW_BYTES = 16  # alignment of the rows of a packed weight, so that loads are wide


class Cut(Protocol):
    """What a compiler wants to know of any way to cut a product."""

    @property
    def warps(self) -> int: ...

    @property
    def stages(self) -> int: ...


@dataclass(frozen=True)
class Tile:
    """How a product is cut: tile sizes, parts of the sum, threads, and buffers in flight."""

    bm: int
    bn: int
    bk: int
    split: int = 1
    warps: int = 4
    stages: int = 3
    prefetch: bool = False  # fetch the weight into L2 before the previous kernel has ended
    group: int = 8  # row tiles that share their columns of the weight while it is in L2

    def constants(self, *, pdl: bool) -> dict[str, Any]:
        """Constants that all tiled kernels take."""
        return {
            "BM": self.bm, "BN": self.bn, "BK": self.bk, "SPLIT_K": self.split,
            "PREFETCH": self.prefetch and pdl,
        }  # fmt: skip


class Problem:
    """A sum of products of certain sizes, and the kernel that computes it in tiles of [rows, columns]."""

    dtype: str
    columns: int
    batch: int = 1
    has_weight: bool = True
    precision: str = EXACT  # of products of float32 operands, as `tl.dot` names it
    # further arguments of the kernel, beside its operands and the pointers of its epilogue
    scratch_types: ClassVar[tuple[tuple[str, str], ...]] = (("parts_ptr", "*fp32"), ("counters_ptr", "*i32"))
    extent_name: ClassVar[str] = "rows"

    @property
    def extent(self) -> int:
        """The size that is an argument of the kernel and not a constant."""
        raise NotImplementedError

    @property
    def touched(self) -> tuple[int, int]:
        """Items of the two operands, up to the last that is read."""
        raise NotImplementedError

    @property
    def counted(self) -> int:
        """The most that the kernel counts in 32 bits: rows, and items from one of its pointers on."""
        raise NotImplementedError

    def describe(self, cut: Any, tail: Epilogue, *, pdl: bool) -> Kernel:
        raise NotImplementedError

    @property
    def runs_on_tensor_cores(self) -> bool:
        return self.item_bytes <= 2 or self.precision == TF32

    @property
    def operand_types(self) -> tuple[tuple[str, str], ...]:
        """What the kernel multiplies, by parameter: the data, the weight, and what belongs to them."""
        operand = f"*{TYPES[self.dtype]}"
        return ("x_ptr", operand), ("w_ptr", operand)

    @property
    def item_bytes(self) -> int:
        return ITEM_BITS[self.dtype] // 8

    def loaded_tiles(self, tile: Tile) -> int:
        """Tiles of [rows, depths] that a step loads: operands of what comes before the product too."""
        return 1

    @property
    def access_bytes(self) -> int:
        """The most that one access to an operand can move: how its rows are aligned."""
        return ROW_BYTES

    @property
    def touched_bytes(self) -> tuple[int, int]:
        """Bytes of the two operands, up to the last that is read."""
        x_items, w_items = self.touched
        return x_items * self.item_bytes, w_items * self.item_bytes

    def grid(self, cut: Any) -> tuple[int, int, int]:
        """Tiles, parts of the sum, batches."""
        tiles = -(-self.extent // cut.bm) * -(-self.columns // cut.bn)
        return tiles, cut.split, self.batch

    def scratch(self, cut: Any, device: torch.device | str) -> tuple[Tensor, ...]:
        """Memory for one frozen call, in argument order: partial sums, and one counter per tile.

        Counters are zero before and after every run.
        """
        if not self.scratch_types:
            return ()
        slots = self._slots(cut)
        nothing = torch.zeros(1, device=device)
        parts = torch.empty(slots * cut.split * cut.bm * cut.bn, device=device) if slots else nothing
        return parts, torch.zeros(slots or 1, dtype=torch.int32, device=device)

    def scratch_bytes(self, cut: Any) -> int:
        return sum(part.nbytes for part in self.scratch(cut, "meta")) if self._slots(cut) else 0

    def _halves(self, tile: Tile, tail: Epilogue) -> int:
        """Pieces in which a tile goes through its epilogue: 128 sums per thread at once would spill."""
        return 2 if tile.bm * tile.bn >= HALVED_SUMS * 32 * tile.warps else 1

    def _slots(self, cut: Any) -> int:
        tiles, split, batch = self.grid(cut)
        return tiles * batch if split > 1 and self.scratch_types else 0

    def _kernel(
        self, path: str, constants: Mapping[str, Any], cut: Cut, tail: Epilogue, *, pdl: bool
    ) -> Kernel:
        """The function at `path`, such as `gemm.gemv`, specialised for these constants."""
        module, function = path.split(".")
        constants = {**constants, "PDL": pdl, "EPILOGUE": tail.function}
        signature = (
            *self.operand_types, *self.scratch_types, ("pointers", tail.types),
            (self.extent_name, "i32"),
            *((name, "constexpr") for name in constants if name not in dict(self.operand_types)),
        )  # fmt: skip
        return Kernel(
            function, f"ridgeline.kernels.triton.{module}", signature, tuple(constants.items()),
            num_warps=cut.warps, num_stages=cut.stages, pdl=pdl,
        )  # fmt: skip


@dataclass(frozen=True)
class Product(Problem):
    """y[b, m, n] = Σ x[b, m, k] · w[b, n, k]; strides in elements as (batch, row or column, depth)."""

    rows: int
    columns: int
    depth: int
    dtype: str
    x_strides: tuple[int, int, int]
    w_strides: tuple[int, int, int]
    batch: int = 1
    precision: str = EXACT
    has_weight: bool = True  # w is a packed constant, which may be fetched while earlier kernels run

    @property
    def extent(self) -> int:
        return self.rows

    @property
    def touched(self) -> tuple[int, int]:
        x = zip(self.x_strides, (self.batch, self.rows, self.depth), strict=True)
        w = zip(self.w_strides, (self.batch, self.columns, self.depth), strict=True)
        return 1 + sum(s * (n - 1) for s, n in x), 1 + sum(s * (n - 1) for s, n in w)

    @property
    def counted(self) -> int:
        # rows and columns have pointers of their own
        return max(
            self.batch * self.rows, *(s[2] * (self.depth - 1) for s in (self.x_strides, self.w_strides))
        )

    @property
    def access_bytes(self) -> int:
        # the end of a row is masked, so that its length counts as well as where rows start
        inner = [self.depth, *(s for s in self.x_strides[:2] if s)]
        if self.w_strides[2] != 1:  # columns lie side by side
            inner += [self.columns, self.w_strides[2]]
        return math.gcd(ROW_BYTES, *(size * self.item_bytes for size in inner))

    def describe(self, tile: Tile, tail: Epilogue, *, pdl: bool) -> Kernel:
        constants = {
            "N": self.columns, "K": self.depth,
            "X_BATCH": self.x_strides[0], "X_ROW": self.x_strides[1], "X_DEPTH": self.x_strides[2],
            "W_BATCH": self.w_strides[0], "W_COLUMN": self.w_strides[1], "W_DEPTH": self.w_strides[2],
            "GROUP_M": tile.group, "HALVES": self._halves(tile, tail), "PRECISION": self.precision,
            **self._before(tile, tail), **tile.constants(pdl=pdl),
        }  # fmt: skip
        return self._kernel("gemm.gemm", constants, tile, tail, pdl=pdl)

    def _before(self, tile: Tile, tail: Epilogue) -> dict[str, Any]:
        """Constants that say what comes before the product: here x is multiplied as it lies."""
        return {"PROLOGUE": None, "WAITS": False}


@dataclass(frozen=True)
class FewRows(Product):
    """A product of at most `tile.bm` rows, both operands contiguous along K: the weight is read once."""

    def describe(self, tile: Tile, tail: Epilogue, *, pdl: bool) -> Kernel:
        constants = {
            "N": self.columns, "K": self.depth, "X_ROW": self.x_strides[1], "W_COLUMN": self.w_strides[1],
            **tile.constants(pdl=pdl),
        }  # fmt: skip
        return self._kernel("gemm.gemv", constants, tile, tail, pdl=pdl)


@dataclass(frozen=True)
class Window(Windows, Problem):
    """A convolution: x strides as (image, line, column, channel).

    In groups it is `batch` products side by side, of so many channels into so many columns each; one product
    takes `members` neighbouring groups, with zeros in the weight between them.
    """

    images: int
    channels: int
    columns: int
    x_strides: tuple[int, int, int, int]
    dtype: str
    precision: str = EXACT
    batch: int = 1
    members: int = 1

    def in_groups(self, groups: int) -> Self:
        """The same, whose weight has these groups."""
        inner, outer = self.channels // groups, self.columns // groups
        # with fewer, most of a tile is empty: tensor cores multiply 32 columns in the time of 16
        least = MANY_CHANNELS if self.runs_on_tensor_cores else LEAST_COLUMNS
        members = 1
        for many in range(2, MOST_CHANNELS // max(inner, outer) + 1):
            if groups % many == 0 and (members * inner < least or members * outer < LEAST_COLUMNS):
                members = many
        batch = groups // members
        return replace(self, channels=members * inner, columns=members * outer, batch=batch, members=members)

    def with_lines_joined(self) -> Self:
        """The same with each line of a window as one tap, if windows lie side by side, channels last.

        The packed weight is the same, and more channels of a tap lie together.
        """
        wide = self.kernel[1]
        is_patches = wide == self.stride[1] > 1 == self.dilation[1] and self.pads[1] == 0
        lies_together = self.x_strides[2:] == (self.channels, 1) and self.made[1] * wide <= self.size[1]
        if not (is_patches and lies_together and self.batch == 1):
            return self
        image, line, column, channel = self.x_strides
        return replace(
            self, channels=wide * self.channels, x_strides=(image, line, wide * column, channel),
            size=(self.size[0], self.made[1]), kernel=(self.kernel[0], 1), stride=(self.stride[0], 1),
        )  # fmt: skip

    @property
    def rows(self) -> int:
        return self.images * math.prod(self.made)

    @property
    def extent(self) -> int:
        return self.rows

    @property
    def depth(self) -> int:
        return math.prod(self.kernel) * self.channels

    @property
    def is_planes(self) -> bool:
        """Whether each channel is a plane of its own, the usual layout of a user's images."""
        return self.channels > 1 and self.x_strides[3] != 1

    @property
    def access_bytes(self) -> int:
        # planes are gathered element by element whatever their sizes
        return ROW_BYTES if self.is_planes else math.gcd(ROW_BYTES, self.channels * self.item_bytes)

    @property
    def touched(self) -> tuple[int, int]:
        sizes = (self.images, *self.size, self.batch * self.channels)
        items = 1 + sum(s * (n - 1) for s, n in zip(self.x_strides, sizes, strict=True))
        rows = self.batch * self.columns
        return items, (rows - 1) * row_stride(self.depth, self.item_bytes) + self.depth

    @property
    def counted(self) -> int:
        # every image has a pointer of its own, the weight has one
        return max(self.rows, replace(self, images=1).touched[0], self.touched[1])

    def grid(self, cut: Any) -> tuple[int, int, int]:
        """Tiles of all products, parts of the sum: products that read the same positions run together."""
        tiles, split, batch = super().grid(cut)
        return tiles * batch, split, 1

    def pack(self, weight: Tensor) -> Tensor:
        """[N, C, KH, KW] as rows in the order in which the kernel walks the window."""
        if self.members > 1:
            # every group has its own block of rows and channels within a product
            given = weight.reshape(self.batch, self.members, -1, *weight.shape[1:])
            spaced = given.new_zeros(*given.shape[:3], self.members, *given.shape[3:])
            for member in range(self.members):
                spaced[:, member, :, member] = given[:, member]
            weight = spaced.flatten(3, 4).flatten(0, 2)
        rows = weight if self.is_planes else weight.permute(0, 2, 3, 1)
        return pack_weight(rows.reshape(weight.shape[0], -1))

    def describe(self, tile: Tile, tail: Epilogue, *, pdl: bool) -> Kernel:
        constants = {
            **self._geometry(), "N": self.columns, "BATCH": self.batch, "MEMBERS": self.members,
            "W_COLUMN": row_stride(self.depth, self.item_bytes), "GROUP_M": tile.group,
            "HALVES": self._halves(tile, tail),
            "IS_FOLDED": self.is_planes or self.channels % tile.bk != 0, "IS_PLANES": self.is_planes,
            "PRECISION": self.precision, **self._code_constants(tile), **tile.constants(pdl=pdl),
        }  # fmt: skip
        return self._kernel("conv.conv", constants, tile, tail, pdl=pdl)

    @property
    def operand_types(self) -> tuple[tuple[str, str], ...]:
        return *super().operand_types, ("zero_ptr", "constexpr"), ("sums_ptr", "constexpr")

    def _code_constants(self, tile: Tile) -> dict[str, Any]:
        """Of a convolution of codes; this one is of floats."""
        return {
            "zero_ptr": None, "sums_ptr": None, "IS_PROMOTED": False, "HAS_ZERO": False, "IS_UNSIGNED": False,
        }  # fmt: skip

    def _geometry(self) -> dict[str, Any]:
        names = ("IMAGE", "LINE", "COLUMN", "CHANNEL")
        strides = {f"X_{name}": stride for name, stride in zip(names, self.x_strides, strict=True)}
        pairs = {
            "IN": self.size, "OUT": self.made, "KERNEL": self.kernel, "STRIDE": self.stride,
            "DILATION": self.dilation, "PAD": self.pads,
        }  # fmt: skip
        by_axis = {f"{name}_{axis}": pair[i] for name, pair in pairs.items() for i, axis in enumerate("HW")}
        return {"C": self.channels, **strides, **by_axis, "IS_PADDED": self.reads_outside}


def row_stride(depth: int, item_bytes: int) -> int:
    """Elements from one row of a packed weight to the next."""
    per_row = ROW_BYTES // item_bytes
    return -(-depth // per_row) * per_row


def pack_weight(weight_nk: Tensor) -> Tensor:
    """[N, K] with every row aligned and zeros between rows; no copy if it is laid out like this already."""
    n, k = weight_nk.shape
    width = row_stride(k, weight_nk.element_size())
    if width == k:
        return weight_nk.contiguous()
    packed = weight_nk.new_zeros(n, width)
    packed[:, :k] = weight_nk
    return packed
