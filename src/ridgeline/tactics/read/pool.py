"""Read a region around one pool: what it makes of a window, and where its windows lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Op, Site, TensorSpec
from ridgeline.ir.body_class import POOLS
from ridgeline.kernels.floor.pool import PoolAttrs, Window, window_of
from ridgeline.kernels.scalar.program import FLOAT8_LARGEST

FLOATS = ("float32", "float16", "bfloat16")
# the least number of every type whose greatest is taken: what a window outside of the image makes
LEAST: dict[str, float] = {
    **dict.fromkeys(FLOATS, -math.inf), "int8": -128, "uint8": 0,
    **{name: -largest for name, largest in FLOAT8_LARGEST.items()},
}  # fmt: skip
AXES = 3  # images of fewer are one plane deep, one line high


@dataclass(frozen=True)
class PoolSite:
    """A pool at known sizes, as (depth, height, width)."""

    anchor: Op
    x: TensorSpec
    y: TensorSpec  # the region's first result: as large as the pool's own
    slot: int  # of x among the region's inputs
    kind: str  # max, mean, norm1 or norm2
    size: tuple[int, ...]
    made: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]  # padding in front of the image
    # the places that a mean counts: so many, from so many in front of the image on
    counted_before: tuple[int, ...]
    counted: tuple[int, ...]

    @property
    def taps(self) -> int:
        return math.prod(self.kernel)

    @property
    def images(self) -> int:
        return self.x.shape[0]

    @property
    def channels(self) -> int:
        return self.x.shape[1]

    @property
    def reads_outside(self) -> bool:
        """Whether some window reaches over an edge of the image."""
        return self._leaves(self.before, self.size)

    @property
    def counts_all(self) -> bool:
        """Whether all places of all windows count."""
        before = [b - c for b, c in zip(self.before, self.counted_before, strict=True)]
        return not self._leaves(before, self.counted)

    def _leaves(self, before: Sequence[int], sizes: Sequence[int]) -> bool:
        axes = zip(before, sizes, self.made, self.kernel, self.stride, self.dilation, strict=True)
        return any(b > 0 or (o - 1) * s - b + (k - 1) * d >= n for b, n, o, k, s, d in axes)


def read_pool(site: Site) -> PoolSite:
    """The one pool of the region, or `RefusedError`."""
    found = [op for op in site.body.ops if op.op_type in POOLS and not op.domain]
    if len(found) != 1:
        raise RefusedError(f"region has {len(found) or 'no'} pool, want one")
    (op,) = found
    if any(op.outputs[1:]):
        raise RefusedError("indices are made too")
    if op.inputs[0] not in site.body.inputs:
        raise RefusedError(f"the {op.op_type} reads a value of the region")
    x, pooled, kind = site.specs[op.inputs[0]], site.specs[op.outputs[0]], _kind(op)
    taken = LEAST if kind == "max" else FLOATS
    if x.dtype not in taken or x.dtype != pooled.dtype:
        raise RefusedError(f"{x} is pooled, want {', '.join(taken)}")
    window = _window(op, x)
    made = _made(window, x.shape[2:])
    if pooled.shape != (*x.shape[:2], *made) or not x.numel or not pooled.numel:
        raise RefusedError(f"windows over {x} make {list(made)}, the result is {pooled}")
    counts_padding = bool(op.attrs.get("count_include_pad", 0))
    front, behind = (side if counts_padding else (0,) * len(made) for side in (window.before, window.after))
    counted = [sum(axis) for axis in zip(x.shape[2:], front, behind, strict=True)]
    return PoolSite(
        op, x, site.outputs[0], site.body.inputs.index(op.inputs[0]), kind, as_volume(x.shape[2:]),
        as_volume(made), as_volume(window.kernel), as_volume(window.strides), as_volume(window.dilations),
        as_volume(window.before, 0), as_volume(front, 0), as_volume(counted),
    )  # fmt: skip


def _kind(op: Op) -> str:
    if op.op_type == "LpPool":
        p = op.attrs.get("p", 2)
        if p not in (1, 2):
            raise RefusedError(f"a norm of power {p}, want 1 or 2")
        return f"norm{p}"
    return "max" if op.op_type == "MaxPool" else "mean"


def _window(op: Op, x: TensorSpec) -> Window:
    rank, kernel = len(x.shape) - 2, op.attrs["kernel_shape"]
    if not 0 < rank <= AXES or len(kernel) != rank:
        raise RefusedError(f"windows of {list(kernel)} over {x}, want one to {AXES} axes of images")
    for name, count, least in (("strides", rank, 1), ("dilations", rank, 1), ("pads", 2 * rank, 0)):
        given = op.attrs.get(name) or ()
        if len(given) not in (0, count) or any(number < least for number in (*given, *kernel)):
            raise RefusedError(f"{name} are {list(given)}, the window is {list(kernel)}")
    return window_of(x.shape[2:], cast(PoolAttrs, op.attrs))


def _made(window: Window, sizes: Sequence[int]) -> tuple[int, ...]:
    """How many windows there are along each axis."""
    axes = zip(
        sizes, window.before, window.after, window.beyond, window.kernel, window.dilations, window.strides,
        strict=True,
    )  # fmt: skip
    return tuple((n + b + a + more - (k - 1) * d - 1) // s + 1 for n, b, a, more, k, d, s in axes)


def as_volume(sizes: Sequence[int], missing: int = 1) -> tuple[int, ...]:
    """Per axis of an image as (depth, height, width)."""
    return (*(missing,) * (AXES - len(sizes)), *sizes)
