"""The single source of bytes and flops: what a body must move and compute at the least.

Tactic pruning, benchmarks and reports all count with this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from ridgeline.base.spec import Body, Op, TensorSpec

Specs = Mapping[str, TensorSpec]

# flops per element of the result, for ops that are not one
_PER_ELEMENT = {
    "Softmax": 5, "LogSoftmax": 6, "LayerNormalization": 8, "RMSNormalization": 5, "GroupNormalization":
    8, "InstanceNormalization": 8, "BatchNormalization": 2, "Gelu": 8, "Erf": 8, "Tanh": 8, "Sigmoid": 4,
    "Exp": 4, "Log": 4, "HardSwish": 4, "Swish": 5, "Mish": 12, "Pow": 8,
}  # fmt: skip
_FREE = frozenset({
    "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Transpose", "Split", "Slice", "Concat",
    "Expand", "Gather", "Pad", "Tile", "Shape", "Constant", "Cast",
})  # fmt: skip


def body_flops(body: Body, specs: Specs) -> int:
    return sum(op_flops(op, specs) for op in body.ops)


def body_bytes(body: Body, specs: Specs) -> int:
    """Inputs read once and outputs written once; what stays inside the region is free."""
    written = sum(specs[n].nbytes for n in body.outputs if n in specs)
    return written + sum(_bytes_read(body, n, specs) for n in body.inputs if n in specs)


def _bytes_read(body: Body, name: str, specs: Specs) -> int:
    """All of an input; of a table that is only looked up, no more than what is found there."""
    readers = body.consumers(name)
    found = [op.outputs[0] for op in readers if op.op_type == "Gather" and op.inputs[0] == name]
    is_table = bool(readers) and len(found) == len(readers) and all(n in specs for n in found)
    whole = specs[name].nbytes
    return min(whole, sum(specs[n].nbytes for n in found)) if is_table else whole


def op_flops(op: Op, specs: Specs) -> int:
    """0 where a shape is not known."""
    names = [n for n in (*op.inputs, *op.outputs) if n]
    if any(n not in specs for n in names) or op.op_type in _FREE:
        return 0
    count = _COUNTS.get(op.op_type)
    if count is not None:
        return count(op, specs)
    made = specs[op.outputs[0]].numel if op.outputs and op.outputs[0] in specs else 0
    if op.op_type.startswith(("Reduce", "Global", "ArgM")):
        made = specs[op.inputs[0]].numel
    return made * _PER_ELEMENT.get(op.op_type, 1)


def _conv(op: Op, specs: Specs) -> int:
    weight = specs[op.inputs[1]]
    return 2 * specs[op.outputs[0]].numel * math.prod(weight.shape[1:])


def _conv_transpose(op: Op, specs: Specs) -> int:
    weight = specs[op.inputs[1]]
    return 2 * specs[op.inputs[0]].numel * math.prod(weight.shape[1:])


def _matmul(op: Op, specs: Specs) -> int:
    return (
        2 * specs[op.outputs[0]].numel * (specs[op.inputs[0]].shape[-1] if specs[op.inputs[0]].shape else 1)
    )


def _gemm(op: Op, specs: Specs) -> int:
    a = specs[op.inputs[0]].shape
    return 2 * specs[op.outputs[0]].numel * (a[0] if op.attrs.get("transA", 0) else a[1])


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


_COUNTS: dict[str, Callable[[Op, Specs], int]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Attention": _attention,
}
