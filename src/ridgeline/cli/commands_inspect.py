"""`ridge show` and `ridge explain`: what an engine is, and why it is so."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ridgeline.cli.arguments import (
    AsJson,
    EngineFile,
    EngineOrModel,
)
from ridgeline.cli.render import emit
from ridgeline.cli.shared_options import with_build_options


def show(engine: EngineFile, json: AsJson = False) -> None:
    """List inputs, outputs, steps, memory, versions and what was verified.

    Example:

      ridge show model.ridge
    """
    from ridgeline.analyze.show import summarise
    from ridgeline.cli.draw_plan import draw_summary
    from ridgeline.cli.plans import describe_file

    described = describe_file(engine)
    summary, file_bytes = summarise(described.plan, described.report), engine.stat().st_size
    emit(summary, draw_summary, as_json=json, schema="engine", file=str(engine), file_bytes=file_bytes)


@with_build_options
def explain(
    engine: EngineOrModel,
    node: Annotated[
        str, typer.Argument(metavar="[NODE]", help="only this node, region or step", show_default=False)
    ] = "",
    all: Annotated[
        bool, typer.Option("--all", help="every step on its own page, with all candidates")
    ] = False,
    profile: Annotated[int, typer.Option(min=1, help="which of several profiles to tell of")] = 1,
    json: AsJson = False,
    *,
    options: dict[str, Any],
) -> None:
    """Say what was fused, what was not and why, which tactic won, by how much, and over whom.

    Examples:

      ridge explain model.ridge

      ridge explain model.ridge /layer.0/attention/MatMul
    """
    from ridgeline.analyze.explain import explain_engine
    from ridgeline.cli.draw_explain import draw_every_page, draw_explanation
    from ridgeline.cli.plans import describe_or_build

    described = describe_or_build(engine, options)
    story = explain_engine(described.plan, described.report, node, profile=profile)
    draw = draw_every_page if all else draw_explanation
    emit(story, draw, as_json=json, schema="explanation", file=str(engine))
