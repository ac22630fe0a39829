"""Copies every page to build/pages, in the places they have in the repository, for mkdocs."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "pages"
SOURCES = ("*.md", "docs/**/*.md", "docs/**/*.svg", "docs/**/*.png", "examples/**/*.md")


def copy_pages() -> int:
    """How many pages and pictures were copied."""
    shutil.rmtree(PAGES, ignore_errors=True)
    found = [path for pattern in SOURCES for path in ROOT.glob(pattern)]
    for path in found:
        place = PAGES / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
    return len(found)


if __name__ == "__main__":
    copy_pages()
