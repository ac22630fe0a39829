"""What every stage of selection needs, what a timer is, and what selection makes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

from torch import Tensor

from ridgeline.base.choices import Candidate, Refusal
from ridgeline.base.spec import Config, Site, TensorSpec
from ridgeline.errors import BuildError
from ridgeline.ir.body import Region
from ridgeline.ir.infer import Inferred
from ridgeline.ir.op_row import Trait
from ridgeline.ir.ops import has
from ridgeline.ir.sites import make_site
from ridgeline.kernels.triton.source import Kernel
from ridgeline.kernels.values import taken_in
from ridgeline.options import Options
from ridgeline.plan.streams import Schedule
from ridgeline.plugins.catalog import CATALOG
from ridgeline.runtime.examples import example_feeds
from ridgeline.runtime.fused_model import FusedModel
from ridgeline.runtime.islands import Islands
from ridgeline.select.deadline import Deadline
from ridgeline.tactics.base import Launch, Offer, Refused, Tactic
from ridgeline.tactics.cache import Entry, TimingCache, measuring_context, site_of
from ridgeline.tactics.offer import read_offer

# the candidates of a site: willing ones, and those that refused with their reasons
Competitors: TypeAlias = tuple[list[Candidate], list[Candidate]]
APART = "regions"  # as a candidate of a pair of regions: each of them is a step of its own


@dataclass(frozen=True)
class StepChoice:
    """A step of a plan in the making."""

    regions: tuple[Region, ...]
    tactic: str
    config: Config
    site: Site
    entry: Entry

    @property
    def median_us(self) -> float | None:
        return self.entry.chosen_us


@dataclass
class Contest:
    """The candidates of one site; regions with equal sites share one contest."""

    region: Region  # the first of them
    site: Site
    entry: Entry
    is_known: bool = False  # from a lock or a cache
    users: list[Region] = field(default_factory=list)
    willing: list[Candidate] = field(default_factory=list)
    refused: list[Candidate] = field(default_factory=list)
    is_pair: bool = False  # of two regions as one step

    @property
    def is_timeable(self) -> bool:
        """Whether a call over drawn inputs says what a run takes: not where data decides shapes or trips."""
        return self.site.is_inferred and not any(has(op, Trait.REPEATS) for op in self.site.body.ops)

    def refuse(self, index: int, reason: str) -> None:
        """Leave out one of the entry's candidates, for a reason that was found late."""
        self.entry = self.entry.changed(index, refused=reason)

    def no_tactic(self, refused: Sequence[Candidate], *, help: str = "") -> BuildError:
        return BuildError(
            f"no tactic for {self.site.name} ({', '.join(op.op_type for op in self.site.body.ops)})",
            # what broke explains more than what was never meant for such a site
            rows=sorted(
                (f"{m.tactic:24} {m.refused}" for m in refused), key=lambda row: "failed: " not in row
            ),
            help=help,
        )


@dataclass
class Pair:
    """The contest of neighbours with equal sites, and what came of it."""

    key: str
    contest: Contest  # its region is the first pair, merged
    tactics: Collection[str]  # that take pairs; the floor, which competes as well, is none of them
    parts: list[tuple[Region, Region]] = field(default_factory=list)
    apart: Candidate = field(default_factory=lambda: Candidate(APART, {}))
    taken: int | None = None  # the place of the candidate that runs the two as one step
    why_apart: str = ""

    @property
    def is_open(self) -> bool:
        """Whether anybody has to decide who would run it."""
        return not self.contest.is_known or self.taken is not None

    @property
    def apart_us(self) -> float | None:
        return time_of(self.apart)

    @property
    def places(self) -> list[int]:
        """Candidates with a time that run the pair as one step, the best first."""
        entry = self.contest.entry
        order = [entry.chosen, *(i for i in range(len(entry.candidates)) if i != entry.chosen)]
        return [i for i in order if self._is_rival(entry.candidates[i])]

    def _is_rival(self, candidate: Candidate) -> bool:
        return (
            candidate.tactic in self.tactics and candidate.refused is None and time_of(candidate) is not None
        )

    def us(self, place: int) -> float:
        return time_of(self.contest.entry.candidates[place]) or 0.0

    def step(self, parts: tuple[Region, Region], place: int) -> StepChoice:
        best = self.contest.entry.candidates[place]
        return StepChoice(parts, best.tactic, best.config, self.contest.site, self.contest.entry)

    def compared(self) -> Entry:
        """With the two apart as a candidate: what a lock, a cache and the plan keep."""
        entry = self.contest.entry
        best = [] if self.taken is None else [entry.candidates[self.taken]]
        others = [c for c in entry.candidates if not best or c is not best[0]]
        willing = [c for c in others if c.refused is None]
        refused = [c for c in others if c.refused is not None]
        first = (*best, *willing, self.apart) if best else (self.apart, *willing)
        return replace(entry, candidates=(*first, *refused), chosen=0)


