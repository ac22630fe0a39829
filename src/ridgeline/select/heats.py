"""Contests on a CPU in heats, so that the time goes where it matters most.

The largest few regions of each kind try every tactic, then further configs of tactics that were close. The
other regions do the same without what lost badly there. What the deadline leaves untimed is chosen by what
won elsewhere, and the entry says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ridgeline.base.grouping import grouped
from ridgeline.errors import failure
from ridgeline.kernels.cpp.compiler import LeftOutError
from ridgeline.select.context import Contest, SelectionContext
from ridgeline.select.deadline import Deadline
from ridgeline.select.experience import LIKE, Experience
from ridgeline.select.race import PAUSE_S, Effort, race
from ridgeline.select.site_race import TIME_OVER, SiteCalls, SiteRace
from ridgeline.tactics.offer import cpp_text, precompile

# levels up to this one leave out what is hopeless; above it everything is timed
PRUNING_LEVEL = 3
# of what is left for a heat, the share that compiling may take
COMPILING = 0.5
ROUNDS = 3
# contests that are going on, and candidates of each by their places
Entries = Sequence[tuple[SiteRace, Sequence[int]]]


class Heats:
    """All contests of one selection that nobody knows the outcome of."""

    def __init__(
        self, context: SelectionContext, contests: Sequence[Contest], effort: Effort, deadline: Deadline
    ) -> None:
        self._context, self._effort, self._deadline = context, effort, deadline
        self._tactics = context.fused.tactics
        self._experience = Experience()
        races = [SiteRace(contest) for contest in contests if _is_raced(context, contest)]
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
                each.leave_out_far()
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
        jobs, texts = [], []
        for each, place in wanted:
            candidate, site = each.willing[place], each.contest.site
            offer = self._context.offer(self._tactics[candidate.tactic], site)
            jobs.append((self._tactics[candidate.tactic], site, offer, candidate.config))
            texts.append(cpp_text(offer, candidate.config))
        failed = precompile(jobs, on_done=on_done, is_over=lambda: deadline.is_over)
        left = {error.source for error in failed if isinstance(error, LeftOutError)}
        for (each, place), text in zip(wanted, texts, strict=True):
            if text in left:
                each.untimed[place] = TIME_OVER

    def _time(self, each: SiteRace, places: Sequence[int]) -> None:
        """These candidates against the best so far: times of different races do not compare."""
        before = [each.best] if each.times_us else sorted(each.ran)
        calls = self._calls(each, [*before, *places])
        if len(calls) < 2:  # one alone has no time: it gets the one that it takes in the whole plan
            each.ran.update(calls.keys() - each.times_us.keys())
            return
        spins = any(self._tactics[each.willing[place].tactic].spins_threads for place in calls)
        times, is_unsteady = race(
            list(calls.values()),
            each_s=self._effort.site_s,
            pause_s=PAUSE_S if spins else 0.0,
            long_rounds=self._effort.long_rounds,
        )
        each.is_unsteady |= is_unsteady
        found = dict(zip(calls, times, strict=True))
        known = [place for place in found if place in each.times_us]
        scale = each.times_us[known[0]] / max(found[known[0]], 1e-3) if known else 1.0
        new = {place: round(us * scale, 3) for place, us in found.items() if place not in each.times_us}
        each.times_us.update(new)
        each.ran.clear()
        learnt = {each.variants[place]: us for place, us in new.items()}
        self._experience.learn(each.kind, learnt, min(each.times_us.values()))

    def _calls(self, each: SiteRace, places: Sequence[int]) -> dict[int, Callable[[], object]]:
        site_calls = SiteCalls(self._context, each.contest)
        made = {}
        for place in places:
            try:
                made[place] = site_calls.call(each.willing[place])
            except Exception as error:  # a candidate that breaks is refused with its message
                each.refuse(place, failure(error))
        return made

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
                place = next((place for place in places if self._calls(each, [place])), None)
            if place is not None:
                taken[id(each)] = place
        return taken

    def _tell(self, units: int, detail: str = "") -> None:
        self._done = min(self._done + max(units, 0), self._total)
        self._context.options.tell("time", self._done, self._total, detail)


def _is_raced(context: SelectionContext, contest: Contest) -> bool:
    """Where shapes depend on data nobody knows what to time it with: the floor takes whatever comes.

    And one candidate alone need not run on values drawn without knowing the model.
    """
    is_alone = len(contest.willing) == 1 and context.options.workspace_bytes is None
    return contest.site.is_inferred and not is_alone
