"""How far rounding carries a model: moved runs, and those that do not come to their end."""

from __future__ import annotations

import numpy as np
import onnx.parser

from ridgeline.frontend.from_onnx import load
from ridgeline.verify.reference import Reference

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
    assert len(reference._probes_for(is_half=False)) == 4
    # the scale is 1: half of these lie between two levels
    feeds = {"x": np.concatenate([np.arange(32) + 0.5, np.arange(31), [255]]).astype(np.float32)}
    limit = reference.tolerance(feeds, reference.run(feeds))["y"]
    assert 1.9 < limit.distance < 4.1
