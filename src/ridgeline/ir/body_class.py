"""What a body mostly is, which type it computes in, and what each of its ops contributes to the work."""

from __future__ import annotations

from collections.abc import Mapping

from ridgeline.base.formats import FORMATS
from ridgeline.base.spec import TF32, Body, Op, TensorSpec
from ridgeline.ir.op_row import Kind
from ridgeline.ir.ops import is_a
from ridgeline.ir.quant import INTEGER_PRODUCTS, coded_products
from ridgeline.ir.work import bytes_read, op_flops

_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose", "QLinearConv", "ConvInteger", "DeformConv"})
_PRODUCTS = INTEGER_PRODUCTS | {"Einsum"}
_RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
POOLS = frozenset({"MaxPool", "AveragePool", "LpPool"})  # over windows
_WINDOWS = POOLS | {"ArgMax", "ArgMin", "TopK", "CumSum", "GlobalLpPool"}

_BOTH_CODED = frozenset(name for name, fmt in FORMATS.items() if not fmt.block)


def body_class(body: Body) -> str:
    """One of `plan.trace.OpClass`: that of the op which decides how the region runs."""
    ops = body.ops
    names = {op.op_type for op in ops}
    if any(is_a(op, Kind.CONTROL) for op in ops):
        return "control"
    if "Attention" in names:
        return "attention"
    if names & _CONVOLUTIONS:
        return "convolution"
    if names & _PRODUCTS or any(is_a(op, Kind.PRODUCT) for op in ops):
        return "product"
    if names & _RECURRENT:
        return "recurrent"
    if names & _WINDOWS or any(is_a(op, Kind.ROW) for op in ops):
        return "norm/reduction"
    if all(is_a(op, Kind.MOVEMENT) for op in ops):
        return "movement"
    return "pointwise" if all(is_a(op, Kind.POINTWISE | Kind.MOVEMENT) for op in ops) else "other"


def compute_type(body: Body, specs: Mapping[str, TensorSpec]) -> str:
    """The type in which most of the work is done: of products that read codes, the format of the codes."""
    # products of which only the weight is codes compute in the type of the other operand
    coded = {kind: n for kind, n in coded_products(body.ops, specs).items() if kind in _BOTH_CODED}
    if coded:
        return str(FORMATS[max(coded, key=lambda kind: coded[kind])].dtype)
    heaviest = max(body.ops, key=lambda op: op_flops(op, specs), default=None)
    if heaviest is None:
        return "other"
    if heaviest.math == TF32:
        return TF32
    known = [specs[name] for name in (*heaviest.inputs, *heaviest.outputs) if name in specs]
    floats = [spec.dtype for spec in known if spec.is_float]
    return floats[0] if floats else known[-1].dtype if known else "other"


def work_by_op(body: Body, specs: Mapping[str, TensorSpec]) -> list[tuple[Op, int, int]]:
    """Flops and bytes of each op; they add up to those of the body.

    An input counts for the first op that reads it, an output for the op that makes it.
    """
    first_reader = {name: i for i, op in reversed(list(enumerate(body.ops))) for name in op.inputs}
    maker = {name: i for i, op in enumerate(body.ops) for name in op.outputs}
    last = len(body.ops) - 1  # what only a subgraph reads, or nothing in the body makes
    moved = [0] * len(body.ops)
    for name in body.inputs:
        if name in specs:
            moved[first_reader.get(name, last)] += bytes_read(body, name, specs)
    for name in body.outputs:
        if name in specs:
            moved[maker.get(name, last)] += specs[name].nbytes
    return [(op, op_flops(op, specs), moved[i]) for i, op in enumerate(body.ops)]
