"""The timeline is what the Trace Event format asks for: slices nest, tracks have names, arrows two ends."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hand_made_traces import step, trace

from ridgeline.analyze.trace_file import save_timeline
from ridgeline.plan.trace import CUPTI, HostTime, KernelTime, NodeTime, Trace


def gpu_trace() -> Trace:
    """Two kernels in the first step; the second step starts before that has ended; three overlap."""
    first = step(
        1, "a", 9.0, start_us=1.0, gap_us=1.0, overlap_us=0.0,
        kernels=(KernelTime("k1", 1.0, 5.0, 96), KernelTime("k2", 6.0, 4.0, 1)),
    )  # fmt: skip
    second = step(
        2, "b", 5.0, start_us=8.0, gap_us=0.0, overlap_us=2.0, kernels=(KernelTime("k3", 8.0, 5.0),)
    )
    third = step(4, "c", 5.0, start_us=9.0, gap_us=0.0, overlap_us=4.0, kernels=(KernelTime("k4", 9.0, 5.0),))
    return trace(first, second, third, how=CUPTI, host=HostTime(3.0, 30.0, 16.0), total_us=14.1)


def cpu_trace() -> Trace:
    nodes = (NodeTime("n1", "Conv", 40.0, ("/b/Conv",)), NodeTime("n2", "Relu", 20.0))
    many = tuple(f"/b/n{i}" for i in range(12))
    return trace(
        step(1, "a", 100.0), step(3, "b", 50.0, start_us=100.1, inside=nodes, sources=many, tactic="ort")
    )


def test_steps_of_a_processor_follow_one_another(tmp_path: Path) -> None:
    """Each median is right, and yet one step ends after the next has started."""
    steps = (step(1, "a", 100.0), step(2, "b", 50.0, start_us=99.0), step(3, "c", 10.0, start_us=149.5))
    file = save_timeline(trace(*steps), tmp_path / "trace.json")
    events = json.loads(file.read_text())["traceEvents"]
    assert not any("early" in str(event["args"].get("name")) for event in events if event["ph"] == "M")
    placed = [(e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["pid"] == 2]
    assert placed == [(0.0, 100.0), (100.0, 50.0), (150.0, 10.0)]


@pytest.fixture(params=[gpu_trace, cpu_trace])
def events(request: pytest.FixtureRequest, tmp_path: Path) -> list[dict[str, Any]]:
    file = save_timeline(request.param(), tmp_path / "trace.json")
    written = json.loads(file.read_text())
    assert set(written) == {"traceEvents", "displayTimeUnit", "otherData"}
    made: list[dict[str, Any]] = written["traceEvents"]
    return made


def test_every_event_has_the_fields_of_its_phase(events: list[dict[str, Any]]) -> None:
    wanted = {
        "M": {"name", "args"}, "X": {"name", "ts", "dur", "cat"}, "C": {"name", "ts", "args"},
        "s": {"id", "ts", "cat", "name"}, "f": {"id", "ts", "cat", "name", "bp"},
    }  # fmt: skip
    for event in events:
        assert {"ph", "pid", "tid"} | wanted[event["ph"]] <= set(event), event
        assert all(event.get(key, 0) >= 0 for key in ("ts", "dur"))


def test_every_track_has_a_name(events: list[dict[str, Any]]) -> None:
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert set(processes.values()) == {"host", "device", "ONNX nodes"}
    used = {(e["pid"], e["tid"]) for e in events if e["ph"] != "M"}
    assert used == set(named)
    assert {"run", "steps", "nodes"} <= set(named.values())
    assert len(set(named.items())) == len(named)


def test_slices_of_a_track_nest_or_follow_each_other(events: list[dict[str, Any]]) -> None:
    tracks = defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            tracks[e["pid"], e["tid"]].append((e["ts"], -e["dur"], round(e["ts"] + e["dur"], 3), e["name"]))
    assert tracks
    for slices in tracks.values():
        open_until: list[float] = []
        for start, _, end, name in sorted(slices):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1], f"{name} crosses the end of the slice around it"
            open_until.append(end)


def test_each_arrow_leads_from_a_node_to_what_computes_it(events: list[dict[str, Any]]) -> None:
    def around(e: dict[str, Any]) -> list[dict[str, Any]]:
        """Slices of the event's track that hold its time."""
        return [
            s for s in events
            if s["ph"] == "X" and (s["pid"], s["tid"]) == (e["pid"], e["tid"])
            and s["ts"] <= e["ts"] <= s["ts"] + s["dur"]
        ]  # fmt: skip

    starts, ends = ({e["id"]: e for e in events if e["ph"] == phase} for phase in "sf")
    assert starts
    assert starts.keys() == ends.keys()
    assert len(starts) == len([e for e in events if e["ph"] == "s"]), "an id is used twice"
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    for key, start in starts.items():
        end = ends[key]
        assert (processes[start["pid"]], processes[end["pid"]]) == ("ONNX nodes", "device")
        assert start["ts"] <= end["ts"]
        steps = {s["args"]["step"] for s in around(start)} & {s["args"]["step"] for s in around(end)}
        assert steps, f"arrow {key} joins slices of different steps"


def test_memory_is_a_counter_that_ends_at_zero(events: list[dict[str, Any]]) -> None:
    counted = [(e["ts"], e["args"]["bytes"]) for e in events if e["ph"] == "C"]
    assert counted == sorted(counted)
    assert max(live for _, live in counted) > 0
    assert counted[-1][1] == 0


def test_kernels_and_nodes_inside_libraries_are_on_it(tmp_path: Path) -> None:
    def names(made: Trace) -> set[str]:
        written = json.loads(save_timeline(made, tmp_path / "trace.json").read_text())
        return {e["name"] for e in written["traceEvents"] if e["ph"] == "X"}

    assert {"k1", "k2", "k3", "k4", "queue the run", "/a/Gemm", "/a/Relu"} <= names(gpu_trace())
    assert {"Conv n1", "Relu n2", "run", "/b/n0 … /b/n11 (12 nodes)"} <= names(cpu_trace())