def time_of(candidate: Candidate) -> float | None:
    """As it was measured, else as it is predicted."""
    return candidate.median_us if candidate.median_us is not None else candidate.predicted_us


@dataclass
class Selection:
    """What was chosen, over what, and what that choice rests on."""

    steps: tuple[StepChoice, ...] = ()
    entries: dict[str, Entry] = field(default_factory=dict)  # by region name
    sites: dict[str, Site] = field(default_factory=dict)  # by region name
    alternatives: Entry | None = None
    schedule: Schedule | None = None  # None: one step after the other
    keys: list[str] = field(default_factory=list)  # cache keys this build used, in order
    timed: int = 0
    unsteady: int = 0  # of those timed
    cached: int = 0
    predicted: int = 0  # sites chosen by a model, where nothing can be timed
    partial: int = 0  # sites of which the time limit left out some candidates
    guessed: int = 0  # of those, the ones whose winner was not timed
    measured_at: tuple[str, ...] = ()  # where others measured what this build only read
    pairs: list[Pair] = field(default_factory=list)  # of neighbours that some tactic takes as one step
    refusals: list[Refusal] = field(default_factory=list)  # of those that stay apart

    def joined(self, trial: tuple[Pair, int] | None = None) -> dict[str, StepChoice]:
        """Steps of the pairs that are taken, by their first regions; `trial`: as if this candidate were."""
        made: dict[str, StepChoice] = {}
        used: set[str] = set()
        for pair in self.pairs:
            place = trial[1] if trial is not None and pair is trial[0] else pair.taken
            for parts in pair.parts if place is not None else ():
                names = {part.name for part in parts}
                if place is not None and used.isdisjoint(names):
                    used |= names
                    made[parts[0].name] = pair.step(parts, place)
        return made


def in_order(
    work: Sequence[Region], joined: Mapping[str, StepChoice], single: Callable[[Region], StepChoice]
) -> tuple[StepChoice, ...]:
    """A step for each region, but where some are joined: those stand in the place of their first."""
    covered = {part.name for step in joined.values() for part in step.regions[1:]}
    return tuple(
        joined[region.name] if region.name in joined else single(region)
        for region in work
        if region.name not in covered
    )


class Timer:
    """How choices are made between candidates: by their times, by predictions, or by a rule.

    This class is the rule: the first candidate wins, and nothing is bound, compiled or run.
    """

    all_configs_from = 3  # the level from which every config of a tactic competes
    takes_pairs = False  # asks tactics for pairs of regions
    measures = False  # its entries hold times of this machine, and count for the next build

    def find(self, context: SelectionContext, key: str) -> Entry | None:
        """What an earlier build found out about the site."""
        return None

    def decide(self, context: SelectionContext, contests: Sequence[Contest], made: Selection) -> None:
        """Give each contest that is not known an entry; the winner's place is `chosen`."""

    def compose(self, context: SelectionContext, contests: Sequence[Contest], made: Selection) -> None:
        """Choose between whole plans, where that is offered. Else each region is a step."""
        made.steps = in_order(context.work, made.joined(), lambda region: context.single(region, made))


