"""Plugins that installed packages bring, found by their entry points; loaded when first wanted, each once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import cache
from importlib.metadata import entry_points

from ridgeline.base.spec import Needed
from ridgeline.errors import failure
from ridgeline.plugins.catalog import CATALOG, GROUP, plugin_of
from ridgeline.plugins.register import LOADING, unregister


@cache
def load_plugins() -> None:
    """Import what the entry points name. A plugin that fails is a problem with a name, and brings nothing."""
    for entry in entry_points(group=GROUP):
        plugin, before = plugin_of(entry), CATALOG.plugins()
        token = LOADING.set(plugin)
        try:
            with redirect_stdout(sys.stderr):  # a command's own output may be JSON
                found = entry.load()
                if callable(found):
                    found()
        except (Exception, SystemExit) as error:
            for brought in (plugin, *(each for each in CATALOG.plugins() if each not in before)):
                unregister(brought.name)
            CATALOG.problems[plugin] = failure(error)
        finally:
            LOADING.reset(token)


def require_plugins(needed: Sequence[Needed]) -> None:
    """Raise where an engine was built with plugins that are not here."""
    if needed:
        load_plugins()
        CATALOG.require(needed)
