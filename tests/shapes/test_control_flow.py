"""Control flow of odd forms against ONNX Runtime: run by our own kernels, the same bits in every run."""

from __future__ import annotations

import numpy as np
import pytest
from loop_models import TEXTS, control_feeds, control_model, first_runs
from moving_models import close, expected, own

import ridgeline
from ridgeline.frontend.loop_results import with_named_results

UNWANTED = "results that nobody wants"


@pytest.mark.parametrize("name", TEXTS)
def test_control_flow(name: str) -> None:
    engine = own(control_model(name), profiles={"T": "1..3..8"})
    first = first_runs(engine, name)
    for feeds, before in first:
        again = engine.run(feeds)
        assert all(np.array_equal(again[name], before[name]) for name in before)


def test_results_that_nobody_wants_do_not_end_the_process() -> None:
    """ONNX Runtime crashes on a loop with a result that has no name."""
    model, (feeds, *_) = control_model(UNWANTED), control_feeds(UNWANTED)
    engine = ridgeline.build(model, level=1, profiles={"T": "1..3..8"})
    assert engine.report.verified
    close(engine.run(feeds), expected(with_named_results(model), feeds))
    named = with_named_results(model)
    assert all(all(node.output) for node in named.graph.node)
    assert with_named_results(named) is named
