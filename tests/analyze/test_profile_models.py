"""PP-OCR's recogniser and MiniLM: the steps explain the run, and another profiler finds the same ones hot.

Both clocks count this process's own time on the processor, so that a busy machine does not show in them.
bench/profile_check.py does the same on the wall clock, against the profilers of PyTorch and ONNX Runtime.
"""

from __future__ import annotations

import cProfile
import pstats
import time
from collections.abc import Callable

import pytest
import torch
from bench.cases import CASES
from bench.profile_check import hottest

import ridgeline
from ridgeline.base import timing
from ridgeline.errors import RidgelineError
from ridgeline.plan.trace import Trace

ROUNDS = 5


@pytest.mark.parametrize("model", ["ppocr6_rec", "minilm_18"])
@pytest.mark.parametrize("without", [(), ("ort",)], ids=["all tactics", "without ort"])
def test_steps_add_up_and_the_hottest_are_hot(
    model: str, without: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[model]
    try:
        path = case.path()
    except RidgelineError as error:
        pytest.skip(f"{model} is not in .models/, and this machine is offline: {error.what}")
    engine = ridgeline.build(path, profiles=case.profiles, level=0, verify="off", threads=1, without=without)
    monkeypatch.setattr(timing, "perf_counter_ns", time.process_time_ns)
    trace = engine.profile(case.draw(), rounds=ROUNDS)
    assert abs(trace.coverage - 1) <= 0.10, (trace.steps_us, trace.total_us)
    if not without:
        # level 0 gives the whole graph to a library: there is one step, and its nodes are listed
        assert [step.tactic for step in trace.steps] == ["ort"]
        nodes = trace.steps[0].inside
        assert len(nodes) > 50
        known_us = sum(node.us for node in nodes if node.sources)
        assert known_us > 0.8 * sum(node.us for node in nodes), "the rest are changes of layout of its own"
        return
    found = hottest(trace, _by_python(engine, trace, case.draw()), tie=0.7)
    assert found["agree"], found


def _by_python(engine: ridgeline.Engine, trace: Trace, feeds: dict[str, object]) -> dict[str, float]:
    """The time of each step by Python's own profiler, to which every step is a function of its own."""
    instance = engine.context(wait=True).instance(feeds)
    profiler = cProfile.Profile(time.process_time)
    with torch.inference_mode():
        pairs = zip(instance.call_steps, instance.calls, strict=True)
        steps = [_named(f"step_{index + 1}", call) for index, call in pairs]
        profiler.enable()
        for _ in range(ROUNDS):
            for step in steps:
                step()
        profiler.disable()
    taken = {key[2]: stats[3] for key, stats in pstats.Stats(profiler).stats.items()}  # type: ignore[attr-defined]
    return {f"{s.index} {s.name}": taken[f"step_{s.index}"] / ROUNDS * 1e6 for s in trace.steps}


def _named(name: str, call: Callable[[], object]) -> Callable[[], object]:
    def step() -> object:
        return call()

    step.__code__ = step.__code__.replace(co_name=name, co_qualname=name)
    return step
