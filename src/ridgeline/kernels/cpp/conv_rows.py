"""Small convolutions: windows gathered into rows, then a product with the weight, then the epilogue.

Rows are positions of the result, K = taps * channels items each. As many as stay in L2 are gathered at a
time. A convolution along one axis (sound, signals) is one over an image a single line high.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Site
from ridgeline.kernels.cpp import anchor
from ridgeline.kernels.cpp.linear import PARALLEL_MACS, TILE, Linear, Tile
from ridgeline.kernels.cpp.loops import Loop, parallel, whole
from ridgeline.kernels.scalar.axes import ONE
from ridgeline.kernels.scalar.program import Program
from ridgeline.kernels.windows import Windows

WINDOW_BYTES = 256 * 1024  # of gathered rows; with the sums beside them they fit a thread's stack
MOST_ROWS = 96


@dataclass(frozen=True)
class ConvRows(Windows):
    """The product that a convolution is, and the windows that its rows come from."""

    linear: Linear
    channels: int
    is_last: bool  # the channels of one position lie together

    @property
    def rows(self) -> int:
        """Gathered at a time."""
        fitting = WINDOW_BYTES // (4 * self.linear.k)
        if not fitting:
            raise RefusedError(f"windows of {self.linear.k} items, want at most {WINDOW_BYTES // 4}")
        return min(self.linear.m, fitting, MOST_ROWS)

    def weight_kn(self, weight: Tensor) -> Tensor:
        """The weight in the order in which rows are gathered."""
        order = weight.detach().movedim(1, -1) if self.is_last else weight.detach()
        return order.reshape(weight.shape[0], -1).t()


def conv_rows_source(site: Site, conv: ConvRows, tile: Tile, *, threads: int) -> tuple[Program, str]:
    """The kernel's text for one cut of the product, and the program it came from."""
    linear, panel, rows, deep = conv.linear, tile.panel, min(tile.rows, conv.rows), conv.linear.k
    program, loops, column = _lower(site, conv)
    panels, chunks = -(-linear.n // panel), -(-linear.m // conv.rows)
    is_parallel = threads > 1 and linear.m * deep * linear.n >= PARALLEL_MACS
    shared = [parallel(1, threads)] if is_parallel else []
    tiled = f"rl_tile<{{}}, {panel}, {tile.sums}>(rows_ + m * {deep}LL, {deep}, w, {deep}, "
    tiled += f"acc_ + m * {panel}, true);"
    lefts = sorted({conv.rows % rows, linear.m % conv.rows % rows} - {0})
    lines = [
        *anchor.operands_text(program, linear.x),
        *(shared if chunks > 1 else []),
        f"for (i64 row = 0; row < {linear.m}; row += {conv.rows}) {{",
        f"alignas(64) float rows_[{conv.rows * deep}];",
        f"const i64 height = row + {conv.rows} < {linear.m} ? {conv.rows} : {linear.m} - row;",
        *_gather_text(conv),
        *(shared if chunks == 1 and panels > 1 else []),
        f"for (i64 part = 0; part < {panels}; ++part) {{",
        f"alignas(64) float acc_[{conv.rows * panel}];",
        f"const float* w = packed + part * {deep * panel}LL;",
        "i64 m = 0;",
        f"for (; m + {rows} <= height; m += {rows}) {tiled.format(rows)}",
        *(f"if (height - m == {left}) {tiled.format(left)}" for left in lefts),
        f"const i64 first = part * {panel};",
        f"const i64 stop = first + {panel} < {linear.n} ? first + {panel} : {linear.n};",
        *_finish_text(program, loops, column, conv, panel),
        "}",
        "}",
    ]
    items = linear.m // (conv.made[0] * conv.made[1]) * conv.channels * conv.size[0] * conv.size[1]
    touched = anchor.touching(program, linear.x, items=items, weight_items=panels * deep * panel)
    return touched, whole(program, lines, helpers=anchor.VECTORS + TILE)


def _lower(site: Site, conv: ConvRows) -> tuple[Program, dict[str, Loop], Loop]:
    """The epilogue as a program, and its loops over images, lines, positions and channels."""
    linear = conv.linear
    program, axes = anchor.lower_around(site, linear.op, linear.x)
    anchor.require_items(program, axes)
    images = linear.m // (conv.made[0] * conv.made[1])
    made = conv.made if len(axes) == 4 else conv.made[1:]
    anchor.require_sizes(program, axes, (images, linear.n, *made))
    lines = axes[2] if len(axes) == 4 else ONE
    sizes = {"image": (axes[0], images), "line": (lines, conv.made[0]), "at": (axes[-1], conv.made[1])}
    loops = {var: Loop(var, axis, n, frozenset([axis])) for var, (axis, n) in sizes.items() if axis != ONE}
    return program, loops, Loop("c", axes[1], linear.n, frozenset([axes[1]]))


def _gather_text(conv: ConvRows) -> list[str]:
    """Rows of taps; zeros where a window reaches over an edge."""
    (size_h, size_w), (made_h, made_w), (kernel_h, kernel_w) = conv.size, conv.made, conv.kernel
    channels = conv.channels
    edge = f"ih >= 0 && ih < {size_h} && iw >= 0 && iw < {size_w}" if conv.reads_outside else ""
    taps = [
        f"for (i64 i = 0; i < {kernel_h}; ++i)",
        f"for (i64 j = 0; j < {kernel_w}; ++j) {{",
        f"const i64 ih = top + i * {conv.dilation[0]}, iw = left + j * {conv.dilation[1]};",
    ]
    if conv.is_last:
        copy = f"__builtin_memcpy(to, from + (ih * {size_w} + iw) * {channels}LL, {4 * channels});"
        clear = f"else __builtin_memset(to, 0, {4 * channels});"
        body = [*taps, *([f"if ({edge})", copy, clear] if edge else [copy]), f"to += {channels};", "}"]
    else:
        read = f"from[ih * {size_w}LL + iw]"
        body = [
            f"for (i64 c = 0; c < {channels}; ++c, from += {size_h * size_w}LL)",
            *taps,
            f"*to++ = {f'{edge} ? {read} : 0.0f' if edge else read};",
            "}",
        ]
    return [
        "for (i64 m = 0; m < height; ++m) {",
        f"const i64 top = (row + m) / {made_w} % {made_h} * {conv.stride[0]} - {conv.pads[0]};",
        f"const i64 left = (row + m) % {made_w} * {conv.stride[1]} - {conv.pads[1]};",
        f"const float* from = x + (row + m) / {made_h * made_w} * {channels * size_h * size_w}LL;",
        f"float* to = rows_ + m * {conv.linear.k}LL;",
        *body,
        "}",
    ]


def _finish_text(
    program: Program, loops: dict[str, Loop], column: Loop, conv: ConvRows, panel: int
) -> list[str]:
    """The epilogue; along the positions of a single line, where it is contiguous: so they lie in memory."""
    if set(loops) == {"at"} and not conv.is_last:
        acc = f"acc_[(at - row) * {panel} + c - first]"
        inner = anchor.epilogue(
            program, rows=[column], column=loops["at"], start="row", stop="row + height", acc=acc
        )
        return ["for (i64 c = first; c < stop; ++c) {", *inner, "}"]
    made_h, made_w = conv.made
    places = {
        "image": f"(row + m) / {made_h * made_w}",
        "line": f"(row + m) / {made_w} % {made_h}",
        "at": f"(row + m) % {made_w}",
    }
    acc = f"acc_[m * {panel} + c - first]"
    return [
        "for (i64 m = 0; m < height; ++m) {",
        *(f"const i64 {var} = {places[var]};" for var in loops),
        *anchor.epilogue(program, rows=[*loops.values()], column=column, start="first", stop="stop", acc=acc),
        "}",
    ]
