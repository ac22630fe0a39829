"""Names of a stranger's model are text in every form of a report: no element, no markup, no formula."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from report_models import checked, with_times

from browser import Page
from ridgeline.analyze.html.page import report_page
from ridgeline.analyze.report_data import EngineReport
from ridgeline.analyze.report_engine import report_engine
from ridgeline.analyze.report_graph import FusedGraph, read_fused_graph
from ridgeline.analyze.report_text import report_csv, report_markdown
from ridgeline.base.choices import Refusal
from ridgeline.plan.plan import Plan
from ridgeline.runtime.description import read_description

LONG = "n" * 10_000
HOSTILE = (
    "</script><script>window.broken = true</script>",
    "<img src=x onerror='window.broken = true'>",
    "--><!-- <script>window.broken = true</script>",
    "\"'`${window.broken = true}\\",
    "\x1b[31mred\x1b[0m",
    "abc\u202etxt.exe\u2066",
    "line\u2028separator\u2029",
    "__proto__",
    "constructor",
    "{{SCRIPTS}}",
    '=HYPERLINK("x")',
    "| a | b |\n# heading\n[x](y)",
    LONG,
)


def renamed(plan: Plan, graph: FusedGraph) -> tuple[Plan, FusedGraph]:
    """Every name of a plan and its graph replaced by a hostile one, followed by a number."""
    given: dict[str, str] = {}

    def bad(name: str) -> str:
        return given.setdefault(
            name, f"{HOSTILE[len(given) % len(HOSTILE)]}{len(given) // len(HOSTILE) or ''}"
        )

    def all_bad(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(bad, names))

    steps = tuple(
        replace(
            s, name=bad(s.name), regions=all_bad(s.regions), sources=all_bad(s.sources),
            inputs=all_bad(s.inputs), outputs=all_bad(s.outputs), why=HOSTILE[0], notes=HOSTILE,
        )
        for s in plan.steps
    )  # fmt: skip
    notes = tuple(replace(n, name=bad(n.name), sources=all_bad(n.sources)) for n in plan.regions)
    refusals = tuple(Refusal(text, text, text, 1) for text in HOSTILE)
    regions = tuple(
        replace(
            r, name=bad(r.name), function=bad(r.function), inputs=all_bad(r.inputs),
            outputs=all_bad(r.outputs), weights=(), sources=all_bad(r.sources),
        )
        for r in graph.regions
    )  # fmt: skip
    bodies = tuple(replace(body, function=bad(body.function)) for body in graph.bodies)
    return (
        replace(plan, model=HOSTILE[0], steps=steps, regions=notes, refusals=refusals, why=HOSTILE[1]),
        replace(graph, inputs=all_bad(graph.inputs), regions=regions, bodies=bodies),
    )


@pytest.fixture(scope="module")
def hostile(engines: dict[str, Path]) -> EngineReport:
    described = read_description(engines["resnet50"])
    plan, graph = renamed(with_times(described.plan), read_fused_graph(engines["resnet50"]))
    return report_engine(plan, checked(described.report), graph=graph)


def test_no_name_leaves_the_data(hostile: EngineReport) -> None:
    page = report_page(hostile, made_by="tests")
    begin = page.index('<script id="data"')
    inside = page[page.index(">", begin) + 1 : page.index("</script>", begin)]
    assert not set(inside) & set("<>&\u2028\u2029\x1b\u202e")
    data = json.loads(inside)
    assert data["title"] == HOSTILE[0]
    assert page.count("{{SCRIPTS}}") == inside.count("{{SCRIPTS}}") > 0
    assert len(page) < 4_000_000, "names of 10,000 letters are cut"


def test_the_page_shows_them_as_text(hostile: EngineReport, tmp_path: Path, tab: Page) -> None:
    path = tmp_path / "hostile.html"
    path.write_text(report_page(hostile, made_by="tests"), encoding="utf-8")
    tab.size(1280, 20_000)  # all sections are near the window
    tab.open(path)
    tab.wait("ridge.graphView.ready && ridge.charts.has('fusion')")
    for index in (1, 2, 3, 4, 5, 30):
        tab.run(f"ridge.openStep({index})")
    assert HOSTILE[0] in tab.run("document.title")
    assert HOSTILE[0] in tab.run("document.getElementById('panel').textContent")
    assert tab.run("document.querySelectorAll('img, script:not([id]):not(:last-of-type)').length") == 0
    assert tab.run("typeof window.broken") == "undefined"
    # marks of a chart: their tooltips are elements with the name as text
    shown = tab.run("""(() => {
        ridge.charts.get('layers').dispatchAction({type: 'showTip', seriesIndex: 0, dataIndex: 1});
        return [document.querySelectorAll('img').length, typeof window.broken];
    })()""")
    assert shown == [0, "undefined"]
    assert tab.problems == []


def test_an_injected_script_would_not_run(hostile: EngineReport, tmp_path: Path, tab: Page) -> None:
    """The second lock: were a name to become an element, the page's policy stops it."""
    page = report_page(hostile, made_by="tests")
    path = tmp_path / "injected.html"
    inside = "<script>window.broken = true</script><img src=x onerror='window.broken = true'>"
    path.write_text(page.replace('<main id="main">', f'<main id="main">{inside}'), encoding="utf-8")
    tab.open(path)
    assert tab.run("typeof window.broken") == "undefined"
    assert tab.run("typeof ridge") == "object", "our own scripts run"
    assert any("Content Security Policy" in problem for problem in tab.problems)


def test_markdown_and_csv_hold_no_markup_and_no_formula(hostile: EngineReport) -> None:
    text = report_markdown(hostile, made_by="tests")
    assert "<script" not in text.replace("\\<", "")
    assert "\x1b" not in text
    assert "\u202e" not in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in lines), "no name breaks a row"
    assert [line for line in text.splitlines() if line.startswith("# ")][1:] == []
    rows = list(csv.reader(io.StringIO(report_csv(hostile))))
    assert {len(row) for row in rows} == {len(rows[0])}
    assert len(rows) == 1 + len(hostile.steps)
    assert not [cell for row in rows for cell in row if cell.startswith(("=", "+", "@", "\t"))]
