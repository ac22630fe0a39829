"""What a report says: rows that follow from plan, graph, trace and ceilings, and the forms of them."""

from __future__ import annotations

import csv
import hashlib
import io
import math
import re
import tomllib
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import pytest
from report_models import CEILINGS, trace_of, with_times

import ridgeline.analyze.html as html_package
from ridgeline.analyze.html import data as page_data
from ridgeline.analyze.limiter import find_limit
from ridgeline.analyze.report_data import EngineReport
from ridgeline.analyze.report_engine import report_engine
from ridgeline.analyze.report_graph import read_fused_graph
from ridgeline.analyze.report_text import report_csv, report_markdown
from ridgeline.errors import OptionError
from ridgeline.runtime.description import read_description

FOLDER = Path(html_package.__file__).parent
ROOT = Path(__file__).parents[2]


def test_steps_stand_under_the_roof(reports: dict[str, EngineReport]) -> None:
    """The bound is the one of the ceilings, whatever a step takes."""
    steps = [step for step in reports["resnet50"].steps if step.us and step.bytes]
    for step in steps:
        assert step.bound_us is not None
        assert step.bound_us == pytest.approx(CEILINGS.bound_us(step.bytes, step.flops, "float32"))
        assert step.roofline == pytest.approx(step.bound_us / (step.us or 1))
        moving_us = step.bytes / CEILINGS.memory_bytes_per_us
        assert step.bound_by == ("memory" if step.bound_us <= moving_us else "arithmetic")
    assert {step.bound_by for step in steps} == {"memory", "arithmetic"}
    least, taken = math.fsum(s.bound_us or 0 for s in steps), math.fsum(s.us or 0 for s in steps)
    assert reports["resnet50"].roofline == pytest.approx(least / taken, rel=1e-3)
    assert math.fsum(step.share or 0 for step in reports["resnet50"].steps) == pytest.approx(1)


def test_without_ceilings_nothing_is_claimed(engines: dict[str, Path]) -> None:
    described = read_description(engines["bert"])
    report = report_engine(described.plan, described.report)
    assert (report.roof, report.roofline, report.latency_us) == (None, None, None)
    assert report.latency_of == "not timed"
    assert {step.roofline for step in report.steps} == {None}
    assert {step.us for step in report.steps} == {None}


def test_what_was_predicted_is_not_judged(engines: dict[str, Path]) -> None:
    described = read_description(engines["bert"])
    guessed = tuple(replace(step, predicted_us=50.0) for step in described.plan.steps)
    report = report_engine(replace(described.plan, steps=guessed), described.report, ceilings=CEILINGS)
    assert report.times == "predicted"
    assert report.latency_us == 50.0 * len(guessed)
    assert {step.limiter for step in report.steps} == {""}
    assert all(step.bound_us is not None for step in report.steps)


def test_a_trace_gives_the_times(engines: dict[str, Path]) -> None:
    described = read_description(engines["bert"])
    trace = trace_of(with_times(described.plan))
    without_one = replace(trace, steps=trace.steps[1:], memory=replace(trace.memory, live_bytes=()))
    report = report_engine(described.plan, described.report, trace=without_one)
    assert report.times == "profiled"
    assert report.latency_us == trace.total_us
    assert report.steps[0].us == 0, "a step without a row only looks at memory"
    assert [step.us for step in report.steps[1:]] == [step.median_us for step in trace.steps[1:]]
    assert report.steps[3].start_us == trace.steps[3].start_us


def test_what_limits_a_step_is_what_its_profile_says(engines: dict[str, Path]) -> None:
    """Build times are judged as traces are; a trace brings hot spots with advice, the slowest first."""
    described = read_description(engines["bert"])
    plan = with_times(described.plan)
    trace = trace_of(plan)
    built = report_engine(plan, described.report, ceilings=CEILINGS)
    profiled = report_engine(plan, described.report, ceilings=CEILINGS, trace=trace)
    limits = [find_limit(step, CEILINGS) for step in trace.steps]
    for report in (built, profiled):
        assert [step.limiter for step in report.steps] == [limit.limiter for limit in limits]
        assert [step.roofline for step in report.steps] == pytest.approx([limit.roofline for limit in limits])
    assert len({step.limiter for step in built.steps}) > 1
    assert built.hot_spots == ()
    assert [spot.index for spot in profiled.hot_spots] == [step.index for step in trace.hottest(3)]
    assert all(spot.advice for spot in profiled.hot_spots)
    assert {step.limiter for step in report_engine(plan, described.report).steps} == {""}


