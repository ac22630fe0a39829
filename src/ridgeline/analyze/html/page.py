"""Puts the page together: template, style, scripts, libraries and data in one file that loads nothing else.

Names of strangers' models are in it. They are data in a JSON block that no text can leave, scripts write
them as text only, and a policy in the head lets no script run but those put together here.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from html import escape
from pathlib import Path

from ridgeline.analyze.html.data import clean, page_data
from ridgeline.analyze.report_data import EngineReport

HERE = Path(__file__).parent
LIBRARIES = ("echarts", "cytoscape", "dagre")
# in the order in which they need one another
SCRIPTS = (
    "base", "format", "theme", "table", "panel", "cards", "charts", "roofline", "layers", "timeline",
    "memory", "maps", "graph", "tables", "main",
)  # fmt: skip
# characters that could end the script element, or that old engines take for the end of a line
_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def report_page(report: EngineReport, *, made_by: str) -> str:
    """The whole page as text; `made_by` is the program with its version."""
    title = report.summary.model or "model"
    data = page_data(report, title=title, made_by=made_by)
    libraries, scripts = _libraries(), _scripts()
    blocks = "\n".join(
        [
            f'<script id="data" type="application/json">{escaped(data)}</script>',
            *(f'<script id="library-{name}">{text}</script>' for name, text in libraries.items()),
            f"<script>{scripts}</script>",
        ]
    )
    return _fill(
        _read("page.html"),
        {
            "POLICY": _policy([*libraries.values(), scripts]),
            "STYLE": _read("style.css"),
            "TITLE": escape(clean(title, 100)) + " · ridgeline",
            "SCRIPTS": blocks,
        },
    )


def escaped(json_text: str) -> str:
    """JSON that can stand in a script element: no character of it means anything to HTML."""
    return json_text.translate(_ESCAPES)


def _policy(scripts: list[str]) -> str:
    """Scripts by their hash, nothing from the network; the layout of the graph runs in a worker."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; worker-src blob:; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _fill(template: str, parts: dict[str, str]) -> str:
    """Each ``{{NAME}}`` once, from left to right: what is filled in is never read as a template."""
    done = []
    for name, text in parts.items():
        before, mark, template = template.partition("{{" + name + "}}")
        if not mark:
            raise ValueError(f"the template has no {name} after the part before it")
        done += [before, text]
    return "".join((*done, template))


@cache
def _libraries() -> dict[str, str]:
    return {name: _without_map(_read(f"vendor/{name}.min.js")) for name in LIBRARIES}


@cache
def _scripts() -> str:
    parts = [f"// {name}.js\n{_read(f'js/{name}.js')}" for name in SCRIPTS]
    return '"use strict";\n(() => {\n' + "\n".join(parts) + "\n})();"


def _without_map(text: str) -> str:
    """Without the last line that sends debuggers to a file which is not there."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("//# sourceMappingURL="))


@cache
def _read(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")