@dataclass(frozen=True)
class SelectionContext:
    """What every stage of selection needs."""

    fused: FusedModel
    inferred: Inferred  # at the shapes to plan for
    inputs: Mapping[str, TensorSpec]  # the shapes that are planned for
    timer: Timer
    options: Options
    cache: TimingCache
    lock: TimingCache | None
    device_key: str = ""  # the GPU that timings are taken on; "" for one that is not here
    deadline: Deadline = field(default_factory=Deadline)  # of choosing
    islands: Islands | None = None  # control flow whose bodies are planned
    body_keys: Sequence[str] = ()  # cache keys that planning those used
    body_selections: Sequence[Selection] = ()
    profile_corners: Sequence[Inferred] = ()  # the profile's other corners, where a tactic must be valid too
    competitors: Callable[[Site], Competitors] | None = None  # of a site; None: whoever offers
    offers: dict[Hashable, Offer | Refused] = field(default_factory=dict)  # those read so far

    @property
    def context(self) -> str:
        return measuring_context(self.fused.target.threads, self.device_key)

    @cached_property
    def work(self) -> list[Region]:
        """The regions that run; shape arithmetic is known before."""
        return [region for region in self.fused.program.regions if not self.inferred.is_host(region)]

    @cached_property
    def floor(self) -> Tactic:
        return next(tactic for tactic in self.fused.tactics.values() if tactic.is_floor)

    @cached_property
    def feeds(self) -> dict[str, Any]:
        """Drawn inputs that whole plans are timed with."""
        arrays = example_feeds(self.fused.inference, self.inputs, seed=0)
        return {name: taken_in(array) for name, array in arrays.items()}

    def site(self, region: Region) -> Site:
        return make_site(self.fused.program, region, self.inferred, self.fused.target)

    def weights_of(self, region: Region, site: Site) -> dict[str, Tensor]:
        return {name: self.fused.placed_weights[region.outer(name)] for name in site.weights}

    def offer(self, tactic: Tactic, site: Site) -> Offer | Refused:
        """What the tactic makes of the site. Sites that are equal in their names too are read once."""
        body = site.body
        place = (tactic, site.key, body.inputs, tuple(op.outputs for op in body.ops), tuple(body.constants))
        if place not in self.offers:
            self.offers[place] = read_offer(tactic, site)
        return self.offers[place]

    def bind(self, site: Site, tactic: str, config: Config, weights: Mapping[str, Tensor]) -> Launch:
        offer = self.offer(self.fused.tactics[tactic], site)
        if isinstance(offer, Refused):
            raise BuildError(f"{tactic} does not take {site.name}: {offer.reason}")
        return offer.bind(config, weights)

    def kernels(self, site: Site, tactic: str, config: Config) -> Sequence[Kernel]:
        """Kernels of our own that the candidate launches; none where it refuses, or offers no such config."""
        offer = self.offer(self.fused.tactics[tactic], site)
        return offer.kernels(config) if isinstance(offer, Offer) and offer.has(config) else ()

    def single(self, region: Region, made: Selection) -> StepChoice:
        """The region as a step of its own, by the winner of its contest."""
        entry = made.entries.get(region.name) or Entry(region.name, (Candidate(self.floor.name, {}),))
        best = entry.candidates[entry.chosen]
        if best.tactic not in self.fused.tactics:
            raise left_out(self.options, [f"{region.name}: {best.tactic}"])
        if best.refused is not None:
            raise BuildError(f"the lock pins {best.tactic} at {region.name}, which refused: {best.refused}")
        return StepChoice((region,), best.tactic, best.config, made.sites[region.name], entry)

    def key(self, site: Site) -> str:
        """Timings count for the same rivals at the same effort only."""
        options, names = self.options, " ".join(self.fused.tactics)
        rivals = f"{options.level} {names} {options.deterministic} {options.workspace_bytes}"
        rivals += CATALOG.digest()
        return f"{site.key}-{hashlib.sha256(rivals.encode()).hexdigest()[:8]}"

    def find(self, key: str) -> Entry | None:
        """What the lock pins, or an earlier build measured."""
        return self.timer.find(self, key) if self.lock is None else self.lock.entries.get(site_of(key))

    def store(self, key: str, entry: Entry) -> None:
        """Keep the entry for a lock, and for the next build if it was measured here."""
        if self.lock is None:
            is_ours = self.timer.measures
            self.cache.entries[key] = replace(entry, context=self.context) if is_ours else entry


def left_out(options: Options, what: Sequence[str]) -> BuildError:
    return BuildError(
        f"the lock {str(options.lock)!r} names tactics that this build leaves out",
        rows=what,
        help="drop --without, or edit `chosen` in the lock",
    )


def stale(options: Options, what: Sequence[str]) -> BuildError:
    return BuildError(
        f"the lock file does not cover {len(what)} of this model's choices",
        rows=what,
        help=f"the model, the shapes or ridgeline changed since: delete {options.lock} and build again",
    )


def check_workspace(needed: int, allowed: int | None) -> None:
    """Raise when copies of weights take more than the build may spend on them."""
    if allowed is not None and needed > allowed:
        raise BuildError(f"keeps {needed:,} bytes of packed weights, workspace_bytes allows {allowed:,}")
