"""Column of the op table: floating-point operations of an op at settled shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ridgeline.base.spec import Op
from ridgeline.ir.op_row import Flops, Specs


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


_REDUCTIONS = """
ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
ReduceSumSquare GlobalAveragePool GlobalMaxPool GlobalLpPool ArgMax ArgMin
"""
_FREE = """
Reshape Squeeze Unsqueeze Flatten Identity Transpose Split Slice Concat Expand Gather Pad Tile Shape Constant
Cast
"""
# an integer counts per element of the result; ops that are not listed do one operation for each
FLOPS: Mapping[str, Flops | int] = {
    **dict.fromkeys(_FREE.split(), 0), **dict.fromkeys(_REDUCTIONS.split(), _per_input_element),
    "Conv": _conv, "ConvTranspose": _conv_transpose, "MatMul": _matmul, "Gemm": _gemm,
    "Attention": _attention,
    "Softmax": 5, "LogSoftmax": 6, "LayerNormalization": 8, "RMSNormalization": 5, "GroupNormalization": 8,
    "InstanceNormalization": 8, "BatchNormalization": 2, "Gelu": 8, "Erf": 8, "Tanh": 8, "Sigmoid": 4,
    "Exp": 4, "Log": 4, "HardSwish": 4, "Swish": 5, "Mish": 12, "Pow": 8,
}  # fmt: skip
