"""Writes docs/pipeline.svg, the picture of the way from a model to its results, from the two rows below.

`pipeline_svg()` is the text; a test compares it with the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

PICTURE = Path(__file__).parent / "pipeline.svg"

# a box: its package, what happens there, and what it hands on
BUILDING = (
    ("frontend", "read and check", "ir.Model"),
    ("passes", "canonicalise, fold, fuse", "regions"),
    ("tactics", "offer ways to run a region", "candidates"),
    ("select", "time and compare", "choices"),
    ("plan", "order, memory, provenance", "Plan"),
    ("verify", "against the original", "engine file"),
)
RUNNING = (
    ("runtime", "one instance for each shape", "outputs"),
    ("analyze", "rows out of plans and times", "reports"),
    ("cli", "tables, JSON", ""),
)
WIDTH, HEIGHT, GAP, MARGIN = 178, 64, 26, 12


def pipeline_svg() -> str:
    """Two rows of boxes: building above, running below."""
    boxes = [*_row(BUILDING, MARGIN), *_row(RUNNING, MARGIN + HEIGHT + 2 * GAP)]
    width = 2 * MARGIN + len(BUILDING) * (WIDTH + GAP) - GAP
    height = 2 * MARGIN + 2 * HEIGHT + 2 * GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'font-family="sans-serif" font-size="12" text-anchor="middle">'
    )
    title = "<title>From a model to its results</title>"
    style = (
        "<style>rect{fill:#f4f6fa;stroke:#33415c}text{fill:#1b2433}.name{font-weight:bold;font-size:15px}"
        ".out{font-style:italic;fill:#5c677d}path{stroke:#33415c;fill:none}</style>"
    )
    return "\n".join((head, title, style, *boxes, "</svg>")) + "\n"


def _row(stages: tuple[tuple[str, str, str], ...], top: int) -> Iterator[str]:
    for place, (name, work, result) in enumerate(stages):
        left = MARGIN + place * (WIDTH + GAP)
        middle = left + WIDTH // 2
        yield f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
        for line, offset in (("name", 20), ("", 38), ("out", 56)):
            text = {"name": name, "": work, "out": f"→ {result}" if result else ""}[line]
            yield f'<text class="{line}" x="{middle}" y="{top + offset}">{escape(text)}</text>'
        if place:
            yield f'<path d="M{left - GAP} {top + HEIGHT // 2}h{GAP - 6}l-6 -4m6 4l-6 4"/>'


if __name__ == "__main__":
    PICTURE.write_text(pipeline_svg(), encoding="utf-8")
