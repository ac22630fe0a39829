"""Attention as an op of its own: every input, output and attribute survives the passes and the engine."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from text_graphs import parse, random_feeds

import ridgeline

HEADS = "float[B,4,S,8] q, float[B,2,S,8] k, float[B,2,S,8] v"
PAST = ", float[B,2,P,8] pk, float[B,2,P,8] pv"
FLAT = "float[B,S,32] q, float[B,S,16] k, float[B,S,16] v"
WHOLE = "(float[B,4,S,8] y)"
PRESENT = "(float[B,4,S,8] y, float[B,2,T,8] nk, float[B,2,T,8] nv)"
SCORES = "(float[B,4,S,8] y, float[B,2,T,8] nk, float[B,2,T,8] nv, float[B,4,S,T] w)"
CASES = {
    "grouped heads": (HEADS, WHOLE, "y = Attention(q, k, v)", 23),
    "causal": (HEADS, WHOLE, "y = Attention<is_causal = 1>(q, k, v)", 23),
    "softcap": (HEADS, WHOLE, "y = Attention<softcap = 2.0>(q, k, v)", 23),
    "bool mask for all heads": (f"{HEADS}, bool[S,S] m", WHOLE, "y = Attention(q, k, v, m)", 23),
    "one row of mask": (f"{HEADS}, float[B,1,1,S] m", WHOLE, "y = Attention(q, k, v, m)", 24),
    "flat heads": (
        FLAT, "(float[B,S,32] y)", "y = Attention<q_num_heads = 4, kv_num_heads = 2>(q, k, v)", 23,
    ),
    "flat heads, one row of mask": (
        f"{FLAT}, float[1,S] m", "(float[B,S,32] y)",
        "y = Attention<q_num_heads = 4, kv_num_heads = 2>(q, k, v, m)", 24,
    ),
    "past and present": (
        HEADS + PAST, PRESENT, "y, nk, nv = Attention<is_causal = 1>(q, k, v, , pk, pv)", 23,
    ),
    **{
        f"scores of mode {mode}": (
            HEADS + PAST, SCORES,
            f"y, nk, nv, w = Attention<qk_matmul_output_mode = {mode}, softcap = 3.0>(q, k, v, , pk, pv)", 23,
        )
        for mode in range(4)
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_op(name: str) -> None:
    inputs, outputs, line, opset = CASES[name]
    proto = ir.to_proto(parse(f"g ({inputs}) => {outputs} {{ {line} }}", opset))
    engine = ridgeline.build(proto, level=0, threads=1, verify="off")
    for sizes in ({"B": 2, "S": 5, "P": 3}, {"B": 3, "S": 4, "P": 6}):
        feeds = random_feeds(ir.from_proto(proto), sizes)
        for array in feeds.values():
            if array.dtype == bool:
                array[..., 0] = True  # every query sees a key
        got = engine.run(feeds)
        for want, output in zip(ReferenceEvaluator(proto).run(None, feeds), proto.graph.output, strict=True):
            np.testing.assert_allclose(got[output.name], want, rtol=0.0, atol=2e-6)
