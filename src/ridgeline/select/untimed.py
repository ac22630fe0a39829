"""Choices at level 0, where nothing is timed: the library for the whole graph, else the first that runs.

Regions are compiled and tried only where the library does not run the whole graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from ridgeline.base.spec import Site, TensorSpec
from ridgeline.errors import LimitError, failure
from ridgeline.ir.body import Region
from ridgeline.select.plan_times import none_runs, run_once
from ridgeline.select.plans import (
    Selection,
    StepChoice,
    Workshop,
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
from ridgeline.tactics.cache import Entry, Measured


def select_here(shop: Workshop, inputs: Mapping[str, TensorSpec], feeds: Mapping[str, Tensor]) -> Selection:
    """As the level asks for; a lock pins what was chosen at any level."""
    if shop.target.is_null:
        return select_by_rule(shop)
    choose = select if shop.options.level or shop.lock is not None else select_untimed
    return choose(shop, inputs, feeds)


def select_by_rule(shop: Workshop) -> Selection:
    """The rule of the null target: in each region the first willing tactic, with the first of its configs."""
    made = Selection()
    work = [region for region in shop.program.regions if not shop.settled.is_host(region)]
    choose_regions(shop, work, made, _list_sites)
    made.steps = tuple(single(shop, region, made) for region in work)
    return made


def select_untimed(
    shop: Workshop, inputs: Mapping[str, TensorSpec], feeds: Mapping[str, Tensor]
) -> Selection:
    """Choose without timing; the candidates of every region are listed all the same."""
    made = Selection()
    work = [region for region in shop.program.regions if not shop.settled.is_host(region)]
    whole = whole_graph(shop) if work else None
    failed = None if whole is None else _why_not_run(shop, whole, inputs, feeds)
    if whole is not None and failed is None:
        choose_regions(shop, work, made, _list_sites)
        ranked = [Measured("ort", {}), Measured("regions", {})]
        made.steps = (replace(whole, entry=Entry("whole plan", tuple(ranked))),)
    else:
        choose_regions(shop, work, made, _try_sites)
        made.steps = tuple(single(shop, region, made) for region in work)
        refused = [] if failed is None else [Measured("ort", {}, refused=failed)]
        _require_binding(shop, made.steps, inputs, feeds, refused)
        ranked = [Measured("regions", {}), *refused]
    made.alternatives = Entry("whole plan", tuple(ranked))
    remember(shop, made, plan_key(shop, made, [m.tactic for m in ranked]), made.alternatives)
    return made


def _list_sites(shop: Workshop, todo: Sequence[tuple[Region, Site]]) -> dict[str, Entry]:
    return {
        shop.key(site): Entry(site.name, (*willing, *refused))
        for _, site, willing, refused in offers_of(shop, todo)
    }


def _try_sites(shop: Workshop, todo: Sequence[tuple[Region, Site]]) -> dict[str, Entry]:
    offers = offers_of(shop, todo)
    precompile(shop, [(site, willing[0]) for _, site, willing, _ in offers if willing])
    return enter_sites(shop, offers, stage="take the first")


def _why_not_run(
    shop: Workshop, step: StepChoice, inputs: Mapping[str, TensorSpec], feeds: Mapping[str, Tensor]
) -> str | None:
    """What the plan of this one step fails with, if it does."""
    try:
        run_once(instance_of(shop, [step], inputs, feeds))
    except LimitError:
        raise
    except Exception as error:
        return failure(error)
    return None


def _require_binding(
    shop: Workshop,
    steps: Sequence[StepChoice],
    inputs: Mapping[str, TensorSpec],
    feeds: Mapping[str, Tensor],
    refused: Sequence[Measured],
) -> None:
    """The last plan need not run here: drawn values may not suit the model, and verification will tell."""
    try:
        instance_of(shop, steps, inputs, feeds)
    except LimitError:
        raise
    except Exception as error:
        raise none_runs([*refused, Measured("regions", {}, refused=failure(error))]) from error
