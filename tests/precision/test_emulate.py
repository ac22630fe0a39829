"""The emulator computes what the model computes, and rounds where it is told to."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import torch

from ridgeline.precision.emulate import Emulator, node_key, rounded_to

MODEL = """<ir_version: 10, opset_import: ["": 20]>
g (float[N,4] x, bool c) => (float[N,3] y, float[N,3] z) <float[4,3] w = {
    0.1, -0.2, 0.3, 0.4, 0.5, 0.6, -0.7, 0.8, 0.9, 1.0, -1.1, 1.2}, float[3] b = {3.0, 2.0, 1.0}> {
    m = MatMul(x, w)
    a = Add(m, b)
    y = Relu(a)
    z = If (c) <
        then_branch = t () => (float[N,3] p) { p = Neg(a) },
        else_branch = e () => (float[N,3] q) { q = Exp(a) }
    >
}"""
FEEDS = {"x": np.linspace(-2, 2, 20, dtype=np.float32).reshape(5, 4), "c": np.array(True)}


def emulator() -> Emulator:
    return Emulator(ir.from_proto(onnx.parser.parse_model(MODEL)))


def test_it_computes_what_the_model_computes() -> None:
    session = ort.InferenceSession(onnx.parser.parse_model(MODEL).SerializeToString())
    for condition in (True, False):
        feeds = FEEDS | {"c": np.array(condition)}
        made = emulator().run(feeds)
        for name, want in zip(("y", "z"), session.run(None, feeds), strict=True):
            np.testing.assert_allclose(made[name].numpy(), want, rtol=1e-6)


def test_every_value_is_seen_once_and_in_order() -> None:
    seen: list[str] = []
    emulator().run(FEEDS, observe=lambda name, tensor: seen.append(name))
    assert seen == ["x", "c", "m", "a", "y", "z"]


def test_a_coarse_node_reads_and_writes_rounded_numbers() -> None:
    half = rounded_to(torch.float16)
    made = emulator().run(FEEDS, rounding={"m": half})["y"]
    x = torch.from_numpy(FEEDS["x"]).half().float()
    w = torch.tensor([[0.1, -0.2, 0.3], [0.4, 0.5, 0.6], [-0.7, 0.8, 0.9], [1.0, -1.1, 1.2]]).half().float()
    assert torch.equal(made, torch.relu((x @ w).half().float() + torch.tensor([3.0, 2.0, 1.0])))


def test_a_run_that_begins_from_a_trace_is_the_same() -> None:
    made = emulator()
    half = rounded_to(torch.bfloat16)
    trace = made.trace(FEEDS)
    for chosen in ([], ["m"], ["y"], ["a", "z"], [node_key(op) for op in made.ops]):
        rounding = dict.fromkeys(chosen, half)
        whole, again = made.run(FEEDS, rounding=rounding), made.again(trace, rounding)
        assert all(torch.equal(whole[name], again[name]) for name in whole)
