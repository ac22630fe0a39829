"""The status page: files of this package, and headers that let them load nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

FOLDER = "status_page"
# path of a request → file
PAGES: Mapping[str, str] = {
    "/": "index.html",
    "/status": "index.html",
    "/status/status.css": "status.css",
    "/status/status.js": "status.js",
    "/status/chart.js": "chart.js",
}
TYPES = {
    "html": b"text/html; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
}
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:;"
    b" base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
)


@dataclass(frozen=True, slots=True)
class PageFile:
    body: bytes
    content_type: bytes


@cache
def page_file(name: str) -> PageFile:
    body = files("ridgeline.serve.http").joinpath(FOLDER, name).read_bytes()
    return PageFile(body, TYPES[name.rpartition(".")[2]])