def test_a_trace_of_another_engine_is_refused(engines: dict[str, Path]) -> None:
    ours, other = (read_description(engines[name]) for name in ("bert", "resnet50"))
    with pytest.raises(OptionError, match=r"(?s)trace is of another engine.*ridge profile ENGINE --save"):
        report_engine(ours.plan, ours.report, trace=trace_of(other.plan))


def test_the_graph_is_the_model_s(engines: dict[str, Path], reports: dict[str, EngineReport]) -> None:
    report = reports["resnet50"]
    graph = read_fused_graph(engines["resnet50"])
    assert graph.inputs == ("image",)
    assert graph.outputs == ("logits",)
    nodes = [node for region in report.regions for node in region.nodes]
    assert {f"layer{s}_{b}_{c}_conv" for s in (1, 2, 3, 4) for b in (0, 1, 2) for c in "abc"} <= set(nodes)
    first = next(region for region in report.regions if "stem_conv" in region.nodes)
    body = next(body for body in report.bodies if body.function == first.function)
    assert body.ops[0].op_type == "Conv"
    assert "strides=[2, 2]" in body.ops[0].attributes
    assert all(": float32" in weight for weight in first.weights)
    assert report.steps[first.step - 1].op_class == "convolution"
    assert {step.precision for step in report.steps} == {"float32"}


def test_every_step_is_a_row_of_the_csv(reports: dict[str, EngineReport]) -> None:
    report = reports["resnet50"]
    rows = list(csv.DictReader(io.StringIO(report_csv(report))))
    assert [int(row["index"]) for row in rows] == [step.index for step in report.steps]
    assert [float(row["us"]) for row in rows] == [step.us for step in report.steps]
    assert [row["tactic"] for row in rows] == [step.tactic for step in report.steps]


def test_the_markdown_has_the_slowest_first(reports: dict[str, EngineReport]) -> None:
    text = report_markdown(reports["bert"], made_by="tests")
    slowest = max(reports["bert"].steps, key=lambda step: step.us or 0.0)
    table = text[text.index("## Slowest steps") :].splitlines()
    assert table[4].startswith(f"| {slowest.index} | ")
    assert "| verified | yes, 2 checks against onnxruntime |" in text


def test_a_page_that_would_be_too_large_says_what_it_leaves_out(
    reports: dict[str, EngineReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = page_data.page_data(reports["resnet50"], title="t", made_by="m")
    monkeypatch.setattr(page_data, "MOST_BYTES", 1000)
    short = page_data.page_data(reports["resnet50"], title="t", made_by="m")
    assert len(short) < len(whole)
    assert "best losers of each step and no refusals" in short
    assert "best losers" not in whole


def test_vendored_libraries_are_those_that_are_listed() -> None:
    text = (FOLDER / "vendor" / "README.txt").read_text(encoding="utf-8")
    listed = re.findall(r"^\S+ +[\d.]+ +\S+ +dist/(\S+) +([0-9a-f]{64})$", text, re.MULTILINE)
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in FOLDER.glob("vendor/*.js")}
    assert dict(listed) == found
    for name in found:
        assert (FOLDER / "vendor" / f"{name.split('.')[0]}.LICENSE").is_file()


def test_every_file_of_the_page_is_in_the_package() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["ridgeline"]
    files = [file for file in FOLDER.rglob("*") if file.is_file() and file.suffix not in (".py", ".pyc")]
    names = [str(file.relative_to(FOLDER.parents[1])) for file in files]
    assert len(names) > 15
    assert [name for name in names if not any(fnmatch(name, pattern) for pattern in patterns)] == []
