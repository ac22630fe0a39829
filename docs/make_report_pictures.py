"""Takes the pictures of docs/report.md: pages of a ResNet-50 and a BERT with made-up times, in Chromium.

Needs what the tests of the page need: Chromium and websocket-client. Run it when the page looks different.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "report"))

from report_models import CEILINGS, bert, checked, engine_file, resnet50, trace_of, with_times  # noqa: E402

from browser import Page, chromium, find_browser  # noqa: E402
from ridgeline.analyze.html.page import report_page  # noqa: E402
from ridgeline.analyze.report_engine import report_engine  # noqa: E402
from ridgeline.analyze.report_graph import read_fused_graph  # noqa: E402
from ridgeline.runtime.description import read_description  # noqa: E402

IMAGES = ROOT / "docs" / "images"
DESK, PHONE = (1360, 940), (390, 844)


def make_page(model: str, folder: Path) -> Path:
    """As the tests do, with as many channels as the networks have."""
    made = resnet50(base=64, pixels=224) if model == "resnet50" else bert(width=384, tokens=128)
    path = engine_file(made, folder / f"{model}.ridge")
    described = read_description(path)
    plan = with_times(described.plan)
    report = report_engine(
        plan, checked(described.report), graph=read_fused_graph(path), trace=trace_of(plan), ceilings=CEILINGS
    )
    page = folder / f"{model}.html"
    page.write_text(report_page(report, made_by="ridgeline"), encoding="utf-8")
    return page


def take(tab: Page, page: Path, name: str, *, section: str = "", step: int = 0) -> None:
    """One picture: of the top of the page, or of a section, with the panel of a step."""
    tab.open(page)
    tab.run("localStorage.clear()")
    if section:
        tab.run(f"document.getElementById('{section}').scrollIntoView({{behavior: 'instant'}})")
    if step:
        tab.run(f"ridge.openStep({step})")
    time.sleep(1.5)  # charts and the layout of the graph
    tab.screenshot(IMAGES / f"report-{name}.png")


def main() -> None:
    program = find_browser()
    if program is None:
        sys.exit("no Chromium here: apt-get install chromium-headless-shell")
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch,
        chromium(program, Path(scratch)) as new_tab,
    ):
        folder = Path(scratch)
        vision, language = make_page("resnet50", folder), make_page("bert", folder)
        tab = new_tab()
        tab.size(DESK[0], 1240)
        tab.prefer("light")
        take(tab, vision, "light")
        tab.size(*DESK)
        take(tab, language, "panel", section="graph", step=9)
        tab.prefer("dark")
        take(tab, vision, "dark", section="time")
        take(tab, language, "graph-dark", section="graph")
        tab.prefer("light")
        tab.size(*PHONE, phone=True)
        take(tab, vision, "phone")
        tab.close()


if __name__ == "__main__":
    main()
