"""Resize of images in every mode: which lines and columns are added up, and their shares, stand in tables.

A program makes a few neighbouring output lines that are sums of the same input lines: it loads these, and
adds up their columns, once. A plane is an image of one channel, or of all where channels lie side by side.
What follows the Resize is computed on each line as it is made.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


def resize_ref(
    x: Tensor, lines: Tensor, line_shares: Tensor, columns: Tensor, column_shares: Tensor
) -> Tensor:
    """y[h, w] = Σᵢ Σⱼ line_shares[h, i] · column_shares[w, j] · x[lines[h, i], columns[w, j]], by planes."""
    total = torch.zeros((), dtype=x.dtype)
    for line, line_share in zip(lines.T, line_shares.T.to(x.dtype), strict=True):
        for column, share in zip(columns.T, column_shares.T.to(x.dtype), strict=True):
            total = total + x[..., line, :][..., column] * line_share[:, None] * share
    return total


@triton.jit
def resize(
    x_ptr, pointers, starts_ptr, lines_ptr, line_shares_ptr, columns_ptr, column_shares_ptr, images,
    CELLS: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr, TABLE_W: tl.constexpr,
    CHANNELS: tl.constexpr, INNER: tl.constexpr, X_IMAGE: tl.constexpr, X_CHANNEL: tl.constexpr,
    X_INNER: tl.constexpr, X_LINE: tl.constexpr, X_COLUMN: tl.constexpr, LINE_TAPS: tl.constexpr,
    COLUMN_TAPS: tl.constexpr, DEPTH: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, PDL: tl.constexpr,
    EPILOGUE: tl.constexpr,
):  # fmt: skip
    """y[p, h, w] = epilogue(Σᵢ Σⱼ line_shares[h, i] · column_shares[w, j] · x[p, lines[h, i], columns[w, j]])

    Grid: planes p, cells of lines, blocks along a line. With INNER channels side by side a block is HIGH
    groups of WIDE channels, and WIDE divides INNER; else it is WIDE columns, of HIGH planes. In x a plane
    lies at image p // CHANNELS and channel p % CHANNELS. The sum is rounded to the type of x; the epilogue
    counts positions as rows and channels as columns, or (p, h) as rows and w as columns.
    """
    ELEMENT: tl.constexpr = x_ptr.dtype.element_ty
    ROW: tl.constexpr = OUT_W * INNER
    BLOCKS: tl.constexpr = (
        (ROW + HIGH * WIDE - 1) // (HIGH * WIDE) if INNER > 1 else (OUT_W + WIDE - 1) // WIDE
    )
    block = tl.program_id(0) % BLOCKS
    cell = tl.program_id(0) // BLOCKS % CELLS
    bundle = (tl.program_id(0) // (BLOCKS * CELLS)).to(tl.int64)
    if INNER > 1:
        first = (block * HIGH + tl.arange(0, HIGH)) * WIDE  # [HIGH], of a group
        inside = (first < ROW)[:, None]
        item = tl.arange(0, WIDE)[None, :]
        channel = (first % INNER)[:, None] + item
        column = first // INNER
        x_tile = x_ptr + bundle * X_IMAGE + channel * X_INNER
    else:
        column = block * WIDE + tl.arange(0, WIDE)
        plane = bundle * HIGH + tl.arange(0, HIGH)
        inside = (plane < images * CHANNELS)[:, None] & (column < OUT_W)[None, :]
        top = (plane * OUT_H).to(tl.int32)[:, None]
        if CHANNELS == 1:
            plane = tl.minimum(plane, images - 1)
        x_tile = x_ptr + (plane // CHANNELS * X_IMAGE + plane % CHANNELS * X_CHANNEL)[:, None]
    # the tables are constants: they are read before the kernel in front has ended
    start, end = tl.load(starts_ptr + cell), tl.load(starts_ptr + cell + 1)
    lines = ()
    for i in tl.static_range(LINE_TAPS):
        lines = lines + (tl.load(lines_ptr + cell * LINE_TAPS + i),)  # type: ignore[assignment]  # noqa: RUF005
    columns = ()
    shares = ()
    for j in tl.static_range(COLUMN_TAPS):
        at = tl.load(columns_ptr + j * TABLE_W + column)
        columns = columns + (_spread(at, INNER),)  # type: ignore[assignment]  # noqa: RUF005
        if COLUMN_TAPS > 1:
            share = tl.load(column_shares_ptr + j * TABLE_W + column)
            shares = shares + (_spread(share, INNER),)  # type: ignore[assignment]  # noqa: RUF005
    line_shares = ()
    if LINE_TAPS > 1:
        for n in tl.static_range(DEPTH * LINE_TAPS):
            share = tl.load(line_shares_ptr + cell * (DEPTH * LINE_TAPS) + n)
            line_shares = line_shares + (share,)  # type: ignore[assignment]  # noqa: RUF005
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    rows = ()  # of each input line, with its columns added up
    for i in tl.static_range(LINE_TAPS):
        line_tile = x_tile + lines[i] * X_LINE
        row = _load(line_tile + columns[0] * X_COLUMN, inside, CHANNELS)  # type: ignore[misc]
        if LINE_TAPS > 1 or COLUMN_TAPS > 1:
            row = row.to(tl.float32)
        if COLUMN_TAPS > 1:
            row *= shares[0]  # type: ignore[misc]
            for j in tl.static_range(1, COLUMN_TAPS):
                x = _load(line_tile + columns[j] * X_COLUMN, inside, CHANNELS)
                row += x.to(tl.float32) * shares[j]
        rows = rows + (row,)  # type: ignore[assignment]  # noqa: RUF005
    for n in tl.static_range(DEPTH):
        made = rows[0]  # type: ignore[misc]
        if LINE_TAPS > 1:
            made = made * line_shares[n * LINE_TAPS]
            for i in tl.static_range(1, LINE_TAPS):
                made += rows[i] * line_shares[n * LINE_TAPS + i]
        if not ELEMENT.is_int():
            made = made.to(ELEMENT).to(tl.float32)
        line, mask = start + n, inside & (start + n < end)
        if INNER > 1:
            position = (bundle * OUT_H + line).to(tl.int32) * OUT_W + column[:, None]
            EPILOGUE(made, position, channel, mask, pointers)
        else:
            EPILOGUE(made, top + line, column[None, :], mask, pointers)


@triton.jit
def _spread(of_column, INNER: tl.constexpr):
    """Values of columns, along a tile."""
    return of_column[:, None] if INNER > 1 else of_column[None, :]


@triton.jit
def _load(pointers, inside, CHANNELS: tl.constexpr):
    """Elements of a tile. Those outside are read from addresses of others, unless planes are split.

    A narrow load behind a mask takes an instruction more, which clears its register.
    """
    return tl.load(pointers) if CHANNELS == 1 else tl.load(pointers, mask=inside)
