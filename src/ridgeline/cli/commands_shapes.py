"""`ridge shapes`: it proposes buckets for the shapes that an engine has run with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.arguments import AsJson
from ridgeline.cli.render import emit


def shapes(
    observed: Annotated[
        Path, typer.Argument(metavar="OBSERVED", help="what engine.observe(FILE) wrote", show_default=False)
    ],
    buckets: Annotated[int, typer.Option(min=1, help="how many sets of sizes to plan for, at most")] = 4,
    engine: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="engine file: count its work, and ask whether it can be padded"),
    ] = None,
    json: AsJson = False,
) -> None:
    """Propose buckets that keep padded work small, from a histogram of the shapes an engine met.

    Examples:

      ridge shapes observed.json

      ridge shapes observed.json --buckets 8 --engine model.ridge
    """
    from ridgeline.analyze.buckets import propose
    from ridgeline.cli.draw_shapes import draw_proposal
    from ridgeline.runtime.observation import read_histogram

    seen = read_histogram(observed)
    if engine is None:
        made = propose(seen, buckets=buckets)
    else:
        from ridgeline.analyze.padding import padding_verdict, work_of_engine
        from ridgeline.cli.engines import load_file

        loaded = load_file(engine)
        made = propose(seen, buckets=buckets, work=work_of_engine(loaded, seen), unit="operations")
        made = replace(made, paddable=padding_verdict(loaded, made.moving))
    emit(made, draw_proposal, as_json=json, schema="shapes", file=str(observed))
