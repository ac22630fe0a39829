"""The page in a browser: it draws without an error, fetches nothing, answers search, clicks and filters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from report_models import CEILINGS, with_times

from browser import Page
from ridgeline.analyze.html.page import report_page
from ridgeline.analyze.report_data import EngineReport
from ridgeline.analyze.report_engine import report_engine
from ridgeline.runtime.description import read_description

MOST_BYTES = 6_000_000
FIRST_PAINT_MS = 2000
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
# chart by chart: how many marks of steps it holds
MARKS = """(name) => ridge.charts.get(name).getOption().series
    .flatMap((each) => each.data).filter((mark) => mark && mark.step).length"""

EDGES = """ridge.graphView.cy.edges()
    .filter((edge) => edge.source().hasClass('region') && edge.target().hasClass('region')).length"""


@pytest.fixture(scope="module")
def pages(reports: dict[str, EngineReport], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    made = {name: folder / f"{name}.html" for name in reports}
    for name, report in reports.items():
        made[name].write_text(report_page(report, made_by="ridgeline of the tests"), encoding="utf-8")
    return made


def look_at(tab: Page, section: str, ready: str) -> None:
    tab.run(f"document.getElementById('{section}').scrollIntoView({{behavior: 'instant'}})")
    tab.wait(ready)


def open_whole(tab: Page, path: Path) -> None:
    """Every section was looked at, and nothing went wrong on the way."""
    tab.open(path)
    for name, section in (
        ("roofline", "roofline"),
        ("layers", "time"),
        ("sums", "time"),
        ("memory", "memory"),
    ):
        look_at(tab, section, f"ridge.charts.has('{name}')")
    look_at(tab, "graph", "ridge.graphView.ready")
    look_at(tab, "maps", "ridge.charts.has('fusion') && ridge.charts.has('precision')")
    assert tab.problems == []
    assert [url for url in tab.requests if not url.startswith(("file:", "data:", "blob:"))] == []


@pytest.mark.parametrize("name", ["resnet50", "bert", "chain"])
def test_the_page_is_small_and_draws_itself(
    name: str, pages: dict[str, Path], reports: dict[str, EngineReport], tab: Page
) -> None:
    report = reports[name]
    assert pages[name].stat().st_size < MOST_BYTES
    open_whole(tab, pages[name])
    assert tab.run(PAINT) < FIRST_PAINT_MS
    assert tab.run("document.querySelectorAll('.card').length") == 7
    assert tab.run("document.getElementById('model-name').textContent") == report.summary.model
    counted = [step for step in report.steps if step.us and step.flops and step.bytes]
    assert tab.run(f"({MARKS})('roofline')") == len(counted)
    assert tab.run(f"({MARKS})('layers')") == len(report.steps)
    regions = "ridge.graphView.cy.nodes('.region').length"
    assert tab.run(regions) == len(report.regions)
    wanted = {name: i for i, region in enumerate(report.regions) for name in region.outputs}
    edges = {(wanted[n], i) for i, region in enumerate(report.regions) for n in region.inputs if n in wanted}
    assert tab.run(EDGES) == len(edges)
    spans = [step.index for step in report.steps if len(step.regions) > 1]
    assert (len(spans) > 0) == (name == "chain")
    assert tab.run("ridge.graphView.cy.nodes('.frame').map((each) => each.data('step'))") == spans


def test_search_and_click_open_a_step(
    pages: dict[str, Path], reports: dict[str, EngineReport], tab: Page
) -> None:
    region = next(each for each in reports["resnet50"].regions if "layer3_2_b_conv" in each.nodes)
    tab.open(pages["resnet50"])
    look_at(tab, "graph", "ridge.graphView.ready")
    tab.run("document.getElementById('graph-search').focus({preventScroll: true})")
    tab.type("layer3_2_b_conv")
    tab.wait("document.getElementById('graph-found').textContent === '1 of 1'")
    assert tab.run("ridge.graphView.cy.$(':selected').length") == 1
    place = tab.run("""(() => {
        const box = document.getElementById('canvas').getBoundingClientRect();
        const at = ridge.graphView.cy.$(':selected').renderedPosition();
        return [box.left + at.x, box.top + at.y];
    })()""")
    tab.click(*place)
    tab.wait("!document.getElementById('panel').hidden")
    shown = tab.run("document.getElementById('panel').textContent")
    step = reports["resnet50"].steps[region.step - 1]
    for wanted in (f"{step.index}. {step.name}", step.tactic, "layer3_2_b_conv", "kernel_shape=[3, 3]"):
        assert wanted in shown
    assert all(refusal.reason in shown for refusal in step.contest.unwilling[:20])
    tab.run("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}))")
    assert tab.run("document.getElementById('panel').hidden")
    assert tab.problems == []


def test_findings_and_hot_spots_lead_to_their_steps(
    pages: dict[str, Path], reports: dict[str, EngineReport], tab: Page
) -> None:
    tab.open(pages["resnet50"])
    shown = tab.run("document.querySelector('#findings .body .row').textContent")
    for wanted in (
        "high",
        "12.5 µs",
        "3.0 %",
        "64 channels are <b>not</b> a multiple",
        "pad them: ridge build",
    ):
        assert wanted in shown
    tab.run("document.querySelector('#findings .body .row').click()")
    region = next(each for each in reports["resnet50"].regions if "layer2_1_b_conv" in each.nodes)
    assert tab.run("document.querySelector('#panel h2').textContent").startswith(f"{region.step}. ")
    tab.open(pages["bert"])
    assert tab.run("document.getElementById('findings')") is None, "nothing to show"
    spots = reports["bert"].hot_spots
    rows = tab.run("[...document.querySelectorAll('#overview .body .row')].map((row) => row.textContent)")
    assert [row.startswith(f"{spot.index}. {spot.name}") for row, spot in zip(rows, spots, strict=True)] == [
        True
    ] * 3
    tab.run("document.querySelectorAll('#overview .body .row')[1].click()")
    assert tab.run("document.querySelector('#panel h2').textContent") == f"{spots[1].index}. {spots[1].name}"
    assert tab.problems == []


TABLE = "document.querySelector('#steps .table')"
SHOWN = f"[...{TABLE}.querySelectorAll('.body .row')].map((row) => row.children[{{column}}].textContent)"


def test_tables_sort_and_filter_and_draw_what_is_in_view(
    pages: dict[str, Path], reports: dict[str, EngineReport], tab: Page
) -> None:
    steps = reports["chain"].steps
    tab.open(pages["chain"])
    assert 10 < tab.run(f"{TABLE}.querySelectorAll('.body .row').length") < 60
    heads = tab.run(f"[...{TABLE}.querySelectorAll('.header button')].map((each) => each.textContent)")
    at, ops = heads.index("Time"), heads.index("Ops")
    tab.run(f"{TABLE}.querySelectorAll('.header button')[{at}].click()")
    slowest = sorted(steps, key=lambda step: -(step.us or 0.0))[0]
    assert tab.run(SHOWN.format(column=ops))[0] == slowest.ops_text
    tab.run(f"{TABLE}.querySelectorAll('.header button')[{at}].click()")
    assert tab.run(SHOWN.format(column=0))[0] == str(min(steps, key=lambda step: step.us or 0.0).index)
    tab.run("document.querySelector('#steps input').focus({preventScroll: true})")
    tab.type("/block.77/ gelu")
    wanted = [s for s in steps if "/block.77/" in s.name and "gelu" in f"{s.name} {s.ops_text}".lower()]
    assert 0 < len(wanted) < 10
    found = tab.run("document.querySelector('#steps .count').textContent")
    assert found == f"{len(wanted)} of 2,000 steps"
    assert sorted(tab.run(SHOWN.format(column=1))) == sorted(step.name for step in wanted)
    assert tab.problems == []


def test_two_thousand_steps_stay_responsive(pages: dict[str, Path], tab: Page) -> None:
    """No task of the page blocks the window for long, and typing a filter is answered at once."""
    tab.open(pages["chain"])
    took_ms = tab.run("""(() => {
        const input = document.querySelector('#steps input');
        const start = performance.now();
        for (const word of ['b', 'bl', 'block.1', 'block.19']) {
            input.value = word;
            input.dispatchEvent(new Event('input'));
        }
        return (performance.now() - start) / 4;
    })()""")
    assert took_ms < 250
    opened_ms = tab.run(
        "(() => { const t = performance.now(); ridge.openStep(1999); return performance.now() - t; })()"
    )
    assert opened_ms < 250
    assert "1999." in tab.run("document.getElementById('panel').textContent")


def test_light_and_dark_and_a_phone(pages: dict[str, Path], tab: Page) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    tab.open(pages["bert"])
    light = tab.run(background)
    look_at(tab, "time", "ridge.charts.has('layers')")
    label = "ridge.charts.get('layers').getOption().textStyle.color"
    before = tab.run(label)
    tab.run("document.getElementById('theme').click()")
    assert tab.run(background) != light
    assert tab.run(label) != before, "charts follow"
    tab.run("localStorage.clear()")
    tab.prefer("dark")
    tab.open(pages["bert"])
    assert tab.run(background) != light, "the system's choice"
    tab.size(390, 844, phone=True)
    open_whole(tab, pages["bert"])
    assert tab.run("document.documentElement.scrollWidth") <= 390, "nothing pushes the page sideways"


def test_pages_of_little_draw_what_there_is(engines: dict[str, Path], tmp_path: Path, tab: Page) -> None:
    """Not timed, without a graph, without a step: a page says what is missing."""
    described = read_description(engines["bert"])
    plan, report = described.plan, described.report
    nothing = replace(plan, steps=(), regions=(), memory=replace(plan.memory, blocks=(), live_bytes=()))
    cases = {
        "The steps of this engine were not timed.": report_engine(plan, report),
        "The graph of this engine was not read.": report_engine(with_times(plan), report, ceilings=CEILINGS),
        "This plan has no regions.": report_engine(nothing, report),
    }
    tab.size(1280, 9000)  # all sections are near the window
    for said, made in cases.items():
        path = tmp_path / "page.html"
        path.write_text(report_page(made, made_by="tests"), encoding="utf-8")
        tab.open(path)
        tab.wait("ridge.charts.size > 0 || ridge.data.steps.length === 0")
        assert said in tab.run("document.getElementById('main').textContent")
        assert tab.problems == []
