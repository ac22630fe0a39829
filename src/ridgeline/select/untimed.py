"""Choices at level 0, where nothing is timed: the library for the whole graph, else the first that runs.

Regions are compiled and tried only where the library does not run the whole graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from ridgeline.base.choices import Candidate
from ridgeline.base.spec import Site, TensorSpec
from ridgeline.errors import LimitError, failure
from ridgeline.ir.body import Region
from ridgeline.select.context import Selection, SelectionContext, StepChoice
from ridgeline.select.plan_times import none_runs, run_once
from ridgeline.select.plans import (
    choose_regions,
    enter_sites,
    instance_of,
    offers_of,
    plan_key,
    precompile,
    remember,
    select,
    single,
    whole_graph,
)
from ridgeline.tactics.cache import Entry


def select_here(
    context: SelectionContext, inputs: Mapping[str, TensorSpec], feeds: Mapping[str, Tensor]
) -> Selection:
    """As the level asks for; a lock pins what was chosen at any level."""
    if context.target.is_null:
        return select_by_rule(context)
    choose = select if context.options.level or context.lock is not None else select_untimed
    return choose(context, inputs, feeds)


def select_by_rule(context: SelectionContext) -> Selection:
    """The rule of the null target: in each region the first willing tactic, with the first of its configs."""
    made = Selection()
    work = [region for region in context.program.regions if not context.inferred.is_host(region)]
    choose_regions(context, work, made, _list_sites)
    made.steps = tuple(single(context, region, made) for region in work)
    return made


def select_untimed(
    context: SelectionContext, inputs: Mapping[str, TensorSpec], feeds: Mapping[str, Tensor]
) -> Selection:
    """Choose without timing; the candidates of every region are listed all the same."""
    made = Selection()
    work = [region for region in context.program.regions if not context.inferred.is_host(region)]
    whole = whole_graph(context) if work else None
    failed = None if whole is None else _why_not_run(context, whole, inputs, feeds)
    if whole is not None and failed is None:
        choose_regions(context, work, made, _list_sites)
        ranked = [Candidate("ort", {}), Candidate("regions", {})]
        made.steps = (replace(whole, entry=Entry("whole plan", tuple(ranked))),)
    else:
        choose_regions(context, work, made, _try_sites)
        made.steps = tuple(single(context, region, made) for region in work)
        refused = [] if failed is None else [Candidate("ort", {}, refused=failed)]
        _require_binding(context, made.steps, inputs, feeds, refused)
        ranked = [Candidate("regions", {}), *refused]
    made.alternatives = Entry("whole plan", tuple(ranked))
    remember(context, made, plan_key(context, made, [m.tactic for m in ranked]), made.alternatives)
    return made


def _list_sites(context: SelectionContext, todo: Sequence[tuple[Region, Site]]) -> dict[str, Entry]:
    return {
        context.key(site): Entry(site.name, (*willing, *refused))
        for _, site, willing, refused in offers_of(context, todo)
    }


def _try_sites(context: SelectionContext, todo: Sequence[tuple[Region, Site]]) -> dict[str, Entry]:
    offers = offers_of(context, todo)
    precompile(context, [(site, willing[0]) for _, site, willing, _ in offers if willing])
    return enter_sites(context, offers, stage="take the first")


def _why_not_run(
    context: SelectionContext, step: StepChoice, inputs: Mapping[str, TensorSpec], feeds: Mapping[str, Tensor]
) -> str | None:
    """What the plan of this one step fails with, if it does."""
    try:
        run_once(instance_of(context, [step], inputs, feeds))
    except LimitError:
        raise
    except Exception as error:
        return failure(error)
    return None


def _require_binding(
    context: SelectionContext,
    steps: Sequence[StepChoice],
    inputs: Mapping[str, TensorSpec],
    feeds: Mapping[str, Tensor],
    refused: Sequence[Candidate],
) -> None:
    """The last plan need not run here: drawn values may not suit the model, and verification will tell."""
    try:
        instance_of(context, steps, inputs, feeds)
    except LimitError:
        raise
    except Exception as error:
        raise none_runs([*refused, Candidate("regions", {}, refused=failure(error))]) from error
