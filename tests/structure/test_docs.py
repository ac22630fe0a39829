"""The docs are current: generated pages match their source, and links lead somewhere."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from ridgeline.cli.exits import MEANINGS

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
LINK = re.compile(r"\]\(([^)\s]+)[^)]*\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def test_errors_page_is_current() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "make_errors.py"))
    assert (ROOT / "docs" / "errors.md").read_text(encoding="utf-8") == script["errors_page"](), (
        "run `make docs`"
    )


def test_json_page_is_current() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "make_json.py"))
    assert (ROOT / "docs" / "json.md").read_text(encoding="utf-8") == script["json_page"](), "run `make docs`"


def test_the_picture_is_current() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "make_pipeline.py"))
    assert (ROOT / "docs" / "pipeline.svg").read_text(encoding="utf-8") == script["pipeline_svg"](), (
        "run `make docs`"
    )


def test_the_site_has_every_page_once() -> None:
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(str(page.relative_to(ROOT)) for page in PAGES)


def test_exit_statuses_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    listed = {
        int(status): meaning for status, meaning in re.findall(r"^\| (\d+) \| (.*) \|$", page, re.MULTILINE)
    }
    assert listed == MEANINGS


def links(page: Path) -> list[tuple[Path, str]]:
    """Every link that stays in the repository: the file it leads to, and the heading there."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    parts = [link.partition("#") for link in LINK.findall(text) if "://" not in link]
    return [(page.parent / path if path else page, heading) for path, _, heading in parts]


def headings(page: Path) -> set[str]:
    """As the anchors of their page spell them: lower case, no punctuation, dashes for spaces."""
    titles = re.findall(r"^#+ (.*)$", FENCED.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_every_relative_link_leads_to_a_file() -> None:
    broken = [f"{page.relative_to(ROOT)}: {to}" for page in PAGES for to, _ in links(page) if not to.exists()]
    assert not broken, "\n".join(broken)


def test_every_heading_that_is_linked_exists() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {to.name}#{heading}"
        for page in PAGES
        for to, heading in links(page)
        if heading and heading not in headings(to)
    ]
    assert not broken, "\n".join(broken)


def test_files_that_pages_name_are_there() -> None:
    named = re.compile(r"`((?:src/ridgeline|tests|bench|docs|examples)/[\w./-]+\.(?:py|md|json))`")
    missing = [
        f"{page.relative_to(ROOT)}: {path}"
        for page in PAGES
        for path in named.findall(page.read_text(encoding="utf-8"))
        if not (ROOT / path).exists()
    ]
    assert not missing
