"""Nodes of a session from the file of ONNX Runtime's own profiler."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ridgeline.runtime.profiling import sources_of
from ridgeline.tactics.cpu.ort_profile import read_profile


def run(ts: int, dur: int) -> dict[str, Any]:
    return {"cat": "Session", "name": "model_run", "ts": ts, "dur": dur, "tid": 1}


def node(name: str, op: str, ts: int, dur: int, tid: int = 1) -> dict[str, Any]:
    args = {"op_name": op, "node_index": "0"}
    return {"cat": "Node", "name": f"{name}_kernel_time", "ts": ts, "dur": dur, "tid": tid, "args": args}


EVENTS = [
    {"cat": "Session", "name": "model_loading_array", "ts": 0, "dur": 5, "tid": 1},
    run(10, 900), node("c", "Conv", 20, 800),  # the first run warms up
    run(1000, 100), node("c", "Conv", 1010, 40), node("r", "Relu", 1060, 3),
    run(2000, 100), node("c", "Conv", 2010, 42), node("r", "Relu", 2060, 4),
]  # fmt: skip


def test_times_are_means_over_the_runs_after_the_first() -> None:
    found = {(each.name, each.op_type): each.us for each in read_profile(json.dumps(EVENTS), runs=3)}
    assert found == {("c", "Conv"): 41.0, ("r", "Relu"): 3.5}


def test_a_run_that_was_interrupted_is_left_out() -> None:
    times = (3, 4, 900, 4, 3)
    runs = [(run(1000 * i, 950), node("c", "Conv", 1000 * i + 1, us)) for i, us in enumerate(times, 1)]
    events = [run(0, 10), *(event for pair in runs for event in pair)]
    (found,) = read_profile(json.dumps(events), runs=6)
    assert found.us == pytest.approx(11 / 3)


def test_nodes_of_subgraphs_are_in_the_time_of_the_node_around_them() -> None:
    inside = [node("body", "Add", 3010, 10), node("body", "Add", 3030, 10), node("l", "Loop", 3000, 50)]
    events = [*EVENTS, run(2999, 100), *inside, node("after", "Mul", 3050, 4)]
    found = {each.name: each.us for each in read_profile(json.dumps(events), runs=4)}
    assert found["l"] == pytest.approx(50 / 3)
    assert "body" not in found
    assert "after" in found


def test_a_profile_of_other_runs_is_refused() -> None:
    with pytest.raises(ValueError, match="3 runs, want 5"):
        read_profile(json.dumps(EVENTS), runs=5)
    with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
        read_profile(json.dumps(EVENTS)[:-20], runs=3)


def test_a_fused_node_is_called_after_a_value_that_it_makes() -> None:
    values = {"a": ("/a",), "a/v2": ("/a/MatMul",), "b": ("/b",)}
    assert sources_of("a/v2", values) == ("/a/MatMul",)
    assert sources_of("a/v2/MatMulAddFusion", values) == ("/a/MatMul",)
    assert sources_of("nothing", {"x": ("/x",)}) == ()
