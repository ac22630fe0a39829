"""`ridge plugins`: who brings ops and tactics from outside, and what is wrong with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from ridgeline.cli.arguments import AsJson
from ridgeline.cli.grid import put, table
from ridgeline.cli.render import DASH, emit

if TYPE_CHECKING:
    from ridgeline.plugins.catalog import PluginRow


def plugins(json: AsJson = False) -> None:
    """List the plugins that installed packages bring: their ops, their tactics, and what is wrong with them.

    Example:

      ridge plugins
    """
    from ridgeline.plugins.catalog import CATALOG
    from ridgeline.plugins.entry_points import load_plugins

    load_plugins()
    emit(CATALOG.rows(), draw_plugins, as_json=json, schema="plugins")


def draw_plugins(rows: tuple[PluginRow, ...], console: Console) -> None:
    """One row per plugin; docs/writing-a-plugin.md says how there would be one."""
    if not rows:
        console.print("no plugins are installed: packages bring them by the entry point ridgeline.plugins")
        return
    grid = table("plugin", "version", "ops", "tactics", "problem")
    for row in rows:
        cells = ("\n".join(names) or DASH for names in (row.ops, row.tactics))
        grid.add_row(row.plugin, row.version, *cells, row.problem or DASH)
    put(grid, console)
