"""How far rounding carries a model: moved runs, and those that do not come to their end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import ridgeline
from ridgeline.frontend.from_onnx import load
from ridgeline.verify.divergence import Expected
from ridgeline.verify.reference import PROBES, Reference
from ridgeline.verify.rounding import FEW_DRAWS, Probe, run_probe

PICKS = """<ir_version: 10, opset_import: ["": 21]> g (float[1] x) => (float[1] y)
    <float[3] table = {1.0, 2.0, 4.0}> { i = Cast<to = 7>(x) p = Gather(table, i) y = Mul(p, x) }"""


def test_a_moved_run_that_the_library_refuses_measures_nothing() -> None:
    """Just below 3, about every other draw moves the index past the table."""
    reference = Reference(load(onnx.parser.parse_model(PICKS)), threads=1)
    feeds = {"x": np.nextafter(np.array([3], np.float32), np.float32(0))}
    limit = reference.tolerance(feeds, reference.run(feeds))["y"]
    assert 0 < limit.distance < 1e-4
    assert limit.note == ""


LEVELS = """<ir_version: 10, opset_import: ["": 21]> g (float[64] x) => (float[64] y)
    <float[64] w = {WEIGHT}> {
    a = Mul(x, w) q, s, z = DynamicQuantizeLinear(a) y = DequantizeLinear(q, s, z) }"""


def test_levels_are_drawn_with_several_sets_of_moved_weights() -> None:
    """A number halfway between two levels may become either: the tolerance is a whole level then."""
    text = LEVELS.replace("WEIGHT", ", ".join(["1.0"] * 64))
    reference = Reference(load(onnx.parser.parse_model(text)), threads=1)
    assert len(reference.probes_for(is_half=False, is_rounded=False)) == 4
    # the scale is 1: half of these lie between two levels
    feeds = {"x": np.concatenate([np.arange(32) + 0.5, np.arange(31), [255]]).astype(np.float32)}
    limit = reference.tolerance(feeds, reference.run(feeds))["y"]
    assert 1.9 < limit.distance < 4.1


def test_weights_are_moved_where_only_the_onnx_evaluator_runs_the_model(tmp_path: Path) -> None:
    """ONNX Runtime has no float4; the inputs are integers, which nothing moves."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]> g (int64[N,8] ids) => (float[N,8,64] y) {
            e = Gather(table, ids) n = LayerNormalization(e, gain) y = MatMul(n, w) }"""
    )
    for name, shape in {"table": (50, 64), "gain": (64,), "w": (64, 64)}.items():
        array = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    ridgeline.quantize(model, format="nvfp4").save(tmp_path / "q.onnx")
    reference = Reference(load(tmp_path / "q.onnx"), threads=1)
    feeds = {"ids": rng.integers(0, 50, (3, 8))}
    want = reference.run(feeds)
    assert "reference evaluator" in reference.who
    limit = reference.tolerance(feeds, want)["y"].distance
    scale = float(np.abs(want["y"]).max())
    assert 4 * 2**-23 * scale < limit < 1e-4 * scale


FEW = """<ir_version: 10, opset_import: ["": 21]> g (float[1,64] x) => (float[1,4] y) { y = MatMul(x, w) }"""


@pytest.fixture
def few() -> onnx.ModelProto:
    model = onnx.parser.parse_model(FEW)
    weight = np.random.default_rng(1).standard_normal((64, 4)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return model


def test_draws_go_on_as_long_as_a_check_fails(few: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    """More draws only widen a tolerance: they decide nothing but what has failed so far."""
    drawn: list[int] = []

    def counted(probes: Sequence[Probe], feeds: Mapping[str, Any], seed: int) -> dict[str, Any] | None:
        drawn.append(seed)
        return run_probe(probes, feeds, seed)

    monkeypatch.setattr("ridgeline.verify.draws.run_probe", counted)
    reference = Reference(load(few), threads=1)
    feeds = {"x": np.random.default_rng(2).standard_normal((1, 64)).astype(np.float32)}
    want = reference.run(feeds)
    expected = Expected.of(reference, feeds, want)
    (row,) = expected.check("right", want)
    assert row.passed
    assert drawn == [0]
    (widest,) = reference.tolerance(feeds, want).values()
    every = list(range(PROBES * FEW_DRAWS))
    assert drawn == [0, *every]
    assert row.tolerance < widest.distance
    drawn.clear()
    (row,) = expected.check("as far as all draws allow", {"y": want["y"] + 0.95 * widest.distance})
    assert row.passed
    assert drawn == every[1 : len(drawn) + 1], "each of them once"
    (row,) = expected.check("farther", {"y": want["y"] + 2 * widest.distance})
    assert (row.passed, row.tolerance) == (False, widest.distance)
    assert drawn == every[1:]
    assert not expected.check("farther again", {"y": want["y"] + 2 * widest.distance})[0].passed
    assert drawn == every[1:]
