"""Resize as generated C++, from the same tables of positions and shares as on a GPU.

Where channels lie side by side, vectors run along them. Otherwise the columns of an input line are added up
into a buffer, which serves all output lines that read this line, and vectors run along the buffers.
"""

from __future__ import annotations

import numpy as np

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import ITEM_BITS
from ridgeline.kernels.cpp.loops import parallel, whole
from ridgeline.kernels.cpp.moves import ITEM_TYPES
from ridgeline.kernels.cpp.operands import Operands
from ridgeline.kernels.resize import ResizeSite
from ridgeline.kernels.scalar.program import Program

BLOCK_LINES = 16  # of one task
MOST_REPEATS = 16  # each is a statement
BUFFER_BYTES = 256 * 1024  # on the stack of a thread
POINTERS = {"x": "p0", "y": "q0", "lines": "x0", "line_shares": "x1", "columns": "x2", "column_shares": "x3"}


def resize_source(found: ResizeSite, *, threads: int) -> tuple[Program, str]:
    """The program with the tables, and the kernel's text; `RefusedError` for what it cannot run."""
    item = "float" if not found.is_copy else ITEM_TYPES[ITEM_BITS[found.x.dtype] // 8]
    if not found.is_copy and found.x.dtype != "float32":
        raise RefusedError(f"numbers of type {found.x.dtype} are added up, want float32")
    if found.x.layout != found.y.layout and found.x.shape[1] > 1:
        raise RefusedError("input and output have different layouts")
    inner = found.inner
    if inner == 1 and 4 * found.lines.count * found.out_size[1] > BUFFER_BYTES:
        raise RefusedError(f"lines of {found.out_size[1]} columns do not fit in a thread's buffer")
    (in_h, in_w), (out_h, out_w) = found.in_size, found.out_size
    blocks = -(-out_h // BLOCK_LINES)
    lines = [
        f"const {item}* x = (const {item}*)p[0];",
        f"{item}* y = ({item}*)p[1];",
        "const int* lines = (const int*)p[2];",
        "const float* line_shares = (const float*)p[3];",
        "const int* columns = (const int*)p[4];",
        "const float* column_shares = (const float*)p[5];",
        "(void)line_shares, (void)columns, (void)column_shares;",
        *([parallel(2, threads)] if threads > 1 else []),
        f"for (i64 plane = 0; plane < {found.planes // inner}; ++plane)",
        f"for (i64 block = 0; block < {blocks}; ++block) {{",
        f"const {item}* from = x + plane * {in_h * in_w * inner}LL;",
        f"{item}* to = y + plane * {out_h * out_w * inner}LL;",
        f"const i64 end = block * {BLOCK_LINES} + {BLOCK_LINES} < {out_h} "
        f"? block * {BLOCK_LINES} + {BLOCK_LINES} : {out_h};",
        *(_copied(found, inner, item) if found.is_copy else _side_by_side(found, inner) if inner > 1
          else _buffered(found)),
        "}",
    ]  # fmt: skip
    tables = found.lines.places, found.lines.shares, found.columns.places.T, found.columns.shares.T
    operands = Operands((found.place,), tuple(map(np.ascontiguousarray, tables)), POINTERS)
    program = operands.program({"p0": found.x.nbytes, "q0": found.y.nbytes})
    return program, whole(program, lines)


def _copied(found: ResizeSite, inner: int, item: str) -> list[str]:
    """Every element as it is; a line that repeats the one before it is copied whole."""
    in_w, out_w = found.in_size[1], found.out_size[1]
    row = out_w * inner
    repeats = _repeats(found)
    if inner > 1:
        size = f"{inner} * sizeof({item})"
        copy = f"__builtin_memcpy(made + w * {inner}, source + columns[w] * {inner}LL, {size});"
    elif repeats > 1:
        # without a table the loop becomes vectors
        out_w, copy = in_w, " ".join(f"made[w * {repeats} + {i}] = source[w];" for i in range(repeats))
    else:
        copy = "made[w] = source[columns[w]];"
    return [
        f"for (i64 h = block * {BLOCK_LINES}; h < end; ++h) {{",
        f"{item}* made = to + h * {row}LL;",
        f"if (h % {BLOCK_LINES} && lines[h] == lines[h - 1]) {{",
        f"__builtin_memcpy(made, made - {row}, {row} * sizeof({item}));",
        "continue;",
        "}",
        f"const {item}* source = from + lines[h] * {in_w * inner}LL;",
        f"for (i64 w = 0; w < {out_w}; ++w) {{ {copy} }}",
        "}",
    ]


def _repeats(found: ResizeSite) -> int:
    """How many times each column stands there, one behind the other, if all stand there as often; else 0."""
    in_w, out_w = found.in_size[1], found.out_size[1]
    repeats = out_w // in_w
    is_even = np.array_equal(found.columns.places[:, 0], np.arange(out_w) // max(repeats, 1))
    return repeats if is_even and repeats <= MOST_REPEATS else 0


def _side_by_side(found: ResizeSite, inner: int) -> list[str]:
    """Sums of positions, each of all channels."""
    in_w, out_w = found.in_size[1], found.out_size[1]
    taps = [(i, j) for i in range(found.lines.count) for j in range(found.columns.count)]
    terms = " + ".join(f"share{i}{j} * x{i}{j}[c]" for i, j in taps)
    return [
        f"for (i64 h = block * {BLOCK_LINES}; h < end; ++h)",
        f"for (i64 w = 0; w < {out_w}; ++w) {{",
        f"float* made = to + (h * {out_w} + w) * {inner}LL;",
        *(
            f"const float* x{i}{j} = from + (lines[h * {found.lines.count} + {i}] * {in_w}LL "
            f"+ columns[{j * out_w} + w]) * {inner};"
            for i, j in taps
        ),
        *(
            f"const float share{i}{j} = line_shares[h * {found.lines.count} + {i}] "
            f"* column_shares[{j * out_w} + w];"
            for i, j in taps
        ),
        "#pragma omp simd",
        f"for (i64 c = 0; c < {inner}; ++c) made[c] = {terms};",
        "}",
    ]


def _buffered(found: ResizeSite) -> list[str]:
    """Sums of buffers; one that holds a line which is read again is kept."""
    in_w, out_w, taps = found.in_size[1], found.out_size[1], found.lines.count
    columns = [
        f"column_shares[{j * out_w} + w] * source[columns[{j * out_w} + w]]"
        for j in range(found.columns.count)
    ]
    if found.columns.count == 1:
        columns = ["source[columns[w]]"]
    sums = " + ".join(f"share{i} * row{i}[w]" for i in range(taps))
    return [
        f"alignas(64) float buffers[{taps}][{out_w}];",
        f"int held[{taps}];",
        f"for (int i = 0; i < {taps}; ++i) held[i] = -1;",
        f"for (i64 h = block * {BLOCK_LINES}; h < end; ++h) {{",
        f"const float* rows[{taps}];",
        f"for (int i = 0; i < {taps}; ++i) {{",
        f"const int* wanted = lines + h * {taps};",
        "int at = -1;",
        f"for (int j = 0; j < {taps}; ++j) if (held[j] == wanted[i]) at = j;",
        "if (at < 0) {",
        "// lines are as many as buffers, so that one holds none of them",
        f"for (int j = 0; j < {taps} && at < 0; ++j) {{",
        "bool is_wanted = false;",
        f"for (int k = 0; k < {taps}; ++k) is_wanted |= held[j] == wanted[k];",
        "if (!is_wanted) at = j;",
        "}",
        "held[at] = wanted[i];",
        f"const float* source = from + wanted[i] * {in_w}LL;",
        "float* made = buffers[at];",
        "#pragma omp simd",
        f"for (i64 w = 0; w < {out_w}; ++w) made[w] = {' + '.join(columns)};",
        "}",
        "rows[i] = buffers[at];",
        "}",
        f"float* made = to + h * {out_w}LL;",
        *(f"const float* row{i} = rows[{i}];" for i in range(taps)),
        *(f"const float share{i} = line_shares[h * {taps} + {i}];" for i in range(taps)),
        "#pragma omp simd",
        f"for (i64 w = 0; w < {out_w}; ++w) made[w] = {sums};",
        "}",
    ]
