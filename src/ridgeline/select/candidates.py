"""Who competes for a site: the candidates that its tactics offer, over the whole profile."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.base.choices import Candidate
from ridgeline.base.spec import Site
from ridgeline.errors import BuildError
from ridgeline.ir.sites import make_site
from ridgeline.select.context import Competitors, Contest, SelectionContext
from ridgeline.tactics.base import Offer, Refused
from ridgeline.tactics.cache import Entry


def candidates_of(context: SelectionContext, contest: Contest) -> Competitors:
    """Tactics are chosen at the planned shapes and must be valid over the whole profile."""
    if context.competitors is not None:
        willing, refused = context.competitors(contest.site)
    else:
        willing, refused = offered(context, contest.site, is_pair=contest.is_pair)
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


def offered(context: SelectionContext, site: Site, *, is_pair: bool = False) -> Competitors:
    """Who is willing, and who refused and why. Of a pair: tactics that take pairs, and the floor."""
    all_configs = context.options.level >= context.timer.all_configs_from
    willing, refused = [], []
    for tactic in context.fused.tactics.values():
        if is_pair != (tactic.pair_ops is not None) and not (is_pair and tactic.is_floor):
            continue
        offer = context.offer(tactic, site)
        if isinstance(offer, Refused):
            refused.append(Candidate(tactic.name, {}, refused=offer.reason))
        else:
            configs = offer.configs if all_configs else offer.configs[:1]
            willing += [Candidate(tactic.name, config) for config in configs]
    return willing, refused


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
