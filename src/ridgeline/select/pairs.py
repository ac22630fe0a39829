"""Pairs of neighbouring regions as one step: what tactics offer for them competes with the two regions apart.

Who would run a pair is decided in a contest like any other. Its winner is taken where it beats the sum of
what it replaces: in the whole plan where that can be timed, else by their own times and a margin.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from ridgeline.base.choices import Candidate, Refusal
from ridgeline.ir.body import Region
from ridgeline.ir.sites import merge
from ridgeline.select.candidates import candidates_of, only_offered
from ridgeline.select.context import (
    APART,
    Contest,
    Pair,
    Selection,
    SelectionContext,
    left_out,
    time_of,
)
from ridgeline.select.race import MARGIN
from ridgeline.tactics.base import PairOps
from ridgeline.tactics.cache import Entry


def open_pairs(context: SelectionContext) -> list[Pair]:
    """The pairs that some tactic takes, and what a lock or a cache says of them."""
    tactics = {name: t.pair_ops for name, t in context.fused.tactics.items() if t.pair_ops is not None}
    pairs: dict[str, Pair | None] = {}
    for parts in _neighbours(context.work, list(tactics.values())):
        region = merge(context.fused.program, parts)
        site = context.site(region)
        key = context.key(site)
        if key not in pairs:
            contest = Contest(region, site, Entry(site.name, ()), is_pair=True)
            pairs[key] = _opened(context, Pair(key, contest, tactics))
        pair = pairs[key]
        if pair is not None:
            pair.parts.append(parts)
            pair.contest.users.append(region)
    return [pair for pair in pairs.values() if pair is not None]


def _neighbours(work: Sequence[Region], wanted: Sequence[PairOps]) -> Iterator[tuple[Region, Region]]:
    """Regions one after the other with ops that a tactic looks for, of which one reads the other."""
    for first, second in pairwise(work):
        is_wanted = any(ops.accept(first.op_types, second.op_types) for ops in wanted)
        if is_wanted and not set(first.outputs).isdisjoint(second.inputs):
            yield first, second


def _opened(context: SelectionContext, pair: Pair) -> Pair | None:
    contest, entry = pair.contest, context.find(pair.key)
    if entry is not None:
        return _known(context, pair, entry)
    if context.lock is not None:
        return None  # made where no tactic took the pair: its regions are pinned
    if context.timer.measures and not context.options.level:
        return None  # nothing is timed, so nothing could show that it is faster
    contest.willing, contest.refused = candidates_of(context, contest)
    if not any(candidate.tactic in pair.tactics for candidate in contest.willing):
        return None
    # the floor, behind all others, only keeps the contest going where they break
    contest.willing.sort(key=lambda candidate: candidate.tactic not in pair.tactics)
    contest.entry = Entry(contest.site.name, (*contest.willing, *contest.refused))
    return pair


def _known(context: SelectionContext, pair: Pair, entry: Entry) -> Pair:
    best = entry.candidates[entry.chosen]
    if best.tactic != APART and best.tactic not in context.fused.tactics:
        raise left_out(context.options, [f"{pair.contest.region.name}: {best.tactic}"])
    entry = only_offered(context, entry, pair.contest.site)
    best = entry.candidates[entry.chosen]
    pair.apart = next((c for c in entry.candidates if c.tactic == APART), pair.apart)
    kept = tuple(c for c in entry.candidates if c.tactic != APART)
    pair.taken = next((i for i, c in enumerate(kept) if c is best), None)
    pair.contest.entry = replace(entry, candidates=kept, chosen=pair.taken or 0)
    pair.contest.is_known = True
    return pair


def weigh(made: Selection) -> None:
    """What the regions of each new pair take by themselves."""
    for pair in made.pairs:
        winners = [
            entry.candidates[entry.chosen]
            for part in pair.parts[0]
            if (entry := made.entries.get(part.name)) is not None
        ]
        measured = [c.median_us for c in winners if c.median_us is not None]
        told = [us for c in winners if (us := time_of(c)) is not None]
        if pair.contest.is_known or len(told) < len(pair.parts[0]):
            continue
        is_measured = len(measured) == len(told)
        us = round(sum(told), 3)
        pair.apart = Candidate(
            APART, {}, median_us=us if is_measured else None, predicted_us=None if is_measured else us
        )


def take_by_times(pairs: Sequence[Pair]) -> None:
    """New pairs whose own time is less than that of their regions, by a margin."""
    for pair in (pair for pair in pairs if not pair.contest.is_known):
        place = next(iter(pair.places), None)
        if place is None:
            pair.why_apart = "no candidate runs it as one step"
        elif pair.apart_us is None:
            pair.why_apart = "its regions were not timed"
        elif pair.us(place) * (1 + MARGIN) < pair.apart_us:
            pair.taken = place
        else:
            pair.why_apart = f"one step takes {pair.us(place):.2f} µs, its regions {pair.apart_us:.2f}"


def close_pairs(context: SelectionContext, made: Selection) -> None:
    """Keep what was decided, for the plan's steps and for the next build, and why pairs stay apart."""
    for pair in made.pairs:
        entry = pair.compared()
        pair.contest.entry, pair.taken = entry, None if pair.taken is None else 0
        context.store(pair.key, entry)
        made.keys.append(pair.key)
        if pair.why_apart:
            rule = next(
                candidate.tactic for candidate in entry.candidates if candidate.tactic in pair.tactics
            )
            made.refusals.append(Refusal(rule, pair.why_apart, pair.contest.region.name))
