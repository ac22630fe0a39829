"""Which paths and methods there are over HTTP, and who is let through to them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from http_rig import Rig, running

from ridgeline.serve.settings import Keys

X = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.5, -2]}


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running(admin=True, metrics=True) as served:
        yield served


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/v2/health/live", "GET, HEAD, OPTIONS"),
        ("DELETE", "/v2/models/echo", "GET, HEAD, OPTIONS"),
        ("GET", "/v2/models/echo/infer", "OPTIONS, POST"),
        ("HEAD", "/v2/models/echo/infer", "OPTIONS, POST"),
        ("PUT", "/v2/repository/models/echo/load", "OPTIONS, POST"),
        ("PATCH", "/", "GET, HEAD, OPTIONS"),
    ],
)
def test_another_method_is_not_allowed(rig: Rig, method: str, path: str, allowed: str) -> None:
    response, body = rig.ask(method, path)
    assert (response.status, response.headers["Allow"]) == (405, allowed)
    assert method == "HEAD" or json.loads(body) == {"error": "Method Not Allowed"}
    response, body = rig.ask("OPTIONS", path)
    assert (response.status, response.headers["Allow"], body) == (200, allowed, b"")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v3", 404),
        ("/v2/", 404),
        ("//v2", 404),
        ("/v2/models", 404),
        ("/v2/models/", 404),
        ("/v2/models//ready", 404),
        ("/v2/models/echo/", 404),
        ("/v2/models/echo/versions/1/", 404),
        ("/v2/models/echo/versions/1/ready/", 404),
        ("/v2/models/echo/config/ready", 404),
        ("/v2/models/echo/nothing", 404),
        ("/v2/models/a/b/ready", 404),
        ("/v2/models/echo/generate", 404),
        ("/v2/models/missing/ready", 404),
        ("/v2/models/../ready", 400),
        ("/v2/models/./config", 400),
        ("/v2/models/%2e%2e/config", 400),
        ("/v2/models/..%2f..%2fetc%2fpasswd/config", 400),
        ("/v2/models/%252e%252e/config", 400),
        ("/v2/models/a%00b/config", 400),
        ("/v2/models/a%5cb/config", 400),
        ("/v2/models/%ff%fe/config", 400),
        ("/v2/models/a%0ab/config", 400),
        ("/v2/models/a%20b/config", 400),
        ("/v2/models/%/config", 400),
        (f"/v2/models/{'n' * 129}/config", 400),
        ("/v2/models/echo/versions/x", 400),
        ("/v2/models/echo/versions/-1", 400),
        ("/v2/models/echo/versions/1.0/ready", 400),
        ("/v2/models/echo/versions/", 400),
        ("/v2/models/echo/versions", 400),
        (f"/v2/models/echo/versions/{'9' * 30}", 400),
        ("/v2/%6dodels/echo/config", 404),
        ("/v2%2fmodels/echo", 404),
        ("/%76%32/health/live", 404),
        ("/v2/repository%2Findex", 404),
        ("/status/../index.html", 404),
        ("/status/http_app.py", 404),
        ("/v2/systemsharedmemory/status", 501),
        ("/v2/cudasharedmemory/region/r/status", 501),
        ("/v2/trace/setting", 501),
        ("/v2/models/echo/trace/setting", 501),
    ],
)
def test_paths_are_those_of_the_table_alone(rig: Rig, path: str, status: int) -> None:
    response, body = rig.ask("GET", path)
    assert response.status == status
    assert path not in json.loads(body)["error"], "a path is not repeated"
    rig.check_alive()


def test_requests_of_other_sites_pages_are_not_taken(rig: Rig) -> None:
    body = json.dumps({"inputs": [X]}).encode()
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
        response, _ = rig.ask("POST", "/v2/models/echo/infer", body, {"Sec-Fetch-Site": site})
        assert response.status == status
    response, _ = rig.ask("GET", "/v2", headers={"Sec-Fetch-Site": "cross-site"})
    assert response.status == 200


PLAIN = "http:" + "//"


def test_an_origin_is_that_of_our_own_pages(rig: Rig) -> None:
    body = json.dumps({"inputs": [X]}).encode()
    own, other = f"{PLAIN}127.0.0.1:{rig.port}", f"{PLAIN}other.example"
    for headers, status in (
        ({"Origin": own}, 200),
        ({"Origin": own, "Host": f"LOCALHOST:{rig.port}"}, 403),
        ({"Origin": f"{PLAIN}a.example", "Host": "A.example"}, 200),
        ({"Origin": other}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": other, "Sec-Fetch-Site": "none"}, 403),
        # the browser knows better what a proxy made of the host
        ({"Origin": other, "Sec-Fetch-Site": "same-origin"}, 200),
    ):
        response, _ = rig.ask("POST", "/v2/models/echo/infer", body, headers)
        assert response.status == status, headers
    response, _ = rig.ask("GET", "/v2", headers={"Origin": other})
    assert response.status == 200


def test_admin_calls_without_keys_have_a_host_of_this_machine(rig: Rig, tmp_path: Path) -> None:
    hosts = ("localhost", "LocalHost:8000", "127.0.0.1", "127.0.0.1:8000", "[::1]", "[::1]:8000")
    others = ("other.example", "other.example:8000", "10.0.0.1", "localhost.other.example", "::1", ":8000")
    for host, status in (*((each, 200) for each in hosts), *((each, 403) for each in others)):
        for method, path in (CALLS["load"], CALLS["log"]):
            response, _ = rig.ask(method, path, headers={"Host": host})
            assert response.status == status, host
        assert rig.ask("GET", "/v2", headers={"Host": host})[0].status == 200
    admin = tmp_path / "admin"
    admin.write_text("admin-key\n")
    with running(keys=Keys(None, admin), admin=True) as with_keys:
        headers = {"Host": "other.example", "X-API-Key": "admin-key"}
        assert with_keys.ask("GET", "/v2/logging", headers=headers)[0].status == 200


@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "gzip"])
def test_a_question_is_at_most_a_mebibyte(rig: Rig, is_packed: bool) -> None:
    asked = len(rig.service.asked)
    for size, status in ((2**20, 200), (2**21, 413)):
        body = b"{}".ljust(size)
        sent, headers = (gzip.compress(body, 1), {"Content-Encoding": "gzip"}) if is_packed else (body, {})
        response, answer = rig.ask("POST", "/v2/repository/index", sent, headers)
        assert response.status == status
    assert "1048576 bytes" in json.loads(answer)["error"]
    assert len(rig.service.asked) == asked + 1


CALLS = {
    "live": ("GET", "/v2/health/live"),
    "page": ("GET", "/"),
    "status": ("GET", "/v2/ridgeline/status"),
    "server": ("GET", "/v2"),
    "index": ("POST", "/v2/repository/index"),
    "model": ("GET", "/v2/models/echo"),
    "statistics": ("GET", "/v2/models/stats"),
    "infer": ("POST", "/v2/models/echo/infer"),
    "load": ("POST", "/v2/repository/models/echo/load"),
    "unload": ("POST", "/v2/repository/models/echo/unload"),
    "log": ("GET", "/v2/logging"),
    "metrics": ("GET", "/metrics"),
}
BODY = json.dumps({"inputs": [X]}).encode()


def statuses(rig: Rig, headers: dict[str, str] | None = None) -> dict[str, int]:
    return {
        name: rig.ask(method, path, BODY if method == "POST" else None, headers)[0].status
        for name, (method, path) in CALLS.items()
    }


@pytest.mark.parametrize(
    ("flags", "good"),
    [
        ({}, {"live", "page", "status", "server", "index", "model", "statistics", "infer"}),
        (
            {"admin": True, "inference": False},
            {"live", "page", "status", "server", "index", "load", "unload", "log"},
        ),
        ({"metrics": True, "inference": False}, {"live", "metrics"}),
    ],
)
def test_an_app_answers_what_it_is_for(flags: dict[str, bool], good: set[str]) -> None:
    with running(**flags) as rig:
        found = statuses(rig)
    assert {name for name, status in found.items() if status == 200} == good
    refused = {name: status for name, status in found.items() if name not in good}
    assert all(
        status == (403 if name in ("load", "unload", "log") else 404) for name, status in refused.items()
    )


def test_keys_are_asked_for_on_every_path_but_probes_and_the_page(tmp_path: Path) -> None:
    api, admin = tmp_path / "api", tmp_path / "admin"
    api.write_text("api-key\n")
    admin.write_text("admin-key\n")
    with running(keys=Keys(api, admin), admin=True, metrics=True) as rig:
        none, wrong = statuses(rig), statuses(rig, {"Authorization": "Bearer no"})
        as_api = statuses(rig, {"Authorization": "Bearer api-key"})
        as_admin = statuses(rig, {"X-API-Key": "admin-key"})
        response, body = rig.ask("GET", "/v2")
        assert response.headers["WWW-Authenticate"] == "Bearer"
        assert "key" in json.loads(body)["error"]
        # whichever of two keys counts is not for the client to choose
        two = b"GET /v2 HTTP/1.1\r\nX-API-Key: no\r\nX-API-Key: api-key\r\nConnection: close\r\n\r\n"
        assert rig.raw(two).startswith(b"HTTP/1.1 400")
    for found in (none, wrong):
        assert {name for name, status in found.items() if status == 200} == {"live", "page"}
        assert set(found.values()) == {200, 401}
    assert {name for name, status in as_api.items() if status == 403} == {"load", "unload", "log"}
    assert set(as_admin.values()) == {200}


def test_a_key_in_a_trailer_is_no_key(tmp_path: Path) -> None:
    api = tmp_path / "api"
    api.write_text("api-key\n")
    head = b"POST /v2/models/echo/infer HTTP/1.1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n"
    chunks = b"\r\n%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
    key = b"X-API-Key: api-key\r\n"
    with running(keys=Keys(api)) as rig:
        assert rig.raw(head + chunks + key + b"\r\n").startswith(b"HTTP/1.1 401")
        assert rig.raw(head + key + chunks + b"\r\n").startswith(b"HTTP/1.1 200")
