"""Selection: for every region its contest, then whole plans. The context's timer makes the choices."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.base.choices import Candidate
from ridgeline.base.spec import Site
from ridgeline.ir.views import views_of
from ridgeline.select.candidates import candidates_of, only_offered
from ridgeline.select.context import Contest, Selection, SelectionContext, stale
from ridgeline.select.pairs import open_pairs, weigh
from ridgeline.tactics.cache import Entry
from ridgeline.tactics.offer import precompile


def select(context: SelectionContext) -> Selection:
    """Choose for every region, then between whole plans."""
    made = Selection()
    contests: dict[str, Contest] = {}
    for region in context.work:
        site = made.sites[region.name] = context.site(region)
        if not views_of(site):
            contest = contests.setdefault(context.key(site), Contest(region, site, Entry(site.name, ())))
            contest.users.append(region)
    _open(context, contests)
    every = list(contests.values())
    made.cached = sum(contest.is_known for contest in every)
    context.timer.decide(context, every, made)
    made.keys = list(contests)
    made.entries = {region.name: contest.entry for contest in every for region in contest.users}
    if context.timer.takes_pairs:
        _decide_pairs(context, made)
    context.timer.compose(context, every, made)
    for key, contest in contests.items():
        context.store(key, made.entries[contest.region.name])
    return made


def _decide_pairs(context: SelectionContext, made: Selection) -> None:
    """Who would run neighbouring regions as one step; whether they do so is decided in the whole plan."""
    made.pairs = open_pairs(context)
    told = Selection()
    context.timer.decide(context, [pair.contest for pair in made.pairs if pair.is_open], told)
    for pair in made.pairs:
        if pair.contest.is_known and pair.taken is not None:
            pair.taken = pair.contest.entry.chosen
    weigh(made)
    made.timed, made.unsteady = made.timed + told.timed, made.unsteady + told.unsteady
    made.partial, made.predicted = made.partial + told.partial, made.predicted + told.predicted


def _open(context: SelectionContext, contests: dict[str, Contest]) -> None:
    """What a lock or a cache says of each site; else the candidates that its tactics offer."""
    found = {key: context.find(key) for key in contests}
    unknown = [contest.region.name for key, contest in contests.items() if found[key] is None]
    if unknown and context.lock is not None:
        raise stale(context.options, unknown)
    for key, contest in contests.items():
        entry = found[key]
        if entry is not None:
            contest.entry, contest.is_known = only_offered(context, entry, contest.site), True
        else:
            contest.willing, contest.refused = candidates_of(context, contest)
            contest.entry = Entry(contest.site.name, (*contest.willing, *contest.refused))


def precompile_all(context: SelectionContext, candidates: Sequence[tuple[Site, Candidate]]) -> None:
    """Compile what will be bound, several kernels at a time."""
    tactics = context.fused.tactics
    jobs = [(tactics[c.tactic], s, context.offer(tactics[c.tactic], s), c.config) for s, c in candidates]
    context.options.tell("compile", 0, 1)
    precompile(jobs, on_done=lambda done, total: context.options.tell("compile", done, total))
    context.options.tell("compile", 1, 1)
