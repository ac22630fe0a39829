"""A trace is saved and read back whole, and whatever else a file holds is refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hand_made_traces import step, trace

from ridgeline.analyze.trace import read_trace, save_trace
from ridgeline.errors import OptionError
from ridgeline.plan.trace import CUPTI, KernelTime, NodeTime, Trace


def test_a_saved_trace_reads_back_as_it_was(tmp_path: Path) -> None:
    rich = trace(
        step(1, "stem", 10.0, gap_us=1.0, overlap_us=0.0, kernels=(KernelTime("conv", 0.0, 10.0),)),
        step(2, "span", 20.0, gap_us=0.0, overlap_us=2.0, inside=(NodeTime("n", "Conv", 3.0, ("/c",)),)),
        how=CUPTI,
    )
    file = save_trace(rich, tmp_path / "profile.json")
    assert read_trace(file) == rich


def test_the_sum_counts_gaps_in_and_overlap_once() -> None:
    made = trace(
        step(1, "a", 10.0, gap_us=1.0, overlap_us=0.0), step(2, "b", 20.0, gap_us=0.5, overlap_us=2.0)
    )
    assert (made.steps_us, made.gaps_us, made.overlap_us) == (30.0, 1.5, 2.0)
    assert made.covered_us == 29.5
    assert made.coverage == pytest.approx(29.5 / made.total_us)
    # one step without time-stamps: no sum of gaps is made up
    assert trace(step(1, "a", 10.0, gap_us=1.0), step(2, "b", 20.0)).gaps_us is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (lambda text: text[: len(text) // 2], "no whole JSON text"),
        (lambda _: "", "no whole JSON text"),
        (lambda _: "[1, 2]", "a JSON list"),
        (lambda _: '{"traceEvents": []}', "a file for Perfetto"),
        (lambda _: '{"schema": "ridgeline/bench/1"}', "ridgeline/bench/1"),
        (lambda text: text.replace("ridgeline/trace/1", "ridgeline/trace/2"), "ridgeline/trace/2"),
        (lambda text: text.replace('"threads": 2,\n "timer_us"', '"threads": "two",\n "timer_us"'), "two"),
        (lambda text: _changed(text, lambda raw: raw.pop("rounds")), "rounds"),
        (lambda text: _changed(text, lambda raw: raw.update(more=1)), "more"),
        (lambda text: _changed(text, lambda raw: raw.update(total_us="fast")), "total_us"),
        (lambda text: _changed(text, lambda raw: raw["steps"][1].update(op_class="magic")), "op_class"),
    ],
)
def test_another_file_is_no_trace(tmp_path: Path, content: Callable[[str], str], said: str) -> None:
    file = tmp_path / "profile.json"
    file.write_text(content(trace().to_json()))
    with pytest.raises(OptionError, match="is not a trace") as caught:
        read_trace(file)
    assert said in str(caught.value)
    assert "ridge profile" in str(caught.value)


def _changed(text: str, change: Callable[[dict[str, Any]], object]) -> str:
    raw = json.loads(text)
    change(raw)
    return json.dumps(raw)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (trace(step(2, "a", 1.0), step(1, "b", 1.0)), "numbered"),
        (trace(step(0, "a", 1.0)), "numbered"),
        (trace(rounds=4), "samples"),
        (trace(step(1, "a", 1.0, samples_us=(1.0,))), "1 samples"),
        (trace(step(1, "a", 1.0, p10_us=2.0)), "between p10 and p90"),
        (trace(total_us=float("nan")), "total_us is nan"),
        (trace(step(1, "a", 1.0, gap_us=-1.0)), "gap_us is -1.0"),
        (trace(memory=replace(trace().memory, live_bytes=())), "memory of 0 steps"),
        (trace(step(1, "a", 1.0, samples_us=(0.0, 0.0, 0.0))), "its samples have 0.0"),
        (trace(total_samples_us=(9.0, 9.0, 9.0)), "its samples have 9.0"),
    ],
)
def test_a_trace_that_contradicts_itself_is_refused(made: Trace, said: str) -> None:
    with pytest.raises(OptionError, match="contradicts itself") as caught:
        Trace.from_json(made.to_json(), name="the file")
    assert said in str(caught.value)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be read"):
        read_trace(tmp_path / "none.json")
