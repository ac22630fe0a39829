"""Every test of plugins leaves the registries as it found them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ridgeline.plugins import CATALOG, unregister


@pytest.fixture(autouse=True)
def _forget_plugins() -> Iterator[None]:
    before = {plugin.name for plugin in CATALOG.plugins()}
    yield
    for plugin in {plugin.name for plugin in CATALOG.plugins()} - before:
        unregister(plugin)
