"""PP-OCR's recogniser: the steps explain the run, and another profiler finds the same ones hot.

Both clocks count this process's own time on the processor, so that a busy machine does not show in them.
bench/profile_check.py does the same with MiniLM as well, on the wall clock, against the profilers of PyTorch
and ONNX Runtime.
"""

from __future__ import annotations

import time
from statistics import median

import pytest
from bench.cases import CASES
from bench.profile_check import by_python, hottest

import ridgeline
from ridgeline.base import timing
from ridgeline.errors import RidgelineError

MODEL, ROUNDS = "ppocr6_rec", 9


@pytest.mark.parametrize("without", [(), ("ort",)], ids=["all tactics", "without ort"])
def test_steps_add_up_and_the_hottest_are_hot(
    without: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[MODEL]
    try:
        path = case.path()
    except RidgelineError as error:
        pytest.skip(f"{MODEL} is not in .models/, and this machine is offline: {error.what}")
    engine = ridgeline.build(path, profiles=case.profiles, level=0, verify="off", threads=1, without=without)
    monkeypatch.setattr(timing, "perf_counter_ns", time.process_time_ns)
    trace = engine.profile(case.draw(), rounds=ROUNDS)
    # by round: the sum of medians leaves out pauses that the median of the whole run has
    rounds = zip(*(step.samples_us for step in trace.steps), strict=True)
    shares = [sum(steps) / whole for steps, whole in zip(rounds, trace.total_samples_us, strict=True)]
    assert abs(median(shares) - 1) <= 0.10, shares
    if not without:
        # level 0 gives the whole graph to a library: there is one step, and its nodes are listed
        assert [step.tactic for step in trace.steps] == ["ort"]
        nodes = trace.steps[0].inside
        assert len(nodes) > 50
        known_us = sum(node.us for node in nodes if node.sources)
        assert known_us > 0.8 * sum(node.us for node in nodes), "the rest are changes of layout of its own"
        return
    found = hottest(trace, by_python(engine, trace, case.draw(), ROUNDS), tie=0.7)
    assert found["agree"], found
