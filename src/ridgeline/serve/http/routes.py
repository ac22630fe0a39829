"""Which path asks what. A path that is not here does not exist; names and versions are checked before use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal
from urllib.parse import unquote

from ridgeline.serve.access import Asked
from ridgeline.serve.errors import RequestError, invalid, not_found, unsupported

Group = Literal["health", "server", "inference", "admin", "metrics"]
NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,128}\Z")
VERSION = re.compile(r"[0-9]{1,18}\Z")
GET, POST, GET_OR_POST = frozenset({"GET", "HEAD"}), frozenset({"POST"}), frozenset({"GET", "HEAD", "POST"})


@dataclass(frozen=True, slots=True)
class Route:
    verb: Asked  # what access is decided by, and what the service is asked
    group: Group  # whether an app answers it at all
    methods: frozenset[str]


@dataclass(frozen=True, slots=True)
class Found:
    route: Route
    name: str = ""  # of a model, or of a file of the page
    version: str = ""  # "": the newest


FIXED: Mapping[str, Found] = {
    "/v2": Found(Route("server_metadata", "server", GET)),
    "/v2/health/live": Found(Route("live", "health", GET)),
    "/v2/health/ready": Found(Route("ready", "health", GET)),
    "/v2/models/stats": Found(Route("statistics", "inference", GET)),
    "/v2/repository/index": Found(Route("index", "server", POST)),
    "/v2/logging": Found(Route("log_settings", "admin", GET_OR_POST)),
    "/v2/ridgeline/status": Found(Route("status", "server", GET)),
    "/metrics": Found(Route("metrics", "metrics", GET)),
}
OF_MODEL: Mapping[str, Route] = {
    "": Route("model_metadata", "inference", GET),
    "ready": Route("model_ready", "inference", GET),
    "config": Route("model_config", "inference", GET),
    "stats": Route("statistics", "inference", GET),
    "infer": Route("infer", "inference", POST),
}
OF_REPOSITORY: Mapping[str, Route] = {
    "load": Route("load", "admin", POST),
    "unload": Route("unload", "admin", POST),
}
PAGE = Route("page", "server", GET)
NOT_SERVED = re.compile(
    r"/v2/(?:systemsharedmemory|cudasharedmemory|trace/setting|models/[^/]+/trace/setting)"
)
MODELS, REPOSITORY = "/v2/models/", "/v2/repository/models/"
KEPT_PATHS = 1024


def find(path: str, pages: Mapping[str, str]) -> Found:
    """`path` as it came, still with percent signs; `pages` maps paths of the status page to its files."""
    found = FIXED.get(path)
    if found is not None:
        return found
    if path in pages:
        return Found(PAGE, pages[path])
    return _find_named(path)


@lru_cache(maxsize=KEPT_PATHS)
def _find_named(path: str) -> Found:
    if path.startswith(MODELS):
        name, *rest = path[len(MODELS) :].split("/")
        version = ""
        if rest[:1] == ["versions"]:
            version, rest = "".join(rest[1:2]), rest[2:]
            if not VERSION.match(version):
                raise invalid("a version is a whole number, as in /v2/models/NAME/versions/1")
        # with a slash at its end it is another path
        route = None if rest == [""] else OF_MODEL.get("/".join(rest))
        if route is not None and name:
            return Found(route, _name(name), version)
    elif path.startswith(REPOSITORY):
        name, _, order = path[len(REPOSITORY) :].partition("/")
        route = OF_REPOSITORY.get(order)
        if route is not None and name:
            return Found(route, _name(name))
    raise _unknown(path)


def _name(part: str) -> str:
    name = unquote(part) if "%" in part else part
    if not NAME.match(name):
        raise invalid("names of models have 1 to 128 of the characters A-Z a-z 0-9 . _ -")
    return name


def _unknown(path: str) -> RequestError:
    if NOT_SERVED.match(path):
        return unsupported("shared memory of clients and settings of traces are not served")
    return not_found("Not Found")
