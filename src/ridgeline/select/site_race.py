"""One contest while it goes on: what is known of each candidate, and the entry it ends with."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ridgeline.base.choices import Candidate
from ridgeline.base.grouping import grouped
from ridgeline.select.context import Contest
from ridgeline.select.experience import Expected, Experience, kind_of, variants, work_us
from ridgeline.select.race import ranked
from ridgeline.tactics.cache import Entry

# a candidate that nobody timed here is taken if it should beat the best of those that were timed by this
LIKELY = 1.5
TIME_OVER = "the time limit"
HELP = "allow more tactics: drop --without, or lower --level to see the first error"


@dataclass
class SiteRace:
    """Candidates are known by their places among the willing."""

    contest: Contest
    times_us: dict[int, float] = field(default_factory=dict)
    ran: set[int] = field(default_factory=set)  # alone, so that there was nothing to time
    refused: dict[int, str] = field(default_factory=dict)
    untimed: dict[int, str] = field(default_factory=dict)
    preferred: set[int] = field(default_factory=set)  # of each tactic, what did best on like regions
    is_unsteady: bool = False

    def __post_init__(self) -> None:
        self.willing = self.contest.willing
        self.kind = kind_of(self.contest.site, self.willing)
        self.variants = variants(self.willing)
        self.worth_us = work_us(self.contest.site) * len(self.contest.users)

    @property
    def open(self) -> list[int]:
        """Candidates of which nothing is known yet."""
        known = {*self.times_us, *self.ran, *self.refused, *self.untimed}
        return [place for place in range(len(self.willing)) if place not in known]

    @property
    def firsts(self) -> list[int]:
        """The best guess of each tactic: what did best on like regions, else the first by preference."""
        by_tactic = grouped((self.variants[place][0], place) for place in self.open)
        return [
            next((place for place in places if place in self.preferred), places[0])
            for places in by_tactic.values()
        ]

    @property
    def late(self) -> list[int]:
        """Candidates that the time limit left out so far."""
        return [place for place, why in self.untimed.items() if why == TIME_OVER]

    @property
    def is_decided(self) -> bool:
        return bool(self.times_us or self.ran)

    @property
    def best(self) -> int:
        return min(self.times_us, key=lambda place: self.times_us[place])

    def refuse(self, place: int, reason: str) -> None:
        self.times_us.pop(place, None)
        self.untimed.pop(place, None)
        self.ran.discard(place)
        self.refused[place] = reason

    def leave_out_far(self, close: float) -> None:
        """Further configs of tactics whose first one was farther from the best than this factor."""
        best_us = min(self.times_us.values(), default=0.0)
        timed = grouped((self.variants[place][0], us) for place, us in self.times_us.items())
        for place in self.open:
            first_us = min(timed.get(self.variants[place][0], [0.0]))
            if first_us > close * best_us:
                behind = f"{first_us / best_us:.1f} times slower than the best"
                self.untimed[place] = f"the first config of its tactic was {behind}"

    def leave_out_hopeless(self, experience: Experience) -> None:
        """Tactics with all their configs, and configs of others but the one that did best."""
        for tactic, places in grouped((self.variants[place][0], place) for place in self.open).items():
            why = experience.why_hopeless_tactic(self.kind, tactic)
            if why is not None:
                self.untimed.update(dict.fromkeys(places, why))
                continue
            likely = min(places, key=lambda place: self._expected(place, experience).ratio)
            self.preferred.add(likely)
            for place in places:
                why = experience.why_hopeless(self.kind, self.variants[place])
                if why is not None and place != likely:
                    self.untimed[place] = why

    def by_expectation(self, experience: Experience) -> list[int]:
        """Untimed candidates, the one that would most likely win first."""
        return sorted(self.untimed, key=lambda place: self._expected(place, experience).ratio)

    def _expected(self, place: int, experience: Experience) -> Expected:
        return experience.expected(self.kind, self.variants[place])

    def unlucky(self, experience: Experience) -> int | None:
        """One that the time limit left out, and that should be faster than all that were timed."""
        if not self.late or not self.times_us:
            return None
        found = {place: self._expected(place, experience) for place in self.late}
        likely = min(found, key=lambda place: found[place].ratio)
        best = self._expected(self.best, experience).ratio
        return likely if found[likely].is_known and LIKELY * found[likely].ratio < best else None

    def entry(self, experience: Experience, taken: int | None) -> Entry:
        """The winner, the others by their times, then what was not tried, then what refused.

        `taken`: the place of one that was chosen without a time.
        """
        if not self.is_decided and taken is None:
            raise self.contest.no_tactic(self.refused_candidates, help=HELP)
        timed = [replace(self.willing[i], median_us=us) for i, us in sorted(self.times_us.items())]
        alone = [self.willing[i] for i in sorted(self.ran)]
        others = sorted(pair for pair in self.untimed.items() if pair[0] != taken)
        left = [replace(self.willing[i], untimed=why) for i, why in others]
        first = []
        if taken is not None:
            basis = self._expected(taken, experience).basis
            first = [replace(self.willing[taken], untimed=f"{self.untimed[taken]}; taken {basis}")]
        return Entry(
            self.contest.site.name,
            (*first, *alone, *(ranked(timed) if timed else ()), *left, *self.refused_candidates),
            is_unsteady=self.is_unsteady,
            is_partial=bool(self.late),
        )

    @property
    def refused_candidates(self) -> list[Candidate]:
        """Those that broke here, behind those whose tactics refused."""
        late = [replace(self.willing[i], refused=why) for i, why in sorted(self.refused.items())]
        return [*self.contest.refused, *late]
