"""`ridge show` and `ridge explain`: what an engine is, and why it is so."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.cli.arguments import AsJson, EngineOrModel, share_given
from ridgeline.cli.files import is_engine_file, require_file
from ridgeline.cli.render import emit
from ridgeline.cli.shared_options import with_target_and_build_options


def show(engine: EngineOrModel, json: AsJson = False) -> None:
    """List inputs, outputs, steps, memory, versions and what was verified; of an ONNX file, its nodes.

    Examples:

      ridge show model.ridge

      ridge show model.onnx                        (names of nodes, for --keep and --exclude)
    """
    require_file(engine)
    if not is_engine_file(engine):
        _show_model(engine, as_json=json)
        return
    from ridgeline.analyze.show import summarise
    from ridgeline.cli.draw_plan import draw_summary
    from ridgeline.cli.plans import describe_file

    described = describe_file(engine)
    summary, file_bytes = summarise(described.plan, described.report), engine.stat().st_size
    emit(summary, draw_summary, as_json=json, schema="engine", file=str(engine), file_bytes=file_bytes)


def _show_model(path: Path, *, as_json: bool) -> None:
    from ridgeline.analyze.model_nodes import list_nodes
    from ridgeline.cli.draw_model import draw_model
    from ridgeline.plugins.entry_points import load_plugins

    load_plugins()
    emit(list_nodes(path), draw_model, as_json=as_json, schema="model", file=str(path))


@with_target_and_build_options
def explain(
    engine: EngineOrModel,
    node: Annotated[
        str, typer.Argument(metavar="[NODE]", help="only this node, region or step", show_default=False)
    ] = "",
    all: Annotated[
        bool, typer.Option("--all", help="every step on its own page, with all candidates")
    ] = False,
    profile: Annotated[int, typer.Option(min=1, help="which of several profiles to tell of")] = 1,
    part: Annotated[int, typer.Option(min=1, help="which part of a profile with several (--tune-at)")] = 1,
    findings: Annotated[
        bool,
        typer.Option("--findings", help="only what to change in the model; reads an engine's graph"),
    ] = False,
    min_gain: Annotated[
        str,
        typer.Option("--min-gain", metavar="PERCENT", help="only findings that gain so much of the run: 1%"),
    ] = "",
    json: AsJson = False,
    *,
    options: dict[str, Any],
) -> None:
    """Say what to change in the model, what was fused, what was not and why, and which tactic won over whom.

    Findings come first: what costs time, what a change would gain, and the change. Of an engine file those
    are read that need no graph; --findings looks for all.

    Examples:

      ridge explain model.ridge

      ridge explain model.onnx --findings --min-gain 1% --target cuda:sm_90

      ridge explain model.ridge /layer.0/attention/MatMul
    """
    from ridgeline.analyze.explain import explain_engine
    from ridgeline.analyze.parts import plan_place
    from ridgeline.cli.draw_explain import draw_every_page, draw_explanation
    from ridgeline.cli.draw_findings import draw_findings
    from ridgeline.cli.plans import describe_or_build

    least = share_given("--min-gain", min_gain) if min_gain else None
    described, loaded = describe_or_build(engine, options, needs_graph=findings)
    found = None
    place = plan_place(described.plan, profile, part)
    if loaded is not None:
        from ridgeline.analyze.findings.in_graph import find_all

        found = find_all(loaded, place=place)
    story = explain_engine(
        described.plan, described.report, node, profile=profile, part=part, findings=found, min_gain=least
    )
    draw = draw_findings if findings else draw_every_page if all else draw_explanation
    emit(story, draw, as_json=json, schema="explanation", file=str(engine))
