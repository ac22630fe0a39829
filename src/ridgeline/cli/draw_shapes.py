"""Draws proposed buckets for `ridge shapes`."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ridgeline.analyze.buckets import Proposal
from ridgeline.cli.grid import put, put_lines, table
from ridgeline.cli.render import plural


def draw_proposal(made: Proposal, console: Console) -> None:
    """The buckets, what each costs, and the line to build with."""
    seen = f"  {plural(made.shapes, 'shape')} in {plural(made.calls, 'call')}"
    console.print(Text.assemble((made.model or "model", "bold"), seen))
    if not made.moving:
        console.print("every call had the same shapes: nothing to choose", style="dim")
        return
    columns = ("calls", "shapes", "padded work")
    grid = table(*made.moving, *columns, numeric=(*made.moving, *columns))
    for row in made.buckets:
        sizes = [str(row.sizes[dim]) for dim in made.moving]
        grid.add_row(*sizes, f"{row.calls:,}", f"{row.shapes:,}", f"{row.padded:.1%}")
    put(grid, console, title="Buckets" if made.is_exact else "Buckets (joined pair by pair)")
    ladder = ", ".join(f"{k}: {share:.1%}" for k, share in made.by_budget.items())
    put_lines(
        [
            ("padded", f"{made.padded:.1%} of all work, counted in {made.work}"),
            ("by number", ladder),
            *([("padding", made.paddable)] if made.paddable else []),
            ("build", f"ridge build MODEL {made.option} --pad"),
        ],
        console,
    )
