"""Column of the op table: floating-point operations of an op at settled shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ridgeline.base.spec import Op
from ridgeline.ir.op_row import Flops, Kind, Specs


def _per_input_element(op: Op, specs: Specs) -> int:
    return specs[op.inputs[0]].numel


def _conv(op: Op, specs: Specs) -> int:
    return 2 * specs[op.outputs[0]].numel * math.prod(specs[op.inputs[1]].shape[1:])


def _conv_transpose(op: Op, specs: Specs) -> int:
    return 2 * specs[op.inputs[0]].numel * math.prod(specs[op.inputs[1]].shape[1:])


def _matmul(op: Op, specs: Specs) -> int:
    left = specs[op.inputs[0]].shape
    return 2 * specs[op.outputs[0]].numel * (left[-1] if left else 1)


def _gemm(op: Op, specs: Specs) -> int:
    left = specs[op.inputs[0]].shape
    return 2 * specs[op.outputs[0]].numel * (left[0] if op.attrs.get("transA", 0) else left[1])


def _attention(op: Op, specs: Specs) -> int:
    """Two products of queries with keys and values, and the softmax between."""
    q, k, v = (specs[name] for name in op.inputs[:3])
    if len(q.shape) == 4:
        batch, heads, queries, width = q.shape
        keys, out_width = k.shape[2], v.shape[3]
    else:
        batch, queries, full = q.shape
        heads = op.attrs["q_num_heads"]
        keys, width, out_width = k.shape[1], full // heads, v.shape[2] // op.attrs["kv_num_heads"]
    return int(batch * heads * queries * keys * (2 * width + 2 * out_width + 5))


# an integer counts per element of the result; ops that are not listed do one operation for each
FLOPS: Mapping[str, Flops | int] = {
    "Conv": _conv, "ConvTranspose": _conv_transpose, "MatMul": _matmul, "Gemm": _gemm,
    "Attention": _attention, "Shape": 0, "Constant": 0, "Cast": 0,
    "Softmax": 5, "LogSoftmax": 6, "LayerNormalization": 8, "RMSNormalization": 5, "GroupNormalization": 8,
    "InstanceNormalization": 8, "BatchNormalization": 2, "Gelu": 8, "Erf": 8, "Tanh": 8, "Sigmoid": 4,
    "QuantizeLinear": 4, "DequantizeLinear": 2,
    "Exp": 4, "Log": 4, "HardSwish": 4, "Swish": 5, "Mish": 12, "Pow": 8,
}  # fmt: skip

# they take tens of instructions for each result, and count as a few operations
FUNCTIONS = frozenset((
    "Celu", "Cos", "Elu", "Erf", "Exp", "Gelu", "Log", "LogSoftmax", "Mish", "Pow", "Selu", "Sigmoid", "Sin",
    "Softmax", "Softplus", "Swish", "Tan", "Tanh",
))  # fmt: skip


def flops_of(op_type: str, kind: Kind) -> Flops | int:
    """Movement is free, reductions count the elements that they read."""
    if op_type.startswith(("Reduce", "Global", "ArgM")):
        return _per_input_element
    return 0 if kind & Kind.MOVEMENT else FLOPS.get(op_type, 1)
