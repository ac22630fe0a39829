"""One contest on a CPU while it goes on: what is known of each candidate, and the entry it ends with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ridgeline.base.choices import Candidate
from ridgeline.base.spec import Site, TensorSpec
from ridgeline.kernels.elements import TORCH_DTYPES
from ridgeline.runtime.examples import site_inputs
from ridgeline.select.context import Contest, SelectionContext, check_workspace
from ridgeline.select.experience import Expected, Experience, kind_of, variants, work_us
from ridgeline.select.race import ranked
from ridgeline.tactics.base import Launch
from ridgeline.tactics.cache import Entry

# further configs of a tactic run if its first was within this factor of the best
CLOSE = 1.5
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
        """The best guess of each tactic."""
        return [place for place in self.open if not self.variants[place][1]]

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

    def leave_out_far(self) -> None:
        """Further configs of tactics whose first one was far from the best."""
        best_us = min(self.times_us.values(), default=0.0)
        firsts = {self.variants[i][0]: us for i, us in self.times_us.items() if not self.variants[i][1]}
        for place in self.open:
            first_us = firsts.get(self.variants[place][0], 0.0)
            if first_us > CLOSE * best_us:
                behind = f"{first_us / best_us:.1f} times slower than the best"
                self.untimed[place] = f"the first config of its tactic was {behind}"

    def leave_out_hopeless(self, experience: Experience) -> None:
        """Tactics with all their configs, and single configs."""
        for place in self.open:
            tactic, _ = variant = self.variants[place]
            why = experience.why_hopeless(self.kind, (tactic, 0)) or experience.why_hopeless(
                self.kind, variant
            )
            if why is not None:
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
            raise self.contest.no_tactic(self._refused(), help=HELP)
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
            (*first, *alone, *(ranked(timed) if timed else ()), *left, *self._refused()),
            is_unsteady=self.is_unsteady,
            is_partial=bool(self.late),
        )

    def _refused(self) -> list[Candidate]:
        late = [replace(self.willing[i], refused=why) for i, why in sorted(self.refused.items())]
        return [*self.contest.refused, *late]


class SiteCalls:
    """Candidates of a site as calls over the same drawn inputs."""

    def __init__(self, context: SelectionContext, contest: Contest) -> None:
        self._context, self._site = context, contest.site
        self._weights: Mapping[str, Tensor] = context.weights_of(contest.region, contest.site)
        self._inputs = site_inputs(contest.site, self._weights)

    def call(self, candidate: Candidate) -> Callable[[], object]:
        """The candidate bound, examined, and run once."""
        context, site = self._context, self._site
        launch = context.bind(site, candidate.tactic, candidate.config, self._weights)
        check_workspace(launch.packed_bytes, context.options.workspace_bytes)
        context.fused.tactics[candidate.tactic].examine(site, launch, self._inputs)
        call = self._frozen(launch, site)
        call()
        return call

    def _frozen(self, launch: Launch, site: Site) -> Callable[[], object]:
        if launch.writes_out:
            return launch.frozen(self._inputs, [_empty(spec) for spec in site.outputs])
        return lambda: launch.run(self._inputs, ())


def _empty(spec: TensorSpec) -> Tensor:
    return torch.empty_strided(spec.shape, spec.strides, dtype=TORCH_DTYPES[spec.dtype])
