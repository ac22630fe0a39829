"""What kernels around one product or convolution share: its epilogue as a program, and the epilogue's loop.

The anchor's own sum is found by the kernel and reaches the program under the name `acc`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.kernels.cpp.loops import Loop, assign, load, store
from ridgeline.kernels.cpp.ops import POINTWISE, per_channel
from ridgeline.kernels.cpp.program import ONE, Lowering, Program, Refusal, Val
from ridgeline.spec import Op, Site

# vectors as wide as the machine's; unaligned, since rows start anywhere
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
    """The body behind its anchor, and the axes of `acc`; `x` is the anchor's slot among the inputs."""
    low = Lowering(site, POINTWISE)
    low.value(site.body.inputs[x])
    axes: tuple[int, ...] = ()
    for op in site.body.ops:
        if op is anchor:
            acc = low.declare("acc", site.specs[op.outputs[0]])
            axes = acc.axes
            low.values[op.outputs[0]] = _own_terms(low, op, acc)
            continue
        if anchor.outputs[0] not in low.values and any(name in anchor.inputs for name in op.outputs):
            raise Refusal(f"{op.op_type} comes before the {anchor.op_type}")
        low.run(op)
    program = low.finish()
    return program, tuple(axis if axis == ONE else low.root(axis) for axis in axes)


def _own_terms(low: Lowering, op: Op, acc: Val) -> Val:
    """What the anchor itself adds to and makes of its sum."""
    if op.op_type == "Conv":
        if len(op.inputs) > 2 and op.inputs[2]:
            acc = low.map("{0} + {1}", acc, per_channel(low.value(op.inputs[2]), len(acc.shape)))
        return acc
    alpha, beta = float(op.attrs.get("alpha", 1.0)), float(op.attrs.get("beta", 1.0))
    if alpha != 1.0:
        acc = low.map("{0} * {1}", acc, low.constant(alpha, "float32"))
    if len(op.inputs) > 2 and op.inputs[2]:
        bias = low.value(op.inputs[2])
        if beta != 1.0:
            bias = low.map("{0} * {1}", bias, low.constant(beta, "float32"))
        acc = low.map("{0} + {1}", acc, bias)
    return acc


def require_columns(program: Program, axes: Sequence[int], column: int) -> None:
    """Outputs hold one item per item of `acc`, and lie column by column."""
    if any(set(m.strides) != set(program.sizes) for m in program.stores):
        raise Refusal("an output is smaller than the product")
    if set(program.sizes) - set(axes):
        raise Refusal("an output is larger than the product")
    if any(m.strides.get(column, 1) != 1 for m in program.stores):
        raise Refusal("columns of an output are not contiguous")


def epilogue(
    program: Program, *, rows: Sequence[Loop], column: Loop, start: str, stop: str, acc: str
) -> list[str]:
    """One row's columns from `start` to `stop`; the variables of `rows` are known to the text around it."""
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
