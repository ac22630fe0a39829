"""What notebooks show: small tables in HTML with names as text, DataFrames, and an example that runs."""

from __future__ import annotations

import json
import re
import runpy
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from report_models import trace_of, with_times
from test_hostile_names import HOSTILE, LONG

from ridgeline.analyze.compare import Comparison, OutputRow
from ridgeline.analyze.report_data import EngineReport
from ridgeline.base.notebook import MOST_ROWS, Notebook, Table, View
from ridgeline.builder import build
from ridgeline.errors import UnsupportedError
from ridgeline.plan.report import Check, Report
from ridgeline.plan.view import engine_view
from ridgeline.runtime.description import read_description
from ridgeline.verify.metrics import measure

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "07_notebook" / "engine.ipynb"
ALLOWED = {"div", "b", "table", "tr", "th", "td"}


class Tags(HTMLParser):
    """The tags of a fragment, and its text by cells."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@dataclass(frozen=True)
class Rows(Notebook):
    rows: tuple[Mapping[str, Any], ...]

    def _view(self) -> View:
        return View("rows", (Table("", self.rows),))


def test_figures_have_units() -> None:
    row = {"step": "a", "median_us": 1234.5, "arena_bytes": 2048, "share": 0.25, "flops": 3_000_000}
    shown = Tags(Rows((row,))._repr_html_()).texts
    assert shown[1:6] == ["step", "median", "arena", "share", "flops"]
    assert shown[6:] == ["a", "1.23 ms", "2.00 KiB", "25 %", "3.00 MFLOP"]
    rows = (
        {"median_us": None, "error": float("nan"), "note": ""},
        {"median_us": 1.0, "error": 2.0, "note": ""},
    )
    empty = Tags(Rows(rows)._repr_html_()).texts
    assert empty[1:] == ["median", "error", "–", "–", "1.00 µs", "2"], "no column without values"


def test_names_are_text() -> None:
    html = Rows(tuple({"name": name, "us": 1.0} for name in HOSTILE))._repr_html_()
    shown = Tags(html)
    assert shown.tags <= ALLOWED
    assert shown.attributes == {"style"}
    assert not set(html) & set("\x1b\u202e\u2028")
    assert HOSTILE[0] in shown.texts
    assert len(html) < 30 * len(HOSTILE) * 20 < len(LONG)


def test_many_rows_are_cut_and_counted() -> None:
    shown = Tags(Rows(tuple({"i": i} for i in range(2000)))._repr_html_())
    assert shown.texts[-1] == f"and {2000 - MOST_ROWS:,} more rows: to_pandas() has them all"
    assert len(shown.texts) == MOST_ROWS + 3


def test_engines_traces_and_reports_show_their_rows(
    engines: dict[str, Path], reports: dict[str, EngineReport]
) -> None:
    described = read_description(engines["bert"])
    plan = with_times(described.plan)
    trace = trace_of(plan)
    for view, count in (
        (engine_view(plan, described.report), len(plan.steps)),
        (trace._view(), len(plan.steps)),
        (reports["bert"]._view(), len(plan.steps)),
    ):
        rows = view.tables[0].rows
        assert len(rows) == count
        assert [row["step"] for row in rows] == [step.name for step in plan.steps]
        assert sum(row["share"] for row in rows) == pytest.approx(1)
        assert view.headline.startswith("bert: ")


def test_a_build_report_and_a_comparison_say_whether_they_passed() -> None:
    check = Check("planned shapes", "y", "x 1x3", 2e-6, 1e-5, passed=True)
    report = Report(
        checks=(check, replace(check, passed=False)), stage_seconds={"load": 0.5}, reference="torch"
    )
    shown = Tags(report._repr_html_()).texts
    assert shown[0] == "not verified against torch, 2 checks"
    assert [text for text in shown if text in ("yes", "no")] == ["yes", "no"]
    assert "500 ms" in shown
    metrics = measure(np.array([1.0, 2.0]), np.array([1.0, 2.5]))
    row = OutputRow("y", "float32", (2,), "sample 1", passed=False, metrics=metrics, values=2)
    comparison = Comparison(
        "a.ridge", "b.onnx", "engine", "onnxruntime", "relative L2", ("sample 1",), (row,)
    )
    assert Tags(comparison._repr_html_()).texts[0] == "a.ridge and b.onnx: different (relative L2)"


def test_an_engine_shows_itself(tiny_model: Path) -> None:
    engine = build(tiny_model, level=0, verify="off", progress=False, without="ort")
    shown = Tags(engine._repr_html_())
    assert shown.tags <= ALLOWED
    assert {step.name for step in engine.plan.steps} <= set(shown.texts)
    assert "not verified" in shown.texts[0]


def test_to_pandas_needs_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows(({"i": 1, "us": 2.5}, {"i": 2, "us": None}))
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UnsupportedError, match="pip install pandas"):
        rows.to_pandas()
    given = ModuleType("pandas")
    vars(given)["DataFrame"] = lambda rows: ("frame", rows)
    monkeypatch.setitem(sys.modules, "pandas", given)
    assert rows.to_pandas() == ("frame", [{"i": 1, "us": 2.5}, {"i": 2, "us": None}])


def test_frames_have_the_types_of_their_columns(engines: dict[str, Path]) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    frame = trace_of(with_times(read_description(engines["bert"]).plan)).to_pandas()
    assert frame["median_us"].dtype == float
    assert frame["flops"].dtype == int
    assert list(frame["index"]) == list(range(1, len(frame) + 1))


def form(output: Mapping[str, Any]) -> tuple[Any, ...]:
    """What is shown, without figures and tactics: a second run may have others."""
    kinds = output.get("data", {})
    heads = re.findall(r"<th[^>]*>(.*?)</th>", "".join(kinds.get("text/html", "")))
    return output["output_type"], sorted(kinds), heads


def test_the_example_runs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = json.loads(EXAMPLE.read_text(encoding="utf-8"))
    monkeypatch.chdir(tmp_path)
    done = runpy.run_path(str(ROOT / "docs" / "make_notebook.py"))["run_cells"](stored)
    assert (tmp_path / "classifier.html").is_file()
    pairs = [(a, b) for a, b in zip(stored["cells"], done["cells"], strict=True) if a["cell_type"] == "code"]
    assert len(pairs) >= 6
    for old, new in pairs:
        assert old["execution_count"] == new["execution_count"]
        assert list(map(form, old["outputs"])) == list(map(form, new["outputs"])), (
            "the stored outputs are of another version: python docs/make_notebook.py"
        )
    shown = [o for cell in stored["cells"] for o in cell.get("outputs", ())]
    assert sum("text/html" in each.get("data", {}) for each in shown) == 3
    assert not any(each["output_type"] == "error" for each in shown)
