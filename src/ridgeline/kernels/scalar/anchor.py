"""The body around one product or convolution: everything after its sum, as a program that reads `acc`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Op, Site
from ridgeline.kernels.scalar.axes import ONE
from ridgeline.kernels.scalar.lowering import Lowering, Val
from ridgeline.kernels.scalar.ops import Handler, per_channel
from ridgeline.kernels.scalar.program import Program, Traits

CONVOLUTIONS = ("Conv", "ConvTranspose")


@dataclass(frozen=True)
class Dequantized:
    """Operands that an anchor's kernel takes as codes, or computes as it reads them.

    `values` are what the kernel makes itself. `scales` are applied to the sum: the name of each, and
    the dim of the result along which it varies; None if it broadcasts over the result as it is.
    """

    values: frozenset[str] = frozenset()
    scales: tuple[tuple[str, int | None], ...] = ()


NO_CODES = Dequantized()


def lower_around(
    site: Site, anchor: Op, handlers: Mapping[str, Handler], traits: Traits, *, first: str = "",
    codes: Dequantized = NO_CODES,
) -> tuple[Program, tuple[tuple[int, ...], ...]]:  # fmt: skip
    """The program after the anchor's sum, and the axes of each dim of `acc`.

    `first` is an input that gets the first pointer, even if the epilogue does not read it. `codes` says which
    operands of the anchor are multiplied as codes.
    """
    low = Lowering(site, handlers, traits)
    if first:
        low.value(first)
    dims: tuple[int, ...] = ()
    for op in site.body.ops:
        if op is anchor:
            acc = low.declare("acc", site.specs[op.outputs[0]])
            dims = acc.axes
            low.values[op.outputs[0]] = _own_terms(low, op, _scaled(low, acc, codes))
            continue
        if codes.values & set(op.outputs):
            continue
        if anchor.outputs[0] not in low.values and any(name in anchor.inputs[:2] for name in op.outputs):
            raise RefusedError(f"{op.op_type} comes before the {anchor.op_type}")
        low.run(op)
    program = low.finish()
    return program, tuple(() if axis == ONE else low.axes.leaves(axis) for axis in dims)


def _scaled(low: Lowering, acc: Val, codes: Dequantized) -> Val:
    """The sum times its scales; single numbers are multiplied into another scale first."""
    factor: Val | None = None
    for name, dim in codes.scales:
        scale = low.cast(low.value(name), "float32")
        if all(size == 1 for size in scale.shape):
            scale = replace(scale, shape=(), axes=())
        elif dim is not None:
            scale = per_channel(scale, len(acc.shape) - dim + 1)
        if factor is not None and scale.shape and factor.shape:
            acc, factor = low.map("{0} * {1}", acc, factor, dtype="float32"), None
        factor = scale if factor is None else low.map("{0} * {1}", factor, scale)
    return acc if factor is None else low.map("{0} * {1}", acc, factor, dtype="float32")


def _own_terms(low: Lowering, op: Op, acc: Val) -> Val:
    """Applies the anchor's own alpha, beta and bias to its sum."""
    if op.op_type in CONVOLUTIONS:
        if len(op.inputs) > 2 and op.inputs[2]:
            acc = low.map("{0} + {1}", acc, per_channel(low.value(op.inputs[2]), len(acc.shape)))
        return acc
    if op.op_type not in ("Gemm", "MatMul"):
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
