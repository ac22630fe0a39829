"""`ridge show` and `ridge explain`: what an engine is, and why it is so."""

from __future__ import annotations

from typing import Annotated

import typer

from ridgeline.cli.arguments import (
    AsJson,
    Cache,
    EngineFile,
    EngineOrModel,
    Level,
    LimitOption,
    Shapes,
    Threads,
    VerifyMode,
    Without,
    build_options,
)
from ridgeline.cli.render import emit


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


def explain(
    engine: EngineOrModel,
    node: Annotated[
        str, typer.Argument(metavar="[NODE]", help="only this node, region or step", show_default=False)
    ] = "",
    all: Annotated[
        bool, typer.Option("--all", help="every step on its own page, with all candidates")
    ] = False,
    profile: Annotated[int, typer.Option(min=1, help="which of several profiles to tell of")] = 1,
    shapes: Shapes = None,
    threads: Threads = None,
    level: Level = None,
    cache: Cache = None,
    verify: VerifyMode = None,
    without: Without = None,
    limit: LimitOption = None,
    json: AsJson = False,
) -> None:
    """Say what was fused, what was not and why, which tactic won, by how much, and over whom.

    Examples:

      ridge explain model.ridge

      ridge explain model.ridge /layer.0/attention/MatMul
    """
    from ridgeline.analyze.explain import explain_engine
    from ridgeline.cli.draw_explain import draw_every_page, draw_explanation
    from ridgeline.cli.plans import describe_or_build

    options = build_options(
        shapes=shapes, threads=threads, level=level, cache=cache, verify=verify, without=without, limit=limit
    )
    described = describe_or_build(engine, options)
    story = explain_engine(described.plan, described.report, node, profile=profile)
    draw = draw_every_page if all else draw_explanation
    emit(story, draw, as_json=json, schema="explanation", file=str(engine))
