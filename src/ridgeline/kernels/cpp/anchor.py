"""What kernels around one product or convolution share: the epilogue as a program, and its loop.

The kernel computes the anchor's sum and passes it to the program as `acc`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Op, Site
from ridgeline.kernels.cpp.dialect import CPP
from ridgeline.kernels.cpp.loops import Loop, assign, load, store
from ridgeline.kernels.scalar import anchor as scalar
from ridgeline.kernels.scalar.axes import ONE
from ridgeline.kernels.scalar.ops import POINTWISE
from ridgeline.kernels.scalar.program import Program

# vectors of the machine's width; unaligned, since rows start anywhere
VECTORS = """
#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
"""


def lower_around(site: Site, anchor: Op, x: int) -> tuple[Program, tuple[int, ...]]:
    """The body after its anchor, and the axes of `acc`; `x` is the position of the anchor's input."""
    program, dims = scalar.lower_around(site, anchor, POINTWISE, CPP, first=site.body.inputs[x])
    if any(len(axes) > 1 for axes in dims):
        raise RefusedError("an axis of the product is split")
    return program, tuple(axes[0] if axes else ONE for axes in dims)


def require_items(program: Program, axes: Sequence[int]) -> None:
    """Refuses outputs that do not have one item per item of `acc`."""
    if any(set(m.strides) != set(program.sizes) for m in program.stores):
        raise RefusedError("an output is smaller than the product")
    if set(program.sizes) - set(axes):
        raise RefusedError("an output is larger than the product")


def require_columns(program: Program, axes: Sequence[int], column: int) -> None:
    """Refuses outputs that do not have one item per item of `acc`, or whose columns are not contiguous."""
    require_items(program, axes)
    if any(m.strides.get(column, 1) != 1 for m in program.stores):
        raise RefusedError("columns of an output are not contiguous")


def require_sizes(program: Program, axes: Sequence[int], sizes: Sequence[int]) -> None:
    """Refuses a result whose sizes are not those of the kernel's loops."""
    if any(program.sizes.get(axis, 1) != size for axis, size in zip(axes, sizes, strict=True)):
        raise RefusedError(f"the result is not of the size {list(sizes)} that is computed")


def operands_text(program: Program, x: int) -> list[str]:
    """The anchor's input at slot `x`, and its packed weight, which is the last pointer."""
    slots = len(program.inputs) + len(program.stores) + len(program.extras)
    return [
        f"const float* x = (const float*)p[{program.inputs.index(x)}];",
        f"const float* packed = (const float*)p[{slots}];",
    ]


def touching(program: Program, x: int, *, items: int, weight_items: int) -> Program:
    """The program, with the items that the text around it reads of input `x` and of the packed weight."""
    return replace(program, touched={f"p{program.inputs.index(x)}": 4 * items, "w0": 4 * weight_items})


def past(start: str, piece: int, size: int) -> str:
    """The end of a piece that begins at `start`; a plain sum if all pieces are whole."""
    if size % piece == 0:
        return f"{start} + {piece}"
    return f"{start} + {piece} < {size} ? {start} + {piece} : {size}"


def epilogue(
    program: Program, *, rows: Sequence[Loop], column: Loop, start: str, stop: str, acc: str
) -> list[str]:
    """The columns of one row from `start` to `stop`; the text around it defines the variables of `rows`."""
    nest = [*rows, column]
    fixed = [m for m in program.loads if not m.strides.get(column.axis, 0)]
    return [
        *(load(m, nest) for m in fixed),
        "#pragma omp simd",
        f"{column.header(start, stop)} {{",
        f"const float acc = {acc};",
        *(load(m, nest) for m in program.loads if m not in fixed),
        *map(assign, program.steps),
        *(store(m, nest) for m in program.stores),
        "}",
    ]
