"""The docs are current: generated pages match their source, and links lead somewhere."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from ridgeline.cli.exits import MEANINGS

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]


def test_errors_page_is_current() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "make_errors.py"))
    assert (ROOT / "docs" / "errors.md").read_text(encoding="utf-8") == script["errors_page"](), (
        "run `make docs`"
    )


def test_json_page_is_current() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "make_json.py"))
    assert (ROOT / "docs" / "json.md").read_text(encoding="utf-8") == script["json_page"](), "run `make docs`"


def test_exit_statuses_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    listed = {
        int(status): meaning for status, meaning in re.findall(r"^\| (\d+) \| (.*) \|$", page, re.MULTILINE)
    }
    assert listed == MEANINGS


def test_every_relative_link_leads_to_a_file() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in PAGES
        for link in re.findall(r"\]\(([^)\s#]+)[^)]*\)", page.read_text(encoding="utf-8"))
        if "://" not in link and not (page.parent / link).exists()
    ]
    assert not broken, "\n".join(broken)
