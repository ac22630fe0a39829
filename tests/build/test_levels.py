"""Models that round to levels: one that flips at a tie is no error, anything else that is wrong is one."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import ridgeline
from ridgeline.frontend.from_onnx import load
from ridgeline.verify.compare import compare
from ridgeline.verify.metrics import rms_of
from ridgeline.verify.reference import Reference
from ridgeline.verify.rounding import longest_sum

# scales are single numbers and there is no bias: no weight of this model could be moved by rounding
CHAIN = """<ir_version: 10, opset_import: ["": 21]> g (float[256,512] x) => (float[256,8] y) {
    q = QuantizeLinear(x, sx, z) d = DequantizeLinear(q, sx, z)
    wa = DequantizeLinear(w1, sw) h = MatMul(d, wa) a = Relu(h)
    qa = QuantizeLinear(a, sa, z) da = DequantizeLinear(qa, sa, za)
    wb = DequantizeLinear(w2, sw) h2 = MatMul(da, wb) qb = QuantizeLinear(h2, sb, z)
    db = DequantizeLinear(qb, sb, z) wc = DequantizeLinear(w3, sw) y = MatMul(db, wc) }"""


def chain(seed: int, **changed: np.ndarray) -> onnx.ModelProto:
    rng = np.random.default_rng(seed)
    drawn = {n: rng.integers(-127, 128, s).astype(np.int8)
             for n, s in {"w1": (512, 512), "w2": (512, 512), "w3": (512, 8)}.items()}  # fmt: skip
    scales = {"sx": 4 / 127 + seed * 1e-4, "sw": 0.001017, "sa": 6 / 127.3, "sb": 5 / 126.7}
    zeros = {"z": np.int8(0), "za": np.int8(0)}
    model = onnx.parser.parse_model(CHAIN)
    arrays = drawn | {n: np.float32(v) for n, v in scales.items()} | zeros | changed
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items())
    return model


@pytest.mark.parametrize("seed", [1, 3, 9])
def test_a_right_engine_passes_whose_sums_round_otherwise(seed: int) -> None:
    """Of these, integer sums flip a few levels that float sums do not."""
    engine = ridgeline.build(chain(seed), level=0, without=["ort"])
    assert any(step.tactic == "cpp.levels" for step in engine.plan.steps)
    assert all(check.passed for check in engine.report.checks)


def first_weights(change: str) -> dict[str, np.ndarray]:
    w1 = numpy_helper.to_array(chain(0).graph.initializer[0]).copy()
    if change == "last term":
        w1[-1] = 0
    if change == "columns":
        w1[:, [0, 1]] = w1[:, [1, 0]]
    return {"w1": w1}


@pytest.mark.parametrize(
    "changed",
    [
        {"sa": np.float32(6 / 127.3 * 1.01)},  # of both, so that only the rounding differs
        {"za": np.int8(1)},
        {"sw": np.float32(0.001017 * 1.01)},
        first_weights("last term"),
        first_weights("columns"),
    ],
    ids=["scale", "zero point", "weight scale", "last term", "columns"],
)
def test_what_is_wrong_is_far_outside(changed: dict[str, np.ndarray]) -> None:
    reference = Reference(load(chain(0)), threads=1)
    feeds = {"x": np.random.default_rng(4).standard_normal((256, 512)).astype(np.float32)}
    want = reference.run(feeds)
    limits = reference.tolerance(feeds, want)
    wrong = Reference(load(chain(0, **changed)), threads=1).run(feeds)
    (row,) = compare("wrong", wrong, want, limits, "")
    assert not row.passed
    assert rms_of(wrong["y"], want["y"]) > 1.5 * limits["y"].rms
    assert limits["y"].distance > 1e-3  # some level does lie near a tie


ONE = """<ir_version: 8, opset_import: ["": 13]> g (float[64] x) => (float[64] y)
    <float s = {0.5}, int8 z = {3}> { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"""


@pytest.mark.parametrize(
    ("offset", "least", "most"),
    [(0.25, 0.0, 1e-4), (0.5, 0.99, 1.01), (np.inf, 0.0, 1e-4), (np.nan, 0.0, 1e-4)],
)
def test_the_tolerance_is_a_step_only_where_a_value_lies_near_a_tie(
    offset: float, least: float, most: float
) -> None:
    """In levels of 0.5: the other values are at a quarter between two, infinite or NaN."""
    levels = np.arange(64) - 32 + 0.25
    levels[7] = 5 + offset
    reference = Reference(load(onnx.parser.parse_model(ONE)), threads=1)
    feeds = {"x": (levels * 0.5).astype(np.float32)}
    limit = reference.tolerance(feeds, reference.run(feeds))["y"]
    assert least <= limit.distance <= most


def test_sums_are_counted_behind_quantised_weights() -> None:
    assert longest_sum(chain(0)) == 512


BIASED = """<ir_version: 10, opset_import: ["": 21]> g (float[N,16,6,6] x) => (float[N,16,6,6] y)
    <float sx = {0.03}, float sw = {0.2}, int8 z = {0}> {
    q = QuantizeLinear(x, sx, z) d = DequantizeLinear(q, sx, z) wd = DequantizeLinear(w, sw, z)
    y = Conv<pads = [1, 1, 1, 1]>(d, wd, b) }"""


def test_onnx_runtime_adds_the_bias_as_it_is() -> None:
    """Its optimiser would round a float bias to steps of sx · sw, 0.006 here."""
    model = onnx.parser.parse_model(BIASED)
    rng = np.random.default_rng(0)
    for name, array in {
        "w": rng.integers(-3, 4, (16, 16, 3, 3)).astype(np.int8),
        "b": np.linspace(-0.003, 0.003, 16).astype(np.float32),
    }.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    engine = ridgeline.build(model, level=0, without=["cpp", "onednn"])
    assert {step.tactic for step in engine.plan.steps} == {"ort"}
