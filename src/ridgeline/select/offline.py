"""Composition for a GPU that is not here: choices from a lock or an imported cache, else by prediction.

Winner and runners-up are compiled, so that one that does not compile or spills is refused with its reason
and the next takes its place. Nothing is bound, timed or run: the machine itself settles what was predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from ridgeline.base.choices import Candidate
from ridgeline.base.spec import Site, TensorSpec
from ridgeline.errors import BuildError, failure, first_line
from ridgeline.ir.body import Region
from ridgeline.ir.views import views_of
from ridgeline.kernels.triton.compiler import Compiled, CompileError, compile_kernels
from ridgeline.kernels.triton.source import Kernel
from ridgeline.runtime.embedded_kernels import RUNNERS_UP
from ridgeline.select.context import Selection, SelectionContext
from ridgeline.select.plans import single, stale
from ridgeline.select.sites import candidates_of, check_workspace
from ridgeline.tactics.base import Foretells, HasKernels, Tactic
from ridgeline.tactics.cache import Entry, only_offered
from ridgeline.tactics.cuda.own_kernels import require_fit
from ridgeline.tactics.predict import predict_us


def select_offline(
    context: SelectionContext, inputs: Mapping[str, TensorSpec], feeds: Mapping[str, Tensor]
) -> Selection:
    """Choose for every region without its GPU."""
    made = Selection()
    work = [region for region in context.program.regions if not context.inferred.is_host(region)]
    contests: dict[str, Contest] = {}
    for region in work:
        site = made.sites[region.name] = context.site(region)
        if not views_of(site):
            contests.setdefault(context.key(site), Contest(region, site))
    if context.lock is not None:
        unknown = [contest.region.name for key, contest in contests.items() if context.find(key) is None]
        if unknown:
            raise stale(context.options, unknown)
    for i, (key, contest) in enumerate(contests.items()):
        context.options.tell("predict", i, len(contests), contest.region.name)
        contest.open(context.find(key), context)
    context.options.tell("predict", len(contests), len(contests))
    _compile(context, list(contests.values()))
    for region in work:
        key = context.key(made.sites[region.name])
        if key in contests:
            made.entries[region.name] = context.cache.entries[key] = contests[key].entry
    made.keys = list(contests)
    made.cached = sum(contest.is_known for contest in contests.values())
    made.predicted = len(contests) - made.cached
    made.measured_at = tuple(dict.fromkeys(c.entry.context for c in contests.values() if c.entry.context))
    made.steps = tuple(single(context, region, made) for region in work)
    return made


@dataclass
class Contest:
    """The candidates of one site, those that compile still to be found."""

    region: Region
    site: Site
    entry: Entry = field(default_factory=lambda: Entry("", ()))
    is_known: bool = False  # from a lock or a cache
    waiting: list[int] = field(default_factory=list)  # candidates by rank, none of them tried yet
    good: list[int] = field(default_factory=list)
    compiled: int = 0  # of the good ones: a library needs no embedded kernel

    def open(self, known: Entry | None, context: SelectionContext) -> None:
        """Rank the candidates: as they were measured, else as they are predicted."""
        self.is_known = known is not None
        self.entry = (
            predicted(self.site, context)
            if known is None
            else only_offered(known, self.site, context.tactics)
        )
        ranks = [self.entry.chosen, *(i for i in range(len(self.entry.candidates)) if i != self.entry.chosen)]
        self.waiting = [i for i in ranks if self.entry.candidates[i].refused is None]

    def refuse(self, index: int, reason: str) -> None:
        candidates = list(self.entry.candidates)
        candidates[index] = replace(candidates[index], refused=reason)
        self.entry = replace(self.entry, candidates=tuple(candidates))

    def close(self, lock: Path | None) -> None:
        """The first that compiled is chosen; what a lock pins must be it."""
        rows = [f"{m.tactic:24} {m.refused}" for m in self.entry.candidates if m.refused is not None]
        if not self.good:
            raise BuildError(f"no tactic for {self.site.name}", rows=rows)
        if lock is not None and self.good[0] != self.entry.chosen:
            raise BuildError(
                f"what the lock pins at {self.site.name} cannot be used",
                rows=rows,
                help=f"edit `chosen` in {lock}, or delete it and build again",
            )
        self.entry = replace(self.entry, chosen=self.good[0])
        if not self.is_known:
            # those that may be chosen first, in order; then those that may not
            kept = [m for m in self.entry.candidates if m.refused is None]
            dropped = [m for m in self.entry.candidates if m.refused is not None]
            self.entry = replace(self.entry, candidates=(*kept, *dropped), chosen=0)


def predicted(site: Site, context: SelectionContext) -> Entry:
    """Every willing candidate with the time it should take, best first."""
    willing, refused = candidates_of(site, context.tactics, all_configs=context.options.level > 0)
    by_name = {tactic.name: tactic for tactic in context.tactics}
    ranks: dict[str, int] = {}
    told: list[Candidate] = []
    for candidate in willing:
        tactic = by_name[candidate.tactic]
        rank = ranks[candidate.tactic] = ranks.get(candidate.tactic, -1) + 1
        try:
            _check_room(tactic, site, candidate, context)
            told.append(
                replace(candidate, predicted_us=predict_us(tactic, site, candidate.config, rank=rank))
            )
        except Exception as error:  # a site its author did not think of: refused with the message
            refused.append(replace(candidate, refused=failure(error)))
    # stable: equal predictions keep the order of preference
    told.sort(key=lambda m: m.predicted_us or 0.0)
    # the model is least sure between kinds, so the best of another tactic comes along as the first runner-up
    rival = next((i for i, m in enumerate(told) if m.tactic != told[0].tactic), None)
    if rival is not None:
        told.insert(1, told.pop(rival))
    return Entry(site.name, (*told, *refused), 0)


def _check_room(tactic: Tactic, site: Site, candidate: Candidate, context: SelectionContext) -> None:
    if context.options.workspace_bytes is not None and isinstance(tactic, Foretells):
        needed = tactic.footprint(site, candidate.config).packed_bytes
        check_workspace(needed, context.options.workspace_bytes)


def _compile(context: SelectionContext, contests: Sequence[Contest]) -> None:
    """Until every site has kernels for a winner and its runners-up, or has nobody left to ask."""
    wanted = 1 + (RUNNERS_UP if context.options.level > 0 else 0)
    by_name = {tactic.name: tactic for tactic in context.tactics}
    while True:
        batch = [
            (contest, contest.waiting.pop(0))
            for contest in contests
            for _ in range(min(wanted - contest.compiled, len(contest.waiting)))
        ]
        if not batch:
            break
        for (contest, index), (kernels, reason) in zip(batch, _try(batch, by_name, context), strict=True):
            if reason is None:
                contest.good.append(index)
                contest.compiled += bool(kernels)
            else:
                contest.refuse(index, reason)
    for contest in contests:
        contest.close(context.options.lock if context.lock is not None else None)


def _try(
    batch: Sequence[tuple[Contest, int]], tactics: Mapping[str, Tactic], context: SelectionContext
) -> list[tuple[list[Kernel], str | None]]:
    """Compile these candidates together: the kernels of each, and why it cannot be used."""
    found: list[tuple[list[Kernel], str | None]] = []
    for contest, index in batch:
        candidate = contest.entry.candidates[index]
        try:
            found.append((_kernels(tactics[candidate.tactic], contest.site, candidate), None))
        except Exception as error:  # a config from elsewhere that does not fit this version
            found.append(([], failure(error)))
    made = _compiled([kernel for kernels, _ in found for kernel in kernels], context)
    return [(ks, reason or _why_unfit([made[k.digest] for k in ks])) for ks, reason in found]


def _kernels(tactic: Tactic, site: Site, candidate: Candidate) -> list[Kernel]:
    return list(tactic.kernels(site, candidate.config)) if isinstance(tactic, HasKernels) else []


def _compiled(kernels: Sequence[Kernel], context: SelectionContext) -> dict[str, Compiled | CompileError]:
    def on_done(done: int, total: int) -> None:
        context.options.tell("compile", done, total)

    made = compile_kernels(kernels, context.target.arch, on_done=on_done)
    return {kernel.digest: answer for kernel, answer in zip(kernels, made, strict=True)}


def _why_unfit(made: Sequence[Compiled | CompileError]) -> str | None:
    for answer in made:
        try:
            require_fit(answer)
        except CompileError as error:
            return first_line(error)
    return None
