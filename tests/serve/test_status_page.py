"""The status page in a browser: it shows what the server says, asks for a key, and loads nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from http_rig import Rig, running

from browser import Page
from browser_tabs import new_tab, tab  # noqa: F401 -- fixtures of the tests here
from ridgeline.serve.http.page import PAGES, page_file
from ridgeline.serve.settings import Keys

HOSTILE = "<img src=x onerror='window.broken = true'>"
WHY = "</script><script>window.broken = true</script>"
BUSY = {
    "name": "busy", "version": "3", "state": "READY", "reason": "", "requests": 1234567, "failures": 2,
    "inferences": 40, "executions": 10, "average_batch": 4.0, "batch_sizes": [[1, 2], [8, 5]],
    "queue_depth": 7,
    "p50_us": 900.0, "p95_us": 8100.0, "p99_us": None, "requests_per_s": 12.5, "inferences_per_s": 99.0,
}  # fmt: skip
BROKEN = BUSY | {"name": HOSTILE, "state": "UNAVAILABLE", "reason": WHY, "p95_us": None, "batch_sizes": []}
STATUS = {
    "server": {"name": "ridgeline", "version": "0.1", "uptime_s": 3725, "state": "serving"},
    "models": [BUSY, BROKEN],
    "gpus": [{"index": 0, "name": "H200", "utilization": 0.5, "memory_bytes": 2**37, "used_bytes": 2**36}],
    "workers": [{"device": "cuda:0", "pid": 42, "state": "restarting", "restarts": 1, "lost": "killed"}],
}
ROWS = "document.querySelectorAll('#models tbody tr').length"


@pytest.fixture
def rig() -> Iterator[Rig]:
    with running() as served:
        served.service.status = STATUS
        yield served


def address(rig: Rig, path: str = "/") -> str:
    return f"http:{'//'}127.0.0.1:{rig.port}{path}"


def shown(tab: Page, where: str) -> Any:  # noqa: F811 -- the fixture's value
    return tab.run(f"document.querySelector({where!r}).innerText")


def test_the_page_shows_what_the_server_says(rig: Rig, tab: Page) -> None:  # noqa: F811
    tab.open(address(rig))
    tab.wait(f"{ROWS} === 3")
    assert shown(tab, "#server-line") == "version 0.1, up for 1 h 2 min"
    assert shown(tab, "#server-state") == "serving"
    row = shown(tab, "#models tbody tr").split("\t")
    assert [each.strip() for each in row] == [
        "busy", "3", "READY", "12.5", "99", "900 µs", "8.10 ms", "–", "7", "4", "", "1.23 M", "2",
    ]  # fmt: skip
    assert tab.run("[...document.querySelectorAll('.bars i')].map((bar) => bar.title)") == [
        "2 batches of 1", "5 batches of 8",
    ]  # fmt: skip
    assert "50 %" in shown(tab, "#gpus")
    assert "killed" in shown(tab, "#workers")
    first = tab.run("document.querySelector('#throughput path').getAttribute('d')")
    tab.wait(f"document.querySelector('#throughput path').getAttribute('d') !== {first!r}")
    assert tab.problems == []
    assert {url.removeprefix(address(rig, "")) for url in tab.requests if not url.startswith("data:")} == {
        "/", "/status/status.css", "/status/status.js", "/status/chart.js", "/v2/ridgeline/status",
    }  # fmt: skip


def test_names_and_reasons_of_models_are_text(rig: Rig, tab: Page) -> None:  # noqa: F811
    tab.open(address(rig, "/status"))
    tab.wait(f"{ROWS} === 3")
    assert HOSTILE in shown(tab, "#models")
    assert WHY in shown(tab, "#models")
    assert tab.run("window.broken === undefined && !document.querySelector('#models img, #models script')")
    # the policy stops what the page itself would let through
    tab.run("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.broken = true\">')")
    tab.wait("document.querySelector('img').complete")
    assert tab.run("window.broken === undefined")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_needs_no_scrolling_aside(rig: Rig, tab: Page, scheme: str) -> None:  # noqa: F811
    tab.size(360, 700, phone=True)
    tab.prefer(scheme)
    tab.open(address(rig))
    tab.wait(f"{ROWS} === 3")
    assert tab.run("document.documentElement.scrollWidth") == 360
    dark, light = "rgb(14, 18, 23)", "rgb(245, 246, 248)"
    assert tab.run("getComputedStyle(document.body).backgroundColor") == (dark if scheme == "dark" else light)


def test_a_server_that_is_gone_is_said_to_be(tab: Page) -> None:  # noqa: F811
    with running() as rig:
        rig.service.status = STATUS
        tab.open(address(rig))
        tab.wait(f"{ROWS} === 3")
    tab.wait("!document.getElementById('problem').hidden")
    assert shown(tab, "#server-state") == "no answer"
    assert "what is shown is of" in shown(tab, "#problem")


def test_the_page_asks_for_a_key(tab: Page, tmp_path: Any) -> None:  # noqa: F811
    keys = tmp_path / "keys"
    keys.write_text("right-key\n")
    with running(keys=Keys(api=keys)) as rig:
        rig.service.status = STATUS
        tab.open(address(rig))
        tab.wait("!document.getElementById('key-form').hidden")
        assert tab.run(ROWS) == 0
        tab.run("document.getElementById('key').focus()")
        tab.type("right-key")
        tab.run("document.querySelector('#key-form button').click()")
        tab.wait(f"{ROWS} === 3 && document.getElementById('key-form').hidden")


@pytest.mark.parametrize("path", PAGES)
def test_every_file_comes_with_the_policy(rig: Rig, path: str) -> None:
    response, body = rig.ask("GET", path)
    assert (response.status, body) == (200, page_file(PAGES[path]).body)
    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert response.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("name", sorted(set(PAGES.values())))
def test_no_file_makes_markup_of_data(name: str) -> None:
    text = page_file(name).body.decode()
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "on" + "click="):
        assert word not in text
