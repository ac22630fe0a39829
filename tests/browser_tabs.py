"""Fixtures of tests that look at a page: tabs of one browser, if there is one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import pytest

from browser import Page, chromium, find_browser


@pytest.fixture(scope="session")
def new_tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Page]]:
    """Opens a tab in the one browser of all tests."""
    program = find_browser()
    if program is None or find_spec("websocket") is None:
        needs = "no Chromium here: apt-get install chromium-headless-shell"
        why = needs if program is None else "no websocket-client here: pip install -e '.[dev]'"
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    with chromium(program, tmp_path_factory.mktemp("browser")) as tabs:
        yield tabs


@pytest.fixture
def tab(new_tab: Callable[[], Page]) -> Iterator[Page]:
    page = new_tab()
    page.size(1280, 900)
    page.prefer("light")
    yield page
    page.close()
