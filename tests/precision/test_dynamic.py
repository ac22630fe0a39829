"""Dynamic quantisation as ONNX Runtime's tools write it: integer products, and levels by kernels of ours."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantType, quantize_dynamic
from quant_models import proto_of

import ridgeline
from ridgeline.kernels.cpp.compiler import cpu_has, find_compiler
from ridgeline.tactics.cpu.cpp_levels import VNNI

RNG = np.random.default_rng(0)


def drawn(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


MLP = proto_of(
    """g (float[N,64] x) => (float[N,64] y) {
        n = LayerNormalization(x, g, c) h = MatMul(n, w1) a = Add(h, b1) r = Relu(a) m = MatMul(r, w2)
        o = Add(m, b2) y = Add(o, x)
    }""",
    g=np.ones(64, np.float32), c=drawn(64), w1=drawn(64, 96), b1=drawn(96), w2=drawn(96, 64), b2=drawn(64),
)  # fmt: skip


@pytest.mark.skipif(not cpu_has(find_compiler() or "c++", VNNI), reason="no VNNI here")
@pytest.mark.parametrize("kind", [QuantType.QInt8, QuantType.QUInt8])
def test_a_dynamically_quantised_model_runs_in_integers(
    kind: QuantType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """uint8 weights have zero points, which follow from their ends."""
    source, made = tmp_path / "float.onnx", tmp_path / "dynamic.onnx"
    onnx.save(MLP, source)
    with caplog.at_level(logging.CRITICAL):
        quantize_dynamic(source, made, weight_type=kind)
    ops = [node.op_type for node in onnx.load(made).graph.node]
    assert ops.count("MatMulInteger") == 2
    engine = ridgeline.build(made, profiles={"x": "9x64"}, level=0, without=["ort"])
    assert [step.tactic for step in engine.plan.steps] == [
        "cpp.reduce", "cpp.dynamic_levels", "cpp.levels", "cpp.dynamic_levels", "cpp.levels",
    ]  # fmt: skip
    assert engine.report.verified
