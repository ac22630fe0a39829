"""Plugins that installed packages bring, found by their entry points; loaded when first wanted, each once."""

from __future__ import annotations

from collections.abc import Sequence
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
        plugin = plugin_of(entry)
        token = LOADING.set(plugin)
        try:
            found = entry.load()
            if callable(found):
                found()
        except (Exception, SystemExit) as error:
            unregister(plugin.name)
            CATALOG.problems[plugin] = failure(error)
        finally:
            LOADING.reset(token)


def require_plugins(needed: Sequence[Needed]) -> None:
    """Raise where an engine was built with plugins that are not here."""
    if needed:
        load_plugins()
        CATALOG.require(needed)
