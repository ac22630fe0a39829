"""What the contests of a build have shown so far: which candidates win and lose on which kinds of regions.

Regions are alike if the same tactics are willing to run them and they do about as much work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

from ridgeline.base.choices import Candidate
from ridgeline.base.spec import Site
from ridgeline.ir.work import body_bytes, body_flops

# the tactics that are willing, and the order of magnitude of the work
Kind: TypeAlias = tuple[tuple[str, ...], int]
# a tactic and the place of a config in its own order
Variant: TypeAlias = tuple[str, int]

# of like regions, how many must agree
LIKE = 2
# what a candidate is taken to lose that nobody has timed on any region
UNKNOWN = 1.5
# a core does about as much in a µs, to compare regions with: nothing is chosen by it
FLOPS_PER_US, BYTES_PER_US = 5e4, 1e4


@dataclass(frozen=True)
class Pruning:
    """How many times slower than the best leaves a candidate out."""

    tactic: float  # on like regions, a tactic with all its configs
    config: float  # on like regions, a further config: between configs less of a lead is lost
    close: float  # here, a tactic's first config: further ones are not tried


ON_CPU = Pruning(tactic=2.5, config=1.3, close=1.5)
# replays of graphs repeat within a few per cent, and every candidate costs a second of a compiler
ON_GPU = Pruning(tactic=1.35, config=1.02, close=1.1)


def work_us(site: Site) -> float:
    """About the time that a region takes."""
    flops, nbytes = body_flops(site.body, site.specs), body_bytes(site.body, site.specs)
    return 1.0 + max(flops / FLOPS_PER_US, nbytes / BYTES_PER_US)


def kind_of(site: Site, willing: Sequence[Candidate]) -> Kind:
    tactics = tuple(dict.fromkeys(candidate.tactic for candidate in willing))
    return tactics, int(math.log10(work_us(site)))


def variants(willing: Sequence[Candidate]) -> list[Variant]:
    """Each candidate as its tactic and its place among that tactic's configs."""
    seen: dict[str, int] = {}
    made = []
    for candidate in willing:
        place = seen[candidate.tactic] = seen.get(candidate.tactic, -1) + 1
        made.append((candidate.tactic, place))
    return made


@dataclass(frozen=True)
class Expected:
    """How many times slower than the best a variant should be, and what that rests on."""

    ratio: float
    basis: str
    is_known: bool = True  # somebody has timed it


class Experience:
    """How many times slower than the best each variant was, by kind of region."""

    def __init__(self, pruning: Pruning) -> None:
        self._pruning = pruning
        self._ratios: dict[Kind, dict[Variant, list[float]]] = {}

    def learn(self, kind: Kind, times_us: Mapping[Variant, float], best_us: float) -> None:
        known = self._ratios.setdefault(kind, {})
        for variant, us in times_us.items():
            known.setdefault(variant, []).append(us / best_us if best_us else 1.0)

    def why_hopeless_tactic(self, kind: Kind, tactic: str) -> str | None:
        """Why a tactic need not be tried, with any of its configs, on one more region of this kind."""
        ratios = [found for (name, _), found in self._ratios.get(kind, {}).items() if name == tactic]
        return _why(ratios, self._pruning.tactic)

    def why_hopeless(self, kind: Kind, variant: Variant) -> str | None:
        """Why a config need not be tried, where its tactic has one that does better."""
        found = self._ratios.get(kind, {}).get(variant)
        return _why([found] if found else [], self._pruning.config)

    def expected(self, kind: Kind, variant: Variant) -> Expected:
        """By like regions, else by those of another size, else by any."""
        of_other_sizes = [ratios for (names, _), ratios in self._ratios.items() if names == kind[0]]
        for what, known in (
            ("like regions", [self._ratios.get(kind, {})]),
            ("such regions of other sizes", of_other_sizes),
            ("other regions", list(self._ratios.values())),
        ):
            ratios = [ratio for each in known for ratio in each.get(variant, [])]
            if ratios:
                return Expected(median(ratios), f"as {len(ratios)} {what} had it")
        return Expected(UNKNOWN, "by preference", is_known=False)


def _why(ratios: Sequence[Sequence[float]], limit: float) -> str | None:
    """How far behind all of these were, if enough regions agree that it was farther than the limit."""
    count, least = max(map(len, ratios), default=0), min(map(min, ratios), default=0.0)
    if count < LIKE or least < limit:
        return None
    return f"{least:.1f} times slower or more on {count} like regions"
