"""The timer of a GPU that is not here: choices from a lock or an imported cache, else by prediction.

Winner and runners-up are compiled, so that one that does not compile or spills is refused with its reason
and the next takes its place. Nothing is bound, timed or run: the machine itself settles what was predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ridgeline.base.choices import Candidate
from ridgeline.errors import BuildError, failure, first_line
from ridgeline.kernels.triton.compiler import Compiled, CompileError, compile_kernels
from ridgeline.kernels.triton.source import Kernel
from ridgeline.runtime.embedded_kernels import RUNNERS_UP
from ridgeline.select.context import Contest, Selection, SelectionContext, Timer, check_workspace
from ridgeline.select.pairs import close_pairs, take_by_times
from ridgeline.tactics.base import Offer, Refused
from ridgeline.tactics.cache import Entry
from ridgeline.tactics.cost_model import CostModel
from ridgeline.tactics.cuda.own_kernels import require_fit


class Prediction(Timer):
    """Candidates ranked as measured elsewhere, else as they are predicted; the best must compile."""

    all_configs_from = 1
    takes_pairs = True

    def __init__(self, cost: CostModel) -> None:
        self.cost = cost

    def find(self, context: SelectionContext, key: str) -> Entry | None:
        return context.cache.find_anywhere(key)

    def decide(self, context: SelectionContext, contests: Sequence[Contest], made: Selection) -> None:
        for i, contest in enumerate(contests):
            context.options.tell("predict", i, len(contests), contest.region.name)
            if not contest.is_known:
                contest.entry = _predicted(context, contest, self.cost)
        context.options.tell("predict", len(contests), len(contests))
        _compile(context, contests)
        made.predicted = len(contests) - made.cached
        places = [contest.entry.context for contest in contests if contest.entry.context]
        made.measured_at = tuple(dict.fromkeys(places))

    def compose(self, context: SelectionContext, contests: Sequence[Contest], made: Selection) -> None:
        take_by_times(made.pairs)
        close_pairs(context, made)
        super().compose(context, contests, made)


def _predicted(context: SelectionContext, contest: Contest, cost: CostModel) -> Entry:
    """Every willing candidate with the time it should take, best first."""
    ranks: dict[str, int] = {}
    told: list[Candidate] = []
    refused = list(contest.refused)
    for candidate in contest.willing:
        offer = context.offer(context.fused.tactics[candidate.tactic], contest.site)
        assert isinstance(offer, Offer), "a candidate is willing"
        rank = ranks[candidate.tactic] = ranks.get(candidate.tactic, -1) + 1
        try:
            if context.options.workspace_bytes is not None and offer.footprint is not None:
                needed = offer.footprint(candidate.config).packed_bytes
                check_workspace(needed, context.options.workspace_bytes)
            us = cost.candidate_us(offer, contest.site, candidate.config, rank=rank)
            told.append(replace(candidate, predicted_us=us))
        except Exception as error:  # a site its author did not think of: refused with the message
            refused.append(replace(candidate, refused=failure(error)))
    # stable: equal predictions keep the order of preference
    told.sort(key=lambda m: m.predicted_us or 0.0)
    # the model is least sure between kinds, so the best of another tactic comes along as the first runner-up
    rival = next((i for i, m in enumerate(told) if m.tactic != told[0].tactic), None)
    if rival is not None:
        told.insert(1, told.pop(rival))
    return Entry(contest.site.name, (*told, *refused), 0)


def _compile(context: SelectionContext, contests: Sequence[Contest]) -> None:
    """Until every site has kernels for a winner and its runners-up, or has nobody left to ask."""
    wanted = 1 + (RUNNERS_UP if context.options.level > 0 else 0)
    waiting = [_ranks(contest.entry) for contest in contests]  # none of them tried yet
    good: list[list[int]] = [[] for _ in contests]
    compiled = [0] * len(contests)  # of the good ones: a library needs no embedded kernel
    while True:
        batch = [
            (place, waiting[place].pop(0))
            for place in range(len(contests))
            for _ in range(min(wanted - compiled[place], len(waiting[place])))
        ]
        if not batch:
            break
        tried = _try(context, [(contests[place], index) for place, index in batch])
        for (place, index), (kernels, reason) in zip(batch, tried, strict=True):
            if reason is None:
                good[place].append(index)
                compiled[place] += bool(kernels)
            else:
                contests[place].refuse(index, reason)
    for contest, indices in zip(contests, good, strict=True):
        _close(context, contest, indices)


def _ranks(entry: Entry) -> list[int]:
    """Candidates that did not refuse, the chosen one first."""
    order = [entry.chosen, *(i for i in range(len(entry.candidates)) if i != entry.chosen)]
    return [i for i in order if entry.candidates[i].refused is None]


def _close(context: SelectionContext, contest: Contest, good: Sequence[int]) -> None:
    """The first that compiled is chosen; what a lock pins must be it."""
    entry, name = contest.entry, contest.site.name
    dropped = [m for m in entry.candidates if m.refused is not None]
    if not good:
        raise contest.no_tactic(dropped)
    if context.lock is not None and good[0] != entry.chosen:
        raise BuildError(
            f"what the lock pins at {name} cannot be used",
            rows=[f"{m.tactic:24} {m.refused}" for m in dropped],
            help=f"edit `chosen` in {context.options.lock}, or delete it and build again",
        )
    if contest.is_known:
        contest.entry = replace(entry, chosen=good[0])
    else:  # those that may be chosen first, in order; then those that may not
        kept = [m for m in entry.candidates if m.refused is None]
        contest.entry = replace(entry, candidates=(*kept, *dropped), chosen=0)


def _try(
    context: SelectionContext, batch: Sequence[tuple[Contest, int]]
) -> list[tuple[Sequence[Kernel], str | None]]:
    """Compile these candidates together: the kernels of each, and why it cannot be used."""
    found: list[tuple[Sequence[Kernel], str | None]] = []
    for contest, index in batch:
        candidate = contest.entry.candidates[index]
        try:
            offer = context.offer(context.fused.tactics[candidate.tactic], contest.site)
            if isinstance(offer, Refused):
                found.append(((), offer.reason))
            else:
                found.append((offer.kernels(candidate.config), None))
        except Exception as error:  # a config from elsewhere that does not fit this version
            found.append(((), failure(error)))
    kernels = [kernel for made, _ in found for kernel in made]
    answers = compile_kernels(
        kernels,
        context.fused.target.arch,
        on_done=lambda done, total: context.options.tell("compile", done, total),
    )
    made = {kernel.digest: answer for kernel, answer in zip(kernels, answers, strict=True)}
    return [(ks, reason or _why_unfit([made[k.digest] for k in ks])) for ks, reason in found]


def _why_unfit(made: Sequence[Compiled | CompileError]) -> str | None:
    for answer in made:
        try:
            require_fit(answer)
        except CompileError as error:
            return first_line(error)
    return None
