"""Contests in heats, so that the time goes where it matters most.

The largest few regions of each kind try every tactic, then further configs of tactics that were close. The
other regions do the same without what lost badly there. What the deadline leaves untimed is chosen by what
won elsewhere, and the entry says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import torch

from ridgeline.base.grouping import grouped
from ridgeline.kernels.cpp.compiler import LeftOutError
from ridgeline.kernels.triton.compiler import KernelLeftOutError
from ridgeline.select.context import Contest, SelectionContext
from ridgeline.select.deadline import Deadline
from ridgeline.select.experience import LIKE, Experience, Pruning
from ridgeline.select.site_race import HELP, TIME_OVER, SiteRace
from ridgeline.tactics.base import Offer
from ridgeline.tactics.cache import Entry
from ridgeline.tactics.offer import cpp_text, precompile

# levels up to this one leave out what is hopeless; above it everything is timed
PRUNING_LEVEL = 3
# of what is left for a heat, the share that compiling may take
COMPILING = 0.5
ROUNDS = 3
# contests that are going on, and candidates of each by their places
Entries: TypeAlias = Sequence[tuple[SiteRace, Sequence[int]]]


@dataclass(frozen=True)
class Timed:
    """Candidates of one contest in one race, by their places."""

    times_us: Mapping[int, float] = field(default_factory=dict)
    ran: Sequence[int] = ()  # alone, so that there was nothing to time
    is_unsteady: bool = False


class Trial(Protocol):
    """How candidates are run against each other on the machine at hand. Those that break are refused."""

    pruning: Pruning

    def is_raced(self, contest: Contest) -> bool:
        """Whether there is anything to run: else the entry stays as it is."""

    def time(self, each: SiteRace, places: Sequence[int]) -> Timed: ...

    def runs(self, each: SiteRace, place: int) -> bool:
        """Whether the candidate runs, without a time."""


class Heats:
    """All contests of one selection that nobody knows the outcome of."""

    def __init__(
        self, context: SelectionContext, contests: Sequence[Contest], trial: Trial, deadline: Deadline
    ) -> None:
        self._context, self._trial, self._deadline = context, trial, deadline
        self._tactics = context.fused.tactics
        self._experience = Experience(trial.pruning)
        races = [SiteRace(contest) for contest in contests if trial.is_raced(contest)]
        self._races = sorted(races, key=lambda each: -each.worth_us)
        # every contest is compiled and timed in each round: best guesses, further configs, what was late
        self._done, self._total = 0, 2 * ROUNDS * len(races)
        self._is_pruned = context.options.level <= PRUNING_LEVEL

    def run(self) -> None:
        if self._is_pruned:
            self._run_pruned()
        else:
            self._heat([(each, each.open) for each in self._races])
        self._try_late()
        taken = self._take_untimed()
        for each in self._races:
            each.contest.entry = each.entry(self._experience, taken.get(id(each)))
        self._tell(self._total - self._done)

    def _run_pruned(self) -> None:
        kinds = grouped((each.kind, each) for each in self._races).values()
        first = {id(each) for group in kinds for each in group[:LIKE]}
        for races in (
            [each for each in self._races if id(each) in first],
            [each for each in self._races if id(each) not in first],
        ):
            for each in races:
                each.leave_out_hopeless(self._experience)
            self._heat([(each, each.firsts) for each in races])
            for each in races:
                each.leave_out_far(self._trial.pruning.close)
            self._heat([(each, each.open) for each in races])

    def _try_late(self) -> None:
        """Once more with what compiling had no time for, as long as there is any and it gets on."""
        late = [each for each in self._races if each.late]
        before = sum(len(each.late) for each in late) + 1
        while not self._deadline.is_over and 0 < (count := sum(len(each.late) for each in late)) < before:
            before = count
            entries = [(each, each.late) for each in late]
            for each, places in entries:
                for place in places:
                    del each.untimed[place]
            self._heat(entries)

    def _heat(self, entries: Entries) -> None:
        """These candidates: compiled together, then timed contest by contest."""
        self._compile(entries, self._deadline.part(COMPILING))
        for each, places in entries:
            kept = [place for place in places if place not in each.untimed]
            if kept and self._deadline.is_over:
                each.untimed.update(dict.fromkeys(kept, TIME_OVER))
            elif kept:
                with torch.inference_mode():
                    self._time(each, kept)
            self._tell(1, each.contest.region.name)

    def _compile(self, entries: Entries, deadline: Deadline) -> None:
        """As a part of a heat, whose progress is told."""
        before, units = self._done, len(entries)

        def told(done: int, total: int) -> None:
            self._tell(before + units * done // total - self._done, f"kernel {done} of {total} compiled")

        self._fill_cache(entries, deadline, told)
        self._tell(before + units - self._done)

    def _fill_cache(
        self, entries: Entries, deadline: Deadline, on_done: Callable[[int, int], None] | None = None
    ) -> None:
        """Compile the kernels of these candidates. What there is no time for is left out."""
        wanted = [(each, place) for each, places in entries for place in places]
        jobs = []
        for each, place in wanted:
            candidate, site = each.willing[place], each.contest.site
            offer = self._context.offer(self._tactics[candidate.tactic], site)
            jobs.append((self._tactics[candidate.tactic], site, offer, candidate.config))
        failed = precompile(jobs, on_done=on_done, is_over=lambda: deadline.is_over)
        texts = {error.source for error in failed if isinstance(error, LeftOutError)}
        kernels = {error.digest for error in failed if isinstance(error, KernelLeftOutError)}
        for (each, place), (_, _, offer, config) in zip(wanted, jobs, strict=True):
            own = offer.kernels(config) if kernels and isinstance(offer, Offer) else ()
            if cpp_text(offer, config) in texts or any(kernel.digest in kernels for kernel in own):
                each.untimed[place] = TIME_OVER

    def _time(self, each: SiteRace, places: Sequence[int]) -> None:
        """These candidates against the best so far: times of different races do not compare."""
        before = [each.best] if each.times_us else sorted(each.ran)
        made = self._trial.time(each, [*before, *places])
        each.ran.update(set(made.ran) - each.times_us.keys())
        if not made.times_us:
            return
        each.is_unsteady |= made.is_unsteady
        found = made.times_us
        known = [place for place in found if place in each.times_us]
        scale = each.times_us[known[0]] / max(found[known[0]], 1e-3) if known else 1.0
        new = {place: round(us * scale, 3) for place, us in found.items() if place not in each.times_us}
        each.times_us.update(new)
        each.ran.clear()
        learnt = {each.variants[place]: us for place, us in new.items()}
        self._experience.learn(each.kind, learnt, min(each.times_us.values()))

    def _take_untimed(self) -> dict[int, int]:
        """The places of candidates that are chosen without a time, by contest.

        Each is run once: one that breaks is refused, and the next most likely one takes its place.
        """
        waiting = []
        for each in self._races:
            likely = each.unlucky(self._experience)
            if not each.is_decided:
                waiting.append((each, each.by_expectation(self._experience)))
            elif likely is not None:
                waiting.append((each, [likely]))
        self._fill_cache([(each, places[:1]) for each, places in waiting], Deadline())
        taken: dict[int, int] = {}
        for each, places in waiting:
            with torch.inference_mode():
                place = next((place for place in places if self._trial.runs(each, place)), None)
            if place is not None:
                taken[id(each)] = place
        return taken

    def _tell(self, units: int, detail: str = "") -> None:
        self._done = min(self._done + max(units, 0), self._total)
        self._context.options.tell("time", self._done, self._total, detail)


def first_that_runs(trial: Trial, contest: Contest) -> Entry:
    """The first candidate that runs is taken, without a time; those after it stay untried."""
    if not trial.is_raced(contest):
        return contest.entry
    each = SiteRace(contest)
    for place in range(len(each.willing)):
        if trial.runs(each, place):
            return Entry(contest.site.name, (*each.willing[place:], *each.refused_candidates), 0)
    raise contest.no_tactic(each.refused_candidates, help=HELP)
