"""Selection: for every region its contest, then whole plans. The context's timer makes the choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ridgeline.base.choices import Candidate
from ridgeline.base.spec import Site
from ridgeline.errors import BuildError
from ridgeline.ir.sites import make_site
from ridgeline.ir.views import views_of
from ridgeline.select.context import Competitors, Contest, Selection, SelectionContext, stale
from ridgeline.tactics.base import Offer, Refused
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
    context.timer.compose(context, every, made)
    for key, contest in contests.items():
        context.store(key, made.entries[contest.region.name])
    return made


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
            contest.willing, contest.refused = _candidates(context, contest)
            contest.entry = Entry(contest.site.name, (*contest.willing, *contest.refused))


def _candidates(context: SelectionContext, contest: Contest) -> Competitors:
    """Tactics are chosen at the planned shapes and must be valid over the whole profile."""
    willing, refused = (context.competitors or partial(offered, context))(contest.site)
    corners = [
        make_site(context.fused.program, contest.region, inferred, context.fused.target)
        for inferred in context.profile_corners
    ]
    kept = []
    for candidate in willing:
        answers = [context.offer(context.fused.tactics[candidate.tactic], site) for site in corners]
        reason = next((answer.reason for answer in answers if isinstance(answer, Refused)), None)
        if reason is None:
            kept.append(candidate)
        else:
            refused.append(replace(candidate, refused=f"not over the whole profile: {reason}"))
    return kept, refused


def offered(context: SelectionContext, site: Site) -> Competitors:
    """Who is willing, and who refused and why."""
    all_configs = context.options.level >= context.timer.all_configs_from
    willing, refused = [], []
    for tactic in context.fused.tactics.values():
        offer = context.offer(tactic, site)
        if isinstance(offer, Refused):
            refused.append(Candidate(tactic.name, {}, refused=offer.reason))
        else:
            configs = offer.configs if all_configs else offer.configs[:1]
            willing += [Candidate(tactic.name, config) for config in configs]
    return willing, refused


def precompile_all(context: SelectionContext, candidates: Sequence[tuple[Site, Candidate]]) -> None:
    """Compile what will be bound, several kernels at a time."""
    tactics = context.fused.tactics
    jobs = [(tactics[c.tactic], s, context.offer(tactics[c.tactic], s), c.config) for s, c in candidates]
    context.options.tell("compile", 0, 1)
    precompile(jobs, on_done=lambda done, total: context.options.tell("compile", done, total))
    context.options.tell("compile", 1, 1)


def only_offered(context: SelectionContext, entry: Entry, site: Site) -> Entry:
    """An entry that was read from a file, as far as its tactics could have made it themselves."""

    def is_offered(candidate: Candidate) -> bool:
        tactic = context.fused.tactics.get(candidate.tactic)
        if tactic is None or candidate.refused is not None:
            return True  # whoever uses it says what is wrong
        offer = context.offer(tactic, site)
        return not isinstance(offer, Offer) or offer.has(candidate.config)

    checked = [
        c if is_offered(c) else replace(c, refused=f"offers no such config: {dict(c.config)}")
        for c in entry.candidates
    ]
    best = entry.candidates[entry.chosen]
    if checked[entry.chosen] is not best:
        raise BuildError(
            f"{best.tactic} offers no such config at {site.name}",
            got=str(dict(best.config)),
            help="was a lock or a cache edited by hand, or made elsewhere? delete it and build again",
        )
    return replace(entry, candidates=tuple(checked))
