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
